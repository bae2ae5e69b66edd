"""The whole program: start, ready, drain, second signal, death of the engine, and what is left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ramet.runtime.engine.messages import EngineInfo
from ramet.runtime.errors import ConfigError
from ramet.runtime.server.serve import listen, ready_line

pytestmark = pytest.mark.timeout(120)

LIMIT = 30.0
FAKE_CORE = Path(__file__).parent.parent / "engine"
COUNT = 900  # the fake core's order for an output of 0, 1, 2, …

PROGRAM = """
import logging, sys
from pathlib import Path

from tokenizers import Tokenizer as FastTokenizer, decoders, models, pre_tokenizers

from ramet.runtime.config import EngineConfig, ModelOptions, ServerConfig
from ramet.runtime.engine.process import EngineProcess, RestartPolicy
from ramet.runtime.errors import RametError
from ramet.runtime.server.model import ServedModel
from ramet.runtime.server.serve import listen, run_server
from ramet.runtime.sources.base import TokenizerFiles
from ramet.runtime.text.chat_template import ChatTemplate
from ramet.runtime.text.tokenizer import Tokenizer

model, port, shutdown_timeout, folder = sys.argv[1:]
logging.basicConfig(level="INFO")
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
fast = FastTokenizer(models.BPE({**{c: i for i, c in enumerate(alphabet)},
                                 **{f"<{i}>": i for i in range(256, 1000)}}, []))
fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
fast.decoder = decoders.ByteLevel()
tokenizer = Tokenizer(TokenizerFiles(fast, {}, None, frozenset()))
config = ServerConfig(
    engine=EngineConfig(model=ModelOptions(model=model)),
    port=int(port),
    shutdown_timeout=float(shutdown_timeout),
)
served = ServedModel(name="fake", tokenizer=tokenizer, chat_template=ChatTemplate(tokenizer),
                     tokenizer_config={}, version="1")
client = EngineProcess(config.engine, Path(folder), core="fake_core:create",
                       restarts=RestartPolicy(first_delay=0.2))
try:
    with listen(config.host, config.port) as listener:
        code = run_server(config, listener, served, client)
except RametError as error:
    print(error, file=sys.stderr)
    code = 1
raise SystemExit(code)
"""


class Program:
    """A running server."""

    def __init__(self, model: str, shutdown_timeout: float, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.sockets = tmp_path / "s"
        self.sockets.mkdir()
        environment = {**os.environ, "PYTHONPATH": str(FAKE_CORE), "TMPDIR": str(self.sockets)}
        arguments = [model, str(self.port), str(shutdown_timeout), str(tmp_path)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_ready(self) -> str:
        """The line that says so."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def status(self, path: str) -> int:
        return httpx.get(self.url + path, timeout=5).status_code

    def wait_for(self, path: str, status: int) -> None:
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            try:
                if self.status(path) == status:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.02)
        raise AssertionError(f"{path} never answered {status}")

    def complete(self, **fields: Any) -> httpx.Response:
        return httpx.post(self.url + "/v1/completions", json=body(**fields), timeout=LIMIT)

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def end(self) -> tuple[int, str]:
        """Exit code and stderr, once it has ended, with nothing left behind."""
        _, stderr = self.process.communicate(timeout=LIMIT)
        deadline = time.monotonic() + LIMIT
        while self.engine_pids():
            assert time.monotonic() < deadline, "the engine's process outlived the server"
            time.sleep(0.02)
        assert list(self.sockets.iterdir()) == []
        return self.process.returncode, stderr

    def engine_pids(self) -> list[int]:
        """Workers whose environment names this program's own folder."""
        mark = f"TMPDIR={self.sockets}".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                is_worker = b"runtime.engine.worker" in (entry / "cmdline").read_bytes()
                if is_worker and mark in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
        return found


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "fake", "prompt": [COUNT], "max_tokens": 5, "ignore_eos": True, **fields}


