"""The outputs of requests that were submitted together, on their way to one asyncio consumer.

Knows nothing of where outputs come from; process.py feeds it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable

from ..errors import EngineDead
from ..request import RequestOutput

_MOST_UNREAD = 256


class RequestStream:
    """An `OutputStream`: async iteration over outputs in the order in which they arrived.

    Outputs that are not read yet wait in memory; requests' `max_tokens` bound them. All methods are
    called on one event loop.

    Args:
        request_ids: whose outputs the stream carries.
        abort: called with the ids that have not finished, at most once.
        is_patient: the consumer is woken when a request has finished, or when many outputs wait, not by
            each of them.
    """

    def __init__(
        self,
        request_ids: Iterable[str],
        abort: Callable[[list[str]], None],
        *,
        is_patient: bool = False,
    ) -> None:
        self.arrived = 0.0
        self._unfinished = dict.fromkeys(request_ids)
        self._abort = abort
        self._most_unread = _MOST_UNREAD if is_patient else 1
        self._outputs: deque[tuple[RequestOutput, float]] = deque()
        self._failure: str | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def has_unread(self) -> bool:
        """Whether an output waits to be yielded."""
        return bool(self._outputs)

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> RequestOutput:
        while not self._outputs:
            if self._failure is not None:
                raise EngineDead(self._failure)
            if not self._unfinished:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        output, self.arrived = self._outputs.popleft()
        return output

    def deliver(self, output: RequestOutput) -> None:
        """Add an output."""
        self._outputs.append((output, time.perf_counter()))
        if output.finish_reason is not None:
            self._unfinished.pop(output.request_id, None)
            self._wake()
        elif len(self._outputs) >= self._most_unread:
            self._wake()

    def fail(self, reason: str) -> None:
        """Raise EngineDead in the consumer once it has read what is there."""
        if self._unfinished:
            self._failure = reason
            self._unfinished.clear()
            self._wake()

    def abort(self) -> list[tuple[RequestOutput, float]]:
        """Abort what has not finished and end the iteration. Safe to call twice.

        Returns:
            The outputs that had come and were not read, and when each had.
        """
        request_ids = list(self._unfinished)
        self._unfinished.clear()
        unread = list(self._outputs)
        self._outputs.clear()
        self._wake()
        if request_ids:
            self._abort(request_ids)
        return unread

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
