"""Many branching programs at once in one process: no threads, bounded memory, right results."""

from __future__ import annotations

import asyncio
import gc
import threading
import tracemalloc
import zlib
from typing import Any

import pytest

import ramet as sgl
from ramet import Runtime

BRANCHES = 3
# Measured: 10 and 14 kB at the peak, without and with an engine; 1 kB left, the results among it.
MAX_BYTES_PER_STATE = 24_000
MAX_BYTES_LEFT_PER_STATE = 6_000


@sgl.function
def branching(s: sgl.State, number: int) -> None:
    s += f"Item {number}: " + sgl.gen("first", max_tokens=4, ignore_eos=True, temperature=0)
    forks = s.fork(BRANCHES)
    forks += [f" branch {index}" for index in range(BRANCHES)]
    forks += sgl.gen("part", max_tokens=3, ignore_eos=True, temperature=0)
    forks.join()
    s["all"] = [s["first"], *s["part"]]


class Peak:
    """Watches threads and memory while programs run."""

    def __init__(self) -> None:
        self.num_threads = 0
        self.num_bytes = 0

    async def watch(self) -> None:
        while True:
            self.num_threads = max(self.num_threads, threading.active_count())
            self.num_bytes = max(self.num_bytes, tracemalloc.get_traced_memory()[0])
            await asyncio.sleep(0.02)


async def run_all(backend: Any, num_programs: int, peak: Peak) -> list[Any]:
    watcher = asyncio.ensure_future(peak.watch())
    try:
        calls = [branching.arun(number=i, backend=backend) for i in range(num_programs)]
        return list(await asyncio.gather(*calls))
    finally:
        watcher.cancel()


async def measured(backend: Any, num_programs: int) -> tuple[list[Any], Peak, int]:
    """All programs' states, what was seen meanwhile, and bytes that the whole run left behind."""
    await branching.arun(number=0, backend=backend)
    gc.collect()
    threads = threading.active_count()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        peak = Peak()
        states = await run_all(backend, num_programs, peak)
        assert peak.num_threads <= threads + 1  # The engine may start one that walks grammars.
        results = [state["all"] for state in states]
        peak.num_bytes -= before
        del states
        await asyncio.sleep(0.05)
        gc.collect()
        left = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    return results, peak, left


MANY = pytest.mark.parametrize("num_programs", [150, pytest.param(1000, marks=pytest.mark.slow)])


@MANY
async def test_programs_that_all_wait_take_kilobytes_each(backend: Any, num_programs: int) -> None:
    def reply(prompt: str) -> str:
        return f"{zlib.crc32(prompt.encode()) % 1000:03}"

    backend.reply, backend.delay = reply, 1.0
    results, peak, _ = await measured(backend, num_programs)
    assert backend.most_live > num_programs, "they were not live at the same time"
    for number, result in enumerate(results):
        stem = f"Item {number}: "
        stem += reply(stem)
        parts = [reply(f"{stem} branch {index}") for index in range(BRANCHES)]
        assert result == [stem[-3:], *parts]
    assert peak.num_bytes < MAX_BYTES_PER_STATE * num_programs * (1 + BRANCHES)


@MANY
async def test_programs_on_an_engine_give_what_each_gives_alone(
    runtime: Runtime, num_programs: int
) -> None:
    results, peak, left = await measured(runtime, num_programs)
    num_states = num_programs * (1 + BRANCHES)
    assert peak.num_bytes < MAX_BYTES_PER_STATE * num_states
    assert left < MAX_BYTES_LEFT_PER_STATE * num_states
    runtime.flush_cache()
    for number in range(0, num_programs, 50):
        alone = await branching.arun(number=number, backend=runtime)
        assert results[number] == alone["all"]
    stats = runtime.engine.stats
    assert stats.num_running == stats.num_waiting == stats.blocks_private == 0