def events(lines: Iterator[str]) -> list[str]:
    return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Starts servers, and makes sure that none outlives the test."""
    programs: list[Program] = []

    def run(model: str = "steady", shutdown_timeout: float = 20.0) -> Program:
        programs.append(Program(model, shutdown_timeout, tmp_path))
        return programs[-1]

    yield run
    for program in programs:
        if program.process.poll() is None:
            program.process.kill()
        program.process.communicate(timeout=LIMIT)


def test_it_says_where_it_serves_and_sigterm_ends_it_with_exit_code_0(
    start: Callable[..., Program],
) -> None:
    program = start()
    line = program.wait_ready()
    assert line.startswith(f"Serving fake at {program.url} (context 50,000 tokens; ")
    assert "KV cache 16,000 tokens, room for 0 requests of full length" in line
    assert program.status("/ready") == 200
    answer = program.complete()
    assert answer.json()["usage"]["completion_tokens"] == 5, answer.text
    program.signal()
    code, stderr = program.end()
    assert code == 0
    assert "Traceback" not in stderr


def test_http_answers_while_the_engine_loads_and_a_signal_ends_that_too(
    start: Callable[..., Program],
) -> None:
    program = start("endless")
    program.wait_for("/health", 200)
    assert program.status("/ready") == 503
    answer = program.complete()
    assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
    program.signal(signal.SIGINT)
    code, stderr = program.end()
    assert code == 0
    assert "Traceback" not in stderr


def test_draining_finishes_what_runs_and_refuses_what_is_new(
    start: Callable[..., Program],
) -> None:
    program = start("slow")
    program.wait_ready()
    request = body(stream=True, max_tokens=60)
    with httpx.stream(
        "POST", program.url + "/v1/completions", json=request, timeout=LIMIT
    ) as stream:
        lines = stream.iter_lines()
        next(lines)
        program.signal()
        program.wait_for("/ready", 503)
        assert program.complete().status_code == 503
        received = events(lines)
    assert received[-1] == "[DONE]"
    assert json.loads(received[-2])["choices"][0]["finish_reason"] == "length"
    assert program.end()[0] == 0


def test_what_does_not_finish_in_time_is_aborted(start: Callable[..., Program]) -> None:
    program = start("slow", shutdown_timeout=0.3)
    program.wait_ready()
    request = body(stream=True, max_tokens=40_000)
    with httpx.stream(
        "POST", program.url + "/v1/completions", json=request, timeout=LIMIT
    ) as stream:
        lines = stream.iter_lines()
        next(lines)
        program.signal()
        received = events(lines)
    assert received[-1] == "[DONE]"
    assert "error" in json.loads(received[-2])
    code, stderr = program.end()
    assert code == 0
    assert "did not finish in time and are aborted: 1." in stderr


def test_a_second_signal_ends_it_at_once(start: Callable[..., Program]) -> None:
    program = start("slow", shutdown_timeout=100.0)
    program.wait_ready()
    request = body(stream=True, max_tokens=40_000)
    with httpx.stream(
        "POST", program.url + "/v1/completions", json=request, timeout=LIMIT
    ) as stream:
        lines = stream.iter_lines()  # Kept: its end would close the stream.
        next(lines)
        program.signal()
        program.wait_for("/ready", 503)
        signalled = time.monotonic()
        program.signal()
        code, stderr = program.end()
    assert time.monotonic() - signalled < 10.0
    assert code == 128 + signal.SIGTERM
    assert "Traceback" not in stderr


def test_http_stays_up_when_the_engine_dies_and_serves_again(
    start: Callable[..., Program],
) -> None:
    program = start("slow")
    program.wait_ready()
    (pid,) = program.engine_pids()
    request = body(stream=True, max_tokens=40_000)
    with httpx.stream(
        "POST", program.url + "/v1/completions", json=request, timeout=LIMIT
    ) as stream:
        lines = stream.iter_lines()
        next(lines)
        os.kill(pid, signal.SIGKILL)
        received = events(lines)
    assert "error" in json.loads(received[-2])
    assert program.status("/version") == 200
    program.wait_for("/ready", 200)
    assert program.complete().json()["usage"]["completion_tokens"] == 5
    program.signal()
    code, stderr = program.end()
    assert code == 0
    assert "was killed by SIGKILL" in stderr


@pytest.mark.parametrize(
    ("model", "words"),
    [("refused", "too big Make it smaller."), ("broken", "ended with exit code 1")],
)
def test_an_engine_that_cannot_start_ends_the_program(
    start: Callable[..., Program], model: str, words: str
) -> None:
    code, stderr = start(model).end()
    assert code == 1
    assert words in stderr


SERVE = """
import sys
from pathlib import Path
from ramet.runtime.config import CacheConfig, EngineConfig, ModelOptions, ServerConfig
from ramet.runtime.server.serve import serve

