"""Waiting for room in an engine's queue, so that a program with more requests than fit is no error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Places:
    """So many places, given out in the order in which they are asked for. For one event loop.

    Args:
        num_places: in all.
    """

    def __init__(self, num_places: int) -> None:
        self._num_places = num_places
        self._free = asyncio.Semaphore(num_places)
        # Whoever wants several collects them alone: two that hold a part each would wait for ever.
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def take(self, count: int) -> AsyncIterator[None]:
        """Hold `count` places, or all of them if that is more."""
        num_taken = 0
        try:
            async with self._turn:
                while num_taken < min(count, self._num_places):
                    await self._free.acquire()
                    num_taken += 1
            yield
        finally:
            for _ in range(num_taken):
                self._free.release()
