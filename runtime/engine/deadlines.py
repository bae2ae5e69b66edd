"""Which requests have passed their time limit. Knows no clock: whoever asks says what time it is."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from ..request import Request, RequestStatus

_MIN_PRUNED = 64


class Deadlines:
    """Time limits of live requests, soonest first.

    Requests end long before generous limits pass. What has ended is forgotten whenever the entries
    have doubled, so at most about half of them are of no use, at O(log n) per request.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []
        self._prune_at = _MIN_PRUNED

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, request: Request) -> None:
        """Watch a request, if it has a deadline."""
        if request.deadline is None:
            return
        if len(self._heap) >= self._prune_at:
            self._heap = [entry for entry in self._heap if _is_live(entry[2])]
            heapq.heapify(self._heap)
            self._prune_at = max(_MIN_PRUNED, 2 * len(self._heap))
        heapq.heappush(self._heap, (request.deadline, request.arrival, request))

    def expired(self, now: float) -> Iterator[Request]:
        """Forget and yield the live requests whose deadline is `now` or earlier."""
        while self._heap and self._heap[0][0] <= now:
            request = heapq.heappop(self._heap)[2]
            if _is_live(request):
                yield request


def _is_live(request: Request) -> bool:
    return request.status is not RequestStatus.FINISHED
