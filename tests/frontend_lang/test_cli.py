"""The command line's own behaviour: exit codes, errors, environment, plug-ins."""

from __future__ import annotations

import logging
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from ramet.cli import build_app, read_settings
from ramet.commands.terminal import Settings

if TYPE_CHECKING:
    from .conftest import Ramet

COMMANDS = ("serve", "chat", "pull", "list", "rm", "plan", "version")


def test_help_lists_every_command(ramet: Ramet) -> None:
    shown = ramet("--help")
    assert shown.code == 0
    assert all(command in shown.out for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(ramet: Ramet, command: str) -> None:
    shown = ramet(command, "--help")
    assert (shown.code, shown.err) == (0, "")
    assert f"ramet {command}" in shown.out


def test_version_as_option_and_as_command(ramet: Ramet) -> None:
    short, long = ramet("--version").out, ramet("version").out
    assert long.startswith(short)
    assert "torch" in long


@pytest.mark.parametrize(
    "argv",
    [["--nonsense"], ["nonsense"], ["serve", "--nonsense"], ["serve", "--port", "x"], ["rm"]],
)
def test_misuse_exits_with_2_and_says_why(ramet: Ramet, argv: list[str]) -> None:
    shown = ramet(*argv)
    assert shown.code == 2
    assert "Error" in shown.err


def test_errors_are_a_message_and_a_hint_without_traceback(ramet: Ramet) -> None:
    shown = ramet("serve", "--max-model-len", "3x")
    assert shown.code == 1
    assert shown.out == ""
    assert shown.err.splitlines() == [
        "error: '3x' is not a number of tokens.",
        "hint: Write 4096, 32k (32,000), 32K (32,768) or auto.",
    ]


def test_an_unknown_model_is_an_error_with_a_hint(ramet: Ramet) -> None:
    shown = ramet("serve", "smollm2-135m-instruc")
    assert shown.code == 1
    assert "smollm2-135m-instruct" in shown.err


def test_a_cache_folder_that_is_a_file_is_an_error(ramet: Ramet, cache_dir: Path) -> None:
    cache_dir.write_text("")
    shown = ramet("pull")
    assert shown.code == 1
    assert shown.err.startswith(f"error: {cache_dir}")


def test_unknown_log_level_is_an_error(ramet: Ramet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMET_LOG_LEVEL", "loud")
    shown = ramet("list")
    assert shown.code == 1
    assert "RAMET_LOG_LEVEL is 'loud'" in shown.err


def test_settings_come_from_two_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMET_LOG_LEVEL", "DEBUG")
    monkeypatch.setenv("RAMET_CACHE_DIR", "/somewhere")
    assert read_settings() == Settings(cache_dir=Path("/somewhere"), log_level="debug")
    monkeypatch.delenv("RAMET_LOG_LEVEL")
    monkeypatch.delenv("RAMET_CACHE_DIR")
    assert read_settings() == Settings(cache_dir=Path.home() / ".cache/ramet", log_level="info")


def test_log_level_reaches_the_root_logger(ramet: Ramet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMET_LOG_LEVEL", "warning")
    ramet("version")
    assert logging.getLogger().level == logging.WARNING


def test_plugged_in_commands_appear(tmp_path: Path) -> None:
    plugin = EntryPoint("bench", "ramet.bench.cli:app", "ramet.commands")
    app = build_app(Settings(cache_dir=tmp_path, log_level="info"), [plugin])
    shown = CliRunner().invoke(app, ["bench", "serve", "--help"])
    assert shown.exit_code == 0
    assert "--preset" in shown.output


def test_a_broken_plug_in_is_reported_and_harms_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = EntryPoint("broken", "no_such_module:app", "ramet.commands")
    app = build_app(Settings(cache_dir=tmp_path, log_level="info"), [plugin])
    assert "'broken'" in capsys.readouterr().err
    assert CliRunner().invoke(app, ["version"]).exit_code == 0


def test_help_and_version_do_not_load_torch() -> None:
    code = (
        "import sys; from ramet.cli import main; code = main(['serve', '--help']); "
        "assert code == 0 and not {'torch', 'transformers', 'fastapi'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True)
