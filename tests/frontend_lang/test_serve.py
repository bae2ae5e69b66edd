"""`ramet serve` hands its flags to the server and its exit code back."""

from __future__ import annotations

import gc
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import ramet.commands.serve as command
import ramet.runtime.engine.spawn as spawning
import ramet.runtime.server.serve as server
from ramet.commands.terminal import Settings
from ramet.runtime.config import ServerConfig
from ramet.runtime.errors import EngineDead

if TYPE_CHECKING:
    from .conftest import Ramet

Process = subprocess.Popen[bytes]


@pytest.fixture
def obtained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the models that the command made sure of; none is downloaded."""
    names: list[str] = []

    def obtain(model: str, settings: Settings) -> None:
        names.append(model)

    monkeypatch.setattr(command, "obtain", obtain)
    return names


def test_flags_reach_the_server_and_its_exit_code_the_shell(
    ramet: Ramet, cache_dir: Path, obtained: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[ServerConfig, Path]] = []

    def serve(config: ServerConfig, *, cache_dir: Path, process: Process) -> int:
        assert obtained == ["some/model"], "the model is here before the server starts"
        seen.append((config, cache_dir))
        return 143

    monkeypatch.setattr(server, "serve", serve)
    flags = ("serve", "some/model", "--port=9", "--max-model-len=auto")
    assert ramet(*flags).code == 143
    [(config, folder)] = seen
    assert folder == cache_dir
    assert config.port == 9
    assert config.engine.model.model == "some/model"
    assert config.engine.model.auto_length


def test_a_server_that_cannot_start_is_a_message(
    ramet: Ramet, obtained: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def serve(config: ServerConfig, *, cache_dir: Path, process: Process) -> int:
        raise EngineDead("The engine died while it loaded.", hint="See the log above.")

    monkeypatch.setattr(server, "serve", serve)
    shown = ramet("serve")
    assert shown.code == 1
    assert shown.err == "error: The engine died while it loaded.\nhint: See the log above.\n"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Process]:
    """The processes that were started for an engine."""
    processes: list[Process] = []
    spawn = spawning.spawn

    def watched(core: str) -> Process:
        processes.append(spawn(core))
        return processes[-1]

    monkeypatch.setattr(spawning, "spawn", watched)
    return processes


def test_the_engines_process_is_there_before_the_model_and_gone_after_the_server(
    ramet: Ramet, started: list[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    def obtain(model: str, settings: Settings) -> None:
        assert started[0].poll() is None

    def serve(config: ServerConfig, *, cache_dir: Path, process: Process) -> int:
        assert process is started[0]
        assert process.poll() is None
        return 0

    monkeypatch.setattr(command, "obtain", obtain)
    monkeypatch.setattr(server, "serve", serve)
    assert ramet("serve").code == 0
    assert [process.returncode for process in started] == [-signal.SIGKILL]
    assert gc.isenabled()


def test_no_process_is_left_of_a_model_that_is_not_here(
    ramet: Ramet, started: list[Process]
) -> None:
    shown = ramet("serve", "./nothing")
    assert (shown.code, shown.err) == (1, "error: There is no file or folder nothing.\n")
    assert [process.returncode for process in started] == [-signal.SIGKILL]


def test_flags_that_cannot_be_start_no_process(ramet: Ramet, started: list[Process]) -> None:
    assert ramet("serve", "--port=70000").code == 1
    assert started == []
