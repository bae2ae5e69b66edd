"""The worker's parts that need no process of their own."""

from __future__ import annotations

import io
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ramet.runtime.config import CacheConfig, EngineConfig, ModelOptions, SchedulerConfig
from ramet.runtime.engine import worker
from ramet.runtime.engine.messages import (
    Abort,
    EngineInfo,
    EngineStats,
    FromEngine,
    GenerateRequest,
    ResetPrefixCache,
    Shutdown,
    StartFailed,
    StepOutputs,
)
from ramet.runtime.engine.wire import Unpacker, pack
from ramet.runtime.engine.worker import (
    SocketChannel,
    WorkerOptions,
    read_options,
    run,
    write_options,
)
from ramet.runtime.request import FinishReason


class FarEnd:
    """What the channel is connected to, as the parent has it."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(5)
        self.connection = connection
        self._unpacker = Unpacker()
        self._frames: list[bytes] = []

    def send(self, *frames: bytes) -> None:
        self.connection.sendall(pack(frames))

    def recv(self) -> bytes:
        while not self._frames:
            piece = self.connection.recv(1 << 16)
            assert piece, "the channel was closed"
            self._frames += self._unpacker.feed(piece)
        return self._frames.pop(0)


@pytest.fixture
def ends() -> Iterator[tuple[SocketChannel, FarEnd]]:
    """A channel, and the socket at its other end."""
    near, far = socket.socketpair()
    with near, far:
        yield SocketChannel(near), FarEnd(far)


def options(model: str, tmp_path: Path) -> WorkerOptions:
    return WorkerOptions(
        config=EngineConfig(
            model=ModelOptions(model=model, max_model_len=77),
            cache=CacheConfig(block_size=3, enable_prefix_cache=False),
            scheduler=SchedulerConfig(max_num_seqs=9),
        ),
        cache_dir=str(tmp_path),
        core="fake_core:create",
        socket_path="/nowhere",
        parent_pid=1,
        log_level=20,
    )


def received(far: FarEnd) -> FromEngine:
    return msgspec.msgpack.decode(far.recv(), type=FromEngine)


def test_options_arrive_as_they_were_sent_and_nothing_behind_them_is_read(tmp_path: Path) -> None:
    sent = options("steady", tmp_path)
    stream = io.BytesIO(write_options(sent) + b"rest")
    assert read_options(stream) == sent
    assert stream.read() == b"rest"


@pytest.mark.parametrize("length", [0, 3, 10])
def test_options_that_are_cut_short_raise(tmp_path: Path, length: int) -> None:
    with pytest.raises(EOFError):
        read_options(io.BytesIO(write_options(options("steady", tmp_path))[:length]))


def test_every_kind_of_message_arrives_in_order(
    ends: tuple[SocketChannel, FarEnd], make_request: Any
) -> None:
    channel, far = ends
    sent = [
        make_request(logit_bias={3: -1.5}, stop=("a", "é"), seed=2**64 - 1, logprobs=2),
        Abort(["x", "y"]),
        ResetPrefixCache(),
        Shutdown(),
    ]
    far.send(*(msgspec.msgpack.encode(message) for message in sent))
    assert channel.receive(block=True) == sent
    assert channel.receive(block=False) == []
    assert channel.receive(block=True, timeout=0.001) == []


@pytest.mark.parametrize(
    "change", [{"max_tokens": 1.5}, {"temperature": 9.0}, {"top_k": "many"}, {"stop": [""]}]
)
def test_a_request_that_breaks_the_types_is_refused_alone(
    ends: tuple[SocketChannel, FarEnd], make_request: Any, change: dict[str, Any]
) -> None:
    channel, far = ends
    good = make_request()
    bad = msgspec.to_builtins(make_request(request_id="bad"))
    bad["params"] |= change
    channel.send(StepOutputs(outputs=[], stats=EngineStats(steps=4)))
    far.recv()
    far.send(msgspec.msgpack.encode(bad), msgspec.msgpack.encode(good))
    assert channel.receive(block=True) == [good]
    reply = received(far)
    assert isinstance(reply, StepOutputs)
    (output,) = reply.outputs
    assert (output.request_id, output.finish_reason) == ("bad", FinishReason.ERROR)
    assert output.error
    assert reply.stats.steps == 4


def test_bytes_that_are_no_message_are_dropped(
    ends: tuple[SocketChannel, FarEnd], caplog: pytest.LogCaptureFixture
) -> None:
    channel, far = ends
    far.send(b"\xc1\xff", msgspec.msgpack.encode([1, 2]), b"")
    far.send(msgspec.msgpack.encode(Shutdown()))
    messages: list[Any] = []
    while not messages:
        messages = channel.receive(block=True)
    assert messages == [Shutdown()]
    assert (caplog.text.count("Refused"), caplog.text.count("Dropped")) == (1, 2)


def test_requests_that_were_sent_together_are_received_together(
    ends: tuple[SocketChannel, FarEnd], make_request: Any
) -> None:
    channel, far = ends
    sent = [make_request(list(range(50_000))) for _ in range(2)]
    batch = pack([msgspec.msgpack.encode(request) for request in sent])
    for start in range(0, len(batch) - 1, 100_000):
        far.connection.sendall(batch[start : min(start + 100_000, len(batch) - 1)])
        assert channel.receive(block=False) == []
    far.connection.sendall(batch[-1:])
    assert channel.receive(block=True) == sent


def test_what_a_slow_parent_has_not_read_waits_and_arrives_in_order(
    ends: tuple[SocketChannel, FarEnd],
) -> None:
    channel, far = ends
    sent = [StartFailed(message=str(i) * 100_000) for i in range(10)]
    for message in sent:
        channel.send(message)
    for message in sent:
        assert channel.receive(block=False) == []
        assert received(far) == message


def test_a_message_larger_than_the_socket_holds_leaves_at_once_if_it_is_read(
    ends: tuple[SocketChannel, FarEnd], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_FLUSH_SECONDS", 60.0)
    channel, far = ends
    sent = [StartFailed(message=str(i) * 3_000_000) for i in range(2)]
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(lambda: [received(far) for _ in sent])
        for message in sent:
            channel.send(message)
        assert reading.result() == sent, "though nothing is received meanwhile"


def test_a_send_that_finds_the_socket_full_does_not_wait(
    ends: tuple[SocketChannel, FarEnd], monkeypatch: pytest.MonkeyPatch
) -> None:
    channel, _ = ends
    channel.send(StartFailed(message="a" * 3_000_000))
    monkeypatch.setattr(worker, "_FLUSH_SECONDS", float("inf"))
    channel.send(StartFailed(message="b"))


@pytest.mark.parametrize("timeout", [2_592_000.0, 1e300])
def test_a_wait_may_be_longer_than_poll_counts(
    ends: tuple[SocketChannel, FarEnd], timeout: float
) -> None:
    channel, far = ends
    far.send(msgspec.msgpack.encode(ResetPrefixCache()))
    assert channel.receive(block=True, timeout=timeout) == [ResetPrefixCache()]


def test_a_wait_whose_time_has_passed_ends(ends: tuple[SocketChannel, FarEnd]) -> None:
    channel, _ = ends
    assert channel.receive(block=True, timeout=-0.5) == []


def test_what_waits_leaves_before_the_channel_is_closed(
    ends: tuple[SocketChannel, FarEnd],
) -> None:
    channel, far = ends
    sent = [StartFailed(message=str(i) * 100_000) for i in range(10)]
    for message in sent:
        channel.send(message)
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(channel.close)
        assert [received(far) for _ in sent] == sent
        closing.result()


def test_a_parent_that_closes_its_end_is_a_shutdown(ends: tuple[SocketChannel, FarEnd]) -> None:
    channel, far = ends
    far.send(msgspec.msgpack.encode(ResetPrefixCache()))
    far.connection.close()
    assert channel.receive(block=True) == [ResetPrefixCache(), Shutdown()]
    channel.send(StartFailed(message="to nobody"))
    assert channel.receive(block=True) == [Shutdown()]


def test_a_core_answers_with_its_info_and_runs_until_shutdown(
    ends: tuple[SocketChannel, FarEnd],
    fake_core: Any,
    make_request: Any,
    tmp_path: Path,
) -> None:
    channel, far = ends
    request: GenerateRequest = make_request(max_tokens=1)
    far.send(msgspec.msgpack.encode(request))
    far.send(msgspec.msgpack.encode(ResetPrefixCache()))
    far.send(msgspec.msgpack.encode(Abort(["nobody"])))
    far.send(msgspec.msgpack.encode(Shutdown()))
    assert run(options("steady", tmp_path), channel) == 0
    assert isinstance(received(far), EngineInfo)


def test_a_configuration_that_cannot_work_is_reported_in_parts(
    ends: tuple[SocketChannel, FarEnd], fake_core: Any, tmp_path: Path
) -> None:
    channel, far = ends
    assert run(options("refused", tmp_path), channel) == 1
    expected = StartFailed(message="too big", param="max_model_len", hint="Make it smaller.")
    assert received(far) == expected


def test_a_core_that_cannot_load_ends_the_worker_with_a_traceback(
    ends: tuple[SocketChannel, FarEnd],
    fake_core: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    channel, _ = ends
    assert run(options("broken", tmp_path), channel) == 1
    assert "broken on purpose" in caplog.text
