"""Reports of how much a folder holds."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ramet.runtime.sources import progress
from ramet.runtime.sources.progress import Progress, watched_size


def test_size_is_reported_while_it_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "POLL_SECONDS", 0.005)
    seen: list[int] = []
    half = threading.Event()

    def note(report: Progress) -> None:
        assert (report.activity, report.total_bytes) == ("Filling", 100)
        seen.append(report.num_bytes)
        if report.num_bytes == 50:
            half.set()

    with watched_size(tmp_path, "Filling", 100, note):
        (tmp_path / "sub").mkdir()
        (tmp_path / "sub" / "a").write_bytes(bytes(50))
        assert half.wait(10)
        (tmp_path / "b").write_bytes(bytes(80))
    assert seen[0] == 0 and seen[-1] == 100  # never more than the whole


def test_reporting_ends_with_the_block_even_if_it_fails(tmp_path: Path) -> None:
    with pytest.raises(KeyError), watched_size(tmp_path, "x", 1, lambda report: None):
        raise KeyError("x")
    assert all(thread.name != "ramet-progress" for thread in threading.enumerate())
