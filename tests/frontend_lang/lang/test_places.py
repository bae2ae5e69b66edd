"""Places in a queue: never more than there are, and nobody waits for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import ramet as sgl
from ramet import Runtime
from ramet.lang.backends.places import Places


async def test_no_more_are_taken_than_there_are_and_all_get_theirs() -> None:
    places, taken, most = Places(4), 0, 0

    async def work(count: int) -> None:
        nonlocal taken, most
        async with places.take(count):
            taken += min(count, 4)
            most = max(most, taken)
            await asyncio.sleep(0)
            taken -= min(count, 4)

    await asyncio.gather(*[work(count) for count in (1, 3, 3, 2, 9, 4, 1, 2, 3)])
    assert most == 4 and taken == 0


async def test_whoever_leaves_while_waiting_gives_back_what_it_had() -> None:
    places = Places(3)
    async with places.take(2):
        waiting = asyncio.ensure_future(places.take(3).__aenter__())
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    async with places.take(3):
        pass


async def test_programs_with_more_requests_than_an_engine_holds_wait_their_turn(
    tiny_folder: Any,
) -> None:
    @sgl.function
    def program(s: sgl.State, number: int) -> None:
        s += f"{number}: "
        forks = s.fork(3)
        forks += sgl.gen("x", n=2, max_tokens=2)
        forks.join()
        s += sgl.select("y", [" a", " b", " c"])

    options = {"max_num_seqs": 4, "max_queue_len": 4, "kv_cache_memory": 2**20}
    with Runtime(tiny_folder, **options) as small:
        runs = [program.arun(number=i, backend=small) for i in range(12)]
        states = await asyncio.gather(*runs)
    assert all(len(state["x"]) == 3 and state["y"] for state in states)
