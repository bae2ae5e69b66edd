"""Finding a model, and downloading it first if need be, with progress on the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TransferSpeedColumn,
)

from .terminal import Settings

if TYPE_CHECKING:
    from ramet.runtime.sources.base import ModelSource
    from ramet.runtime.sources.progress import OnProgress


def obtain(model: str, settings: Settings) -> ModelSource:
    """The model of that name or path, downloaded if it is known and not here yet.

    Raises:
        ModelNotFound: nothing answers to that name.
        ConfigError: it is no model, or the download failed.
    """
    from ramet.runtime.sources.resolve import resolve
    from ramet.runtime.sources.store import ModelStore

    with shown_progress() as on_progress:
        store = ModelStore(settings.cache_dir)
        return resolve(model, store, pull_missing=True, on_progress=on_progress)


@contextmanager
def shown_progress(console: Console | None = None) -> Iterator[OnProgress]:
    """Show what a download does: a bar in a terminal, a line per activity elsewhere.

    Nothing is shown for what takes no time, since nothing is shown before the first report.
    """
    console = console or Console(stderr=True)
    if console.is_terminal:
        with _bar(console) as report:
            yield report
    else:
        yield _lines(console)


@contextmanager
def _bar(console: Console) -> Iterator[OnProgress]:
    from ramet.runtime.sources.progress import Progress as Report

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        task = None

        def report(progress: Report) -> None:
            nonlocal task
            if task is None:
                task = bars.add_task(progress.activity, total=progress.total_bytes)
            bars.update(
                task,
                description=progress.activity,
                completed=progress.num_bytes,
                total=progress.total_bytes,
            )

        yield report


def _lines(console: Console) -> OnProgress:
    from ramet.runtime.sources.progress import Progress as Report

    last = ""

    def report(progress: Report) -> None:
        nonlocal last
        if progress.activity != last:
            last = progress.activity
            console.print(progress.activity, markup=False, highlight=False, soft_wrap=True)

    return report
