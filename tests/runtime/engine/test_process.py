"""The engine in a process of its own: order, aborts, death, restarts, and what is left behind."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ramet.runtime.engine.client import EngineClient, EngineStatus
from ramet.runtime.engine.launch import Worker, describe_exit
from ramet.runtime.engine.loop import STEP_FAILED
from ramet.runtime.engine.process import EngineProcess, RestartPolicy
from ramet.runtime.errors import ConfigError, EngineDead, InvalidRequest, QueueFull
from ramet.runtime.request import FinishReason, RequestOutput

LIMIT = 40.0
pytestmark = pytest.mark.timeout(120)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that must come true soon."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0.005)


async def collect(stream: Any) -> list[RequestOutput]:
    async with asyncio.timeout(LIMIT):
        return [output async for output in stream]


def tokens(outputs: list[RequestOutput]) -> list[int]:
    return [token_id for output in outputs for token_id in output.token_ids]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A process that nobody has waited for yet is dead all the same.
    return b") Z " not in Path(f"/proc/{pid}/stat").read_bytes()


@pytest.fixture
def socket_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the engines of this test make their private folders."""
    root = tmp_path / "s"
    root.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(root))
    return root


async def test_it_is_an_engine_client(start_engine: Any) -> None:
    client: EngineClient = await start_engine()
    assert client.status is EngineStatus.READY
    assert client.info.model_name == "fake"


async def test_ten_thousand_outputs_arrive_in_order(start_engine: Any, make_request: Any) -> None:
    engine = await start_engine()
    counting = make_request([900], max_tokens=10_000)
    outputs = await collect(engine.submit([counting]))
    assert tokens(outputs) == [i % 256 for i in range(10_000)]
    assert [o.num_output_tokens for o in outputs] == list(range(1, 10_001))
    assert engine.num_live == 0
    assert engine.stats.steps == 10_000


async def test_many_streams_get_their_own_outputs_only(
    start_engine: Any, make_request: Any
) -> None:
    engine = await start_engine()
    requests = [make_request([i, i + 1, i + 2], max_tokens=30) for i in range(100)]
    streams = [engine.submit(requests[i : i + 2]) for i in range(0, 100, 2)]
    assert engine.num_live == 100
    for i, outputs in enumerate(await asyncio.gather(*map(collect, streams))):
        for request in requests[2 * i : 2 * i + 2]:
            own = [o for o in outputs if o.request_id == request.request_id]
            assert tokens(own) == request.prompt_ids * 10
        assert len(outputs) == 60


async def test_requests_of_one_submit_start_in_the_same_step(
    start_engine: Any, make_request: Any
) -> None:
    engine = await start_engine()
    outputs = await collect(engine.submit([make_request(max_tokens=5) for _ in range(20)]))
    assert len(outputs) == 100
    assert engine.stats.steps == 5


async def test_a_slow_reader_does_not_slow_the_engine(start_engine: Any, make_request: Any) -> None:
    engine = await start_engine()
    unread = engine.submit([make_request([900], max_tokens=3000)])
    read = await collect(engine.submit([make_request([900], max_tokens=1000)]))
    assert len(read) == 1000
    assert len(await collect(unread)) == 3000


async def test_an_abort_frees_the_request_and_its_late_outputs_are_dropped(
    start_engine: Any, make_request: Any
) -> None:
    engine = await start_engine()
    stream = engine.submit([make_request([900], max_tokens=None), make_request(max_tokens=None)])
    await anext(stream)
    stream.abort()
    stream.abort()
    assert await collect(stream) == []
    await until(lambda: engine.num_live == 0)
    await until(lambda: bool(engine.stats.aborts == 2 and engine.stats.num_running == 0))


async def test_an_id_is_free_again_only_when_the_engine_let_go_of_it(
    start_engine: Any, make_request: Any
) -> None:
    engine = await start_engine()
    request = make_request(max_tokens=None)
    stream = engine.submit([request])
    with pytest.raises(InvalidRequest, match="in use") as caught:
        engine.submit([request])
    assert caught.value.param == "request_id"
    stream.abort()
    with pytest.raises(InvalidRequest):
        engine.submit([request])
    await until(lambda: engine.num_live == 0)
    again = make_request(request_id=request.request_id, max_tokens=1)
    assert len(await collect(engine.submit([again]))) == 1