engine = EngineConfig(model=ModelOptions(model=sys.argv[1], num_threads=1),
                      cache=CacheConfig(kv_cache_memory=1 << 20))
raise SystemExit(serve(ServerConfig(engine=engine, port=0), cache_dir=Path(sys.argv[2])))
"""


def test_a_model_folder_is_served_on_a_free_port(tiny_folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SERVE, str(tiny_folder), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            url = line.split(" at ")[1].split(" ")[0]
            messages = [{"role": "user", "content": "hi"}]
            answer = httpx.post(
                url + "/v1/chat/completions",
                json={"model": str(tiny_folder), "messages": messages, "max_tokens": 3},
                timeout=LIMIT,
            )
            assert answer.status_code == 200, answer.text
            assert 1 <= answer.json()["usage"]["completion_tokens"] <= 3
            process.send_signal(signal.SIGTERM)
            assert process.wait(LIMIT) == 0
        finally:
            process.kill()


def test_a_port_that_is_taken_is_told() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match=f"Port {port} on 127.0.0.1 is in use") as caught:
            listen("127.0.0.1", port)
        assert caught.value.hint is not None
        assert "--port" in caught.value.hint


@pytest.mark.parametrize(("host", "words"), [("::g", "not known"), ("192.0.2.1", "Cannot listen")])
def test_an_address_that_is_not_ours_is_told(host: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        listen(host, 0)


def engine_info(
    num_blocks: int = 513, quantization: str | None = None, kv_cache_dtype: str = "float32"
) -> EngineInfo:
    return EngineInfo(
        model_name="m",
        max_model_len=8192,
        vocab_size=10,
        num_blocks=num_blocks,
        block_size=16,
        dtype="float32",
        quantization=quantization,
        kv_cache_dtype=kv_cache_dtype,
        device="cpu",
        kernels="reference",
        eos_token_ids=(2,),
        weight_bytes=1,
        kv_cache_bytes=1,
        load_seconds=1.25,
    )


@pytest.mark.parametrize(
    ("host", "num_blocks", "expected"),
    [
        (
            "127.0.0.1",
            700,
            "at http://127.0.0.1:80 (context 8,192 tokens; KV cache 11,200 tokens, ",
        ),
        ("::1", 700, "at http://[::1]:80 "),
        ("::1", 513, "room for 1 request of full length"),
        ("::1", 1026, "room for 2 requests of full length"),
        ("::1", 1025, "room for 1 request of full length"),
    ],
)
def test_the_ready_line_tells_where_and_how_much(host: str, num_blocks: int, expected: str) -> None:
    assert expected in ready_line("m", (host, 80), engine_info(num_blocks=num_blocks))


def test_the_ready_line_tells_the_precision() -> None:
    assert "; float32 on cpu" in ready_line("m", ("::1", 80), engine_info())
    quantized = ready_line("m", ("::1", 80), engine_info(quantization="int4"))
    assert "; int4 weights, float32 on cpu" in quantized
    assert "KV cache 8,208 tokens, " in quantized
    small = ready_line("m", ("::1", 80), engine_info(kv_cache_dtype="int8"))
    assert "KV cache 8,208 tokens of int8, " in small
