"""The outputs of requests that were submitted together, on their way to one asyncio consumer.

Knows nothing of where outputs come from; process.py feeds it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from ..errors import EngineDead
from ..request import RequestOutput


class RequestStream:
    """An `OutputStream`: async iteration over outputs in the order in which they arrived.

    Outputs that are not read yet wait in memory; requests' `max_tokens` bound them. All methods are
    called on one event loop.

    Args:
        request_ids: whose outputs the stream carries.
        abort: called with the ids that have not finished, at most once.
    """

    def __init__(self, request_ids: Iterable[str], abort: Callable[[list[str]], None]) -> None:
        self._unfinished = dict.fromkeys(request_ids)
        self._abort = abort
        self._outputs: deque[RequestOutput] = deque()
        self._failure: str | None = None
        self._changed = asyncio.Event()

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> RequestOutput:
        while not self._outputs:
            if self._failure is not None:
                raise EngineDead(self._failure)
            if not self._unfinished:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return self._outputs.popleft()

    def deliver(self, output: RequestOutput) -> None:
        """Add an output."""
        if output.finished:
            self._unfinished.pop(output.request_id, None)
        self._outputs.append(output)
        self._changed.set()

    def fail(self, reason: str) -> None:
        """Raise EngineDead in the consumer once it has read what is there."""
        if self._unfinished:
            self._failure = reason
            self._unfinished.clear()
            self._changed.set()

    def abort(self) -> None:
        """Abort what has not finished and end the iteration. Safe to call twice."""
        request_ids = list(self._unfinished)
        self._unfinished.clear()
        self._outputs.clear()
        self._changed.set()
        if request_ids:
            self._abort(request_ids)