async def test_twice_the_same_id_in_one_submit_raises(start_engine: Any, make_request: Any) -> None:
    engine = await start_engine()
    with pytest.raises(InvalidRequest):
        engine.submit([make_request(request_id="same"), make_request(request_id="same")])
    assert engine.num_live == 0


async def test_all_or_none_of_a_submit_is_refused_when_the_queue_is_full(
    start_engine: Any, make_request: Any
) -> None:
    engine = await start_engine(max_live=3)
    stream = engine.submit([make_request(max_tokens=None) for _ in range(2)])
    with pytest.raises(QueueFull, match="at most 3"):
        engine.submit([make_request(), make_request()])
    assert engine.num_live == 2
    assert len(await collect(engine.submit([make_request()]))) == 4
    stream.abort()
    await until(lambda: engine.num_live == 0)
    engine.submit([make_request() for _ in range(3)]).abort()


@pytest.mark.parametrize("prompt_ids", [[object()], ["\ud800"], [2**70]])
async def test_what_cannot_be_sent_is_the_senders_fault(
    start_engine: Any, make_request: Any, prompt_ids: list[Any]
) -> None:
    engine = await start_engine()
    with pytest.raises(InvalidRequest, match="cannot be sent"):
        engine.submit([make_request(), make_request(prompt_ids)])
    assert engine.num_live == 0
    assert len(await collect(engine.submit([make_request()]))) == 4


async def test_a_request_that_breaks_the_types_gets_an_error_output(
    start_engine: Any, make_request: Any
) -> None:
    engine = await start_engine()
    (output,) = await collect(engine.submit([make_request(["five"])]))
    assert output.finish_reason is FinishReason.ERROR
    assert "prompt_ids" in (output.error or "")


async def test_errors_of_the_core_arrive_as_outputs(start_engine: Any, make_request: Any) -> None:
    engine = await start_engine()
    (output,) = await collect(engine.submit([make_request([904])]))
    assert (output.finish_reason, output.error) == (FinishReason.ERROR, "asked to fail")


