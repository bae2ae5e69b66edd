"""The command line, run in this process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ramet.cli import main


@dataclass(frozen=True)
class Outcome:
    """What one call of the command line did."""

    code: int
    out: str
    err: str


Ramet = Callable[..., Outcome]


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty model store."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("RAMET_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def ramet(
    cache_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Ramet]:
    """Run `ramet` with some arguments."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("RAMET_LOG_LEVEL", raising=False)
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level

    def run(*argv: str) -> Outcome:
        code = main(argv)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    yield run
    root.handlers[:] = handlers
    root.setLevel(level)
