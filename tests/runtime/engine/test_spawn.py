"""The engine's process before it knows what to load."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ramet.runtime.config import EngineConfig, ModelOptions
from ramet.runtime.engine.client import EngineStatus
from ramet.runtime.engine.process import EngineProcess, RestartPolicy
from ramet.runtime.engine.spawn import end, spawn, spawned
from ramet.runtime.errors import EngineDead

LIMIT = 40.0
CORE = "fake_core:create"
pytestmark = pytest.mark.timeout(120)


def engine_in(process: subprocess.Popen[bytes], folder: Path) -> EngineProcess:
    config = EngineConfig(model=ModelOptions(model="steady"))
    restarts = RestartPolicy(first_delay=0.01)
    return EngineProcess(config, folder, core=CORE, restarts=restarts, process=process)


async def test_an_engine_runs_in_the_process_that_was_there_before_it(
    fake_core: Any, tmp_path: Path
) -> None:
    with spawned(CORE) as process:
        engine = engine_in(process, tmp_path)
        await engine.start()
        assert engine.pid == process.pid
        await engine.stop()
        assert process.wait(LIMIT) == 0


async def test_an_engine_that_dies_starts_again_in_a_process_of_its_own(
    fake_core: Any, tmp_path: Path
) -> None:
    with spawned(CORE) as process:
        engine = engine_in(process, tmp_path)
        await engine.start()
        process.kill()
        async with asyncio.timeout(LIMIT):
            while engine.status is not EngineStatus.READY or engine.pid == process.pid:
                await asyncio.sleep(0.01)
        await engine.stop()


async def test_a_process_that_ended_before_the_engine_started_is_told(
    fake_core: Any, tmp_path: Path
) -> None:
    process = spawn(CORE)
    process.kill()
    process.wait()
    with pytest.raises(EngineDead, match="The engine process was killed by SIGKILL"):
        await engine_in(process, tmp_path).start()


def test_a_process_that_hears_nothing_ends_in_silence_with_its_input() -> None:
    command = [sys.executable, "-m", "ramet.runtime.engine.worker", "json"]
    ended = subprocess.run(command, input=b"", capture_output=True, timeout=LIMIT)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, b"", b"")


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that the module `endless_import` makes when it is imported, which does not end."""
    begun = tmp_path / "begun"
    source = f"import pathlib, time\npathlib.Path({str(begun)!r}).touch()\ntime.sleep(600)\n"
    (tmp_path / "endless_import.py").write_text(source)
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if path))
    return begun


def wait_for(begun: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + LIMIT
    while not begun.exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)


def test_a_process_that_still_imports_ends_with_its_input(begun: Path) -> None:
    with spawned("endless_import:create") as process:
        wait_for(begun, process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(LIMIT) == 1


def test_a_terminal_does_not_stop_a_process_that_does_not_import_yet(begun: Path) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with spawned("endless_import:create") as process:
        os.kill(process.pid, signal.SIGTTOU)
        wait_for(begun, process)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_a_process_is_gone_after_the_block_and_may_be_ended_twice(fake_core: Any) -> None:
    with spawned(CORE) as process:
        assert process.poll() is None
    end(process)
    assert process.returncode == -signal.SIGKILL


async def test_a_core_that_cannot_be_imported_is_told_when_it_is_loaded(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    engine = EngineProcess(EngineConfig(), tmp_path, core="no_such_module:create")
    with pytest.raises(EngineDead, match="ended with exit code 1"):
        await engine.start()
    assert "No module named 'no_such_module'" in capfd.readouterr().err
