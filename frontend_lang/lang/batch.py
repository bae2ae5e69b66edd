"""Many runs of one program, so many at once, in order. Knows nothing of what a run is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from functools import partial
from typing import Any, TypeVar

from .errors import UsageError
from .waiting import run_bodies

T = TypeVar("T")

DEFAULT_CONCURRENCY = 256


def run_batch(
    run: Callable[[dict[str, Any]], T],
    calls: Sequence[dict[str, Any]],
    *,
    num_threads: int | str,
    progress_bar: bool,
    generator_style: bool,
) -> list[T] | Generator[T, None, None]:
    """Results of all calls, in their order; see `Function.run_batch`."""
    limit = DEFAULT_CONCURRENCY if num_threads == "auto" else num_threads
    if not isinstance(limit, int) or limit < 1:
        raise UsageError(f'num_threads must be "auto" or at least 1, not {num_threads!r}.')
    results = _in_order([partial(run, call) for call in calls], limit)
    if progress_bar:
        results = _with_progress(results, len(calls))
    return results if generator_style else list(results)


def _in_order(functions: Sequence[Callable[[], T]], limit: int) -> Generator[T, None, None]:
    done: dict[int, T] = {}
    wanted = 0
    runs = run_bodies(functions, limit)
    try:
        for index, outcome in runs:
            done[index] = outcome.result()
            while wanted in done:
                yield done.pop(wanted)
                wanted += 1
    finally:
        runs.close()


def _with_progress(results: Generator[T, None, None], total: int) -> Generator[T, None, None]:
    from rich.console import Console
    from rich.progress import track

    yield from track(results, total=total, console=Console(stderr=True))


async def arun_batch(
    run: Callable[[dict[str, Any]], Awaitable[T]],
    calls: Sequence[dict[str, Any]],
    concurrency: int,
) -> list[T]:
    """Results of all calls, in their order; the first failure cancels the others."""
    if concurrency < 1:
        raise UsageError(f"concurrency must be at least 1, not {concurrency}.")
    gate = asyncio.Semaphore(concurrency)

    async def one(call: dict[str, Any]) -> T:
        async with gate:
            return await run(call)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(call)) for call in calls]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