async def test_a_connection_that_the_system_refuses_counts_as_a_death(
    start_engine: Any,
    make_request: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = await start_engine()
    loop = asyncio.get_running_loop()
    accept = loop.sock_accept
    refusals = [OSError(errno.EMFILE, "Too many open files")]

    async def refuse_once(listener: socket.socket) -> Any:
        if refusals:
            raise refusals.pop()
        return await accept(listener)

    monkeypatch.setattr(loop, "sock_accept", refuse_once)
    os.kill(engine.pid, signal.SIGKILL)
    await until(lambda: not refusals and engine.status is EngineStatus.READY)
    assert "Too many open files" in caplog.text
    assert len(await collect(engine.submit([make_request()]))) == 4


async def test_resetting_the_cache_changes_the_statistics_of_an_idle_engine(
    start_engine: Any,
) -> None:
    engine = await start_engine()
    await engine.reset_prefix_cache()
    await until(lambda: bool(engine.stats.evicted_blocks == 1))


async def test_a_step_that_fails_costs_its_requests_and_no_restart(
    start_engine: Any, make_request: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    engine = await start_engine()
    pid = engine.pid
    (output,) = await collect(engine.submit([make_request([901])]))
    assert (output.finish_reason, output.error) == (FinishReason.ERROR, STEP_FAILED)
    assert len(await collect(engine.submit([make_request()]))) == 4
    assert engine.pid == pid
    logged = capfd.readouterr().err
    assert "RuntimeError: this step was asked to fail" in logged
    assert "ERROR ramet.runtime.engine.loop: A step of the engine failed." in logged


@pytest.mark.parametrize("order", [902, 903], ids=["failed step that leaks", "sudden exit"])
async def test_a_request_that_ends_the_process_fails_and_the_next_process_serves(
    start_engine: Any, make_request: Any, order: int
) -> None:
    engine = await start_engine()
    pid = engine.pid
    with pytest.raises(EngineDead, match="ended with exit code"):
        await collect(engine.submit([make_request([order])]))
    await until(lambda: bool(engine.status is EngineStatus.READY))
    assert engine.pid != pid
    assert len(await collect(engine.submit([make_request()]))) == 4


async def test_sigkill_in_mid_stream_fails_the_streams_at_once_and_the_engine_comes_back(
    start_engine: Any, make_request: Any
) -> None:
    engine = await start_engine("slow", restarts=RestartPolicy(first_delay=0.3))
    streams = [engine.submit([make_request(max_tokens=None)]) for _ in range(3)]
    for stream in streams:
        await anext(stream)
    pid = engine.pid
    os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    for stream in streams:
        with pytest.raises(EngineDead, match="killed by SIGKILL"):
            await collect(stream)
        stream.abort()
    assert time.monotonic() - killed < 2.0
    assert engine.status is EngineStatus.DEAD
    assert engine.num_live == 0
    assert engine.stats.steps == 0
    with pytest.raises(EngineDead, match="not ready"):
        engine.submit([make_request()])
    with pytest.raises(EngineDead, match="not ready"):
        await engine.reset_prefix_cache()
    await until(lambda: bool(engine.status is EngineStatus.STARTING))
    await until(lambda: bool(engine.status is EngineStatus.READY))
    assert len(await collect(engine.submit([make_request()]))) == 4
    assert not is_running(pid)


async def test_an_engine_that_dies_too_often_stays_dead(
    start_engine: Any, socket_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    policy = RestartPolicy(max_restarts=2, first_delay=0.01)
    engine = await start_engine("once", restarts=policy)
    os.kill(engine.pid, signal.SIGKILL)
    await until(lambda: "is not started again" in caplog.text)
    assert "It died 3 times within 300 seconds" in caplog.text
    assert (engine.status, engine.pid) == (EngineStatus.DEAD, None)
    assert list(socket_root.iterdir()) == []
    await engine.stop()
    assert engine.status.value == "stopped"


def test_pauses_between_restarts_double_up_to_a_limit() -> None:
    policy = RestartPolicy(max_restarts=4, first_delay=1.0, max_delay=3.0)
    assert [policy.delay(i) for i in range(1, 6)] == [1.0, 2.0, 3.0, 3.0, None]


async def test_a_refused_configuration_raises_with_its_parts(
    make_engine: Any, socket_root: Path
) -> None:
    engine: EngineProcess = make_engine("refused")
    with pytest.raises(ConfigError) as caught:
        await engine.start()
    error = caught.value
    assert (error.message, error.param, error.hint) == (
        "too big",
        "max_model_len",
        "Make it smaller.",
    )
    assert (engine.status, engine.pid) == (EngineStatus.DEAD, None)
    assert list(socket_root.iterdir()) == []
    await engine.stop()


async def test_a_process_that_dies_while_it_starts_raises(
    make_engine: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(EngineDead, match="ended with exit code 1"):
        await make_engine("broken").start()
    assert "RuntimeError: broken on purpose" in capfd.readouterr().err


@pytest.mark.parametrize("error", [OSError("no room"), ValueError("a fault")])
async def test_a_process_that_cannot_be_spawned_raises(
    make_engine: Any, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def spawn(*_: object) -> None:
        raise error

    monkeypatch.setattr(Worker, "spawn", spawn)
    engine: EngineProcess = make_engine()
    with pytest.raises(EngineDead):
        await engine.start()
    assert engine.status is EngineStatus.DEAD


async def test_a_worker_that_speaks_nonsense_is_replaced(
    start_engine: Any, make_request: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await start_engine("slow")
    stream = engine.submit([make_request(max_tokens=None)])
    with monkeypatch.context() as patch:
        patch.setattr(engine._worker, "_decoder", msgspec.msgpack.Decoder(int))
        with pytest.raises(EngineDead, match="broken message"):
            await collect(stream)
    await until(lambda: bool(engine.status is EngineStatus.READY))


async def test_stop_gives_running_requests_an_abort_and_leaves_nothing_behind(
    start_engine: Any, make_request: Any, socket_root: Path
) -> None:
    engine = await start_engine("slow")
    (folder,) = socket_root.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    stream = engine.submit([make_request(max_tokens=None)])
    await anext(stream)
    pid = engine.pid
    await engine.stop()
    await engine.stop()
    assert (await collect(stream))[-1].finish_reason is FinishReason.ABORT
    assert (engine.status, engine.num_live) == (EngineStatus.STOPPED, 0)
    assert not is_running(pid)
    assert list(socket_root.iterdir()) == []
    with pytest.raises(EngineDead):
        engine.submit([make_request()])
    with pytest.raises(EngineDead, match="only once"):
        await engine.start()


async def test_a_process_that_does_not_stop_in_time_is_killed(
    start_engine: Any, make_request: Any
) -> None:
    engine = await start_engine()
    pid = engine.pid
    os.kill(pid, signal.SIGSTOP)
    started = time.monotonic()
    await engine.stop(grace=0.2)
    assert time.monotonic() - started < 5.0
    assert not is_running(pid)


async def test_stopping_an_engine_that_starts_ends_the_wait(
    make_engine: Any, socket_root: Path
) -> None:
    engine: EngineProcess = make_engine("endless")
    starting = asyncio.create_task(engine.start())
    await until(lambda: engine.pid is not None)
    pid = engine.pid
    assert pid is not None
    await engine.stop()
    with pytest.raises(EngineDead, match="stopped"):
        await starting
    assert not is_running(pid)
    assert list(socket_root.iterdir()) == []


async def test_cancelling_the_start_stops_the_engine(make_engine: Any, socket_root: Path) -> None:
    engine: EngineProcess = make_engine("endless")
    starting = asyncio.create_task(engine.start())
    await until(lambda: engine.pid is not None)
    pid = engine.pid
    assert pid is not None
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not is_running(pid)
    assert list(socket_root.iterdir()) == []


async def test_an_engine_that_never_started_has_no_info_and_can_be_stopped(
    make_engine: Any, make_request: Any
) -> None:
    engine: EngineProcess = make_engine()
    assert engine.status.value == "starting"
    with pytest.raises(EngineDead):
        _ = engine.info
    with pytest.raises(EngineDead):
        engine.submit([make_request()])
    await engine.stop()
    assert engine.status.value == "stopped"


async def test_signals_to_the_process_group_do_not_end_the_worker(
    start_engine: Any, make_request: Any
) -> None:
    engine = await start_engine()
    os.kill(engine.pid, signal.SIGTERM)
    os.kill(engine.pid, signal.SIGINT)
    assert len(await collect(engine.submit([make_request(max_tokens=500)]))) == 500
    assert os.getpgid(engine.pid) == engine.pid != os.getpgid(0)


async def test_the_worker_shares_its_parents_session_and_writes_from_behind_a_terminal(
    start_engine: Any, make_request: Any
) -> None:
    engine = await start_engine()
    assert os.getsid(engine.pid) == os.getsid(0)
    os.kill(engine.pid, signal.SIGTTOU)
    assert len(await collect(engine.submit([make_request(max_tokens=500)]))) == 500


async def test_the_worker_inherits_no_socket(start_engine: Any, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        os.set_inheritable(listener.fileno(), True)
        engine = await start_engine()
        inode = os.fstat(listener.fileno()).st_ino
        held = [os.stat(path).st_ino for path in Path(f"/proc/{engine.pid}/fd").iterdir()]
    assert inode not in held


ORPHAN = """
import asyncio, pathlib, sys
from ramet.runtime.config import EngineConfig, ModelOptions
from ramet.runtime.engine.process import EngineProcess

async def main():
    config = EngineConfig(model=ModelOptions(model=sys.argv[2]))
    engine = EngineProcess(config, pathlib.Path(sys.argv[1]), core="fake_core:create")
    starting = asyncio.create_task(engine.start())
    while engine.pid is None or (sys.argv[2] == "steady" and not starting.done()):
        await asyncio.sleep(0.01)
    print(engine.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("model", ["steady", "endless"], ids=["idle", "loading"])
async def test_the_worker_ends_with_a_killed_parent(
    fake_core: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    model: str,
) -> None:
    root = tmp_path / "s"
    root.mkdir()
    monkeypatch.setenv("TMPDIR", str(root))
    command = [sys.executable, "-c", ORPHAN, str(tmp_path), model]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.kill()
    await until(lambda: not is_running(pid))
    await until(lambda: list(root.iterdir()) == [])


@pytest.mark.parametrize(
    ("code", "words"),
    [(3, "exit code 3"), (-9, "SIGKILL (often"), (-11, "SIGSEGV"), (-63, "signal 63")],
)
def test_exit_codes_are_told_in_words(code: int, words: str) -> None:
    assert words in describe_exit(code)
