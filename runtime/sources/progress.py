"""How a download tells what it is doing; who asked for it decides how that looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..periodic import calling_every

POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a pull is.

    Attributes:
        activity: what is being done, as a phrase: "Downloading model.safetensors".
        num_bytes: how much of it is done; bytes that a former attempt left count.
        total_bytes: how much there is, or None if that is not known.
    """

    activity: str
    num_bytes: int = 0
    total_bytes: int | None = None


OnProgress = Callable[[Progress], None]
"""Called often, from any thread but from one at a time; must return quickly."""


def silent(progress: Progress) -> None:
    """Shows nothing."""


@contextmanager
def watched_size(
    folder: Path, activity: str, total_bytes: int, on_progress: OnProgress
) -> Iterator[None]:
    """Report how much a folder holds while somebody else fills it.

    Sizes on disk are what every downloader agrees on; their own progress bars differ with their
    versions. Reports from a thread of its own, which has ended when the block ends.
    """

    def report() -> None:
        try:
            size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        except FileNotFoundError:
            return  # renamed while it was looked at; the next report will see it
        on_progress(Progress(activity, min(size, total_bytes), total_bytes))

    report()
    with calling_every(POLL_SECONDS, report, name="ramet-progress"):
        yield
    report()
