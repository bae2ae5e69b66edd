"""The requests that wait for admission, kept in order so that a step need not sort them all."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import islice

from ..request import Request


class WaitingQueue:
    """Live requests that are not running, by age (priority, then arrival).

    Adding and removing take O(log n) comparisons; looking at the head takes no sorting.
    """

    def __init__(self) -> None:
        self._by_age: list[Request] = []
        self._by_entry: dict[Request, None] = {}

    def __len__(self) -> int:
        return len(self._by_age)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._by_age)

    def add(self, request: Request) -> None:
        """Let a request wait; a preempted one comes back to the place that its age gives it."""
        insort(self._by_age, request, key=_age)
        self._by_entry[request] = None

    def remove(self, request: Request) -> None:
        """Take a request out. Raises KeyError if it does not wait."""
        del self._by_entry[request]
        del self._by_age[bisect_left(self._by_age, request.age, key=_age)]

    def head(self, size: int) -> list[Request]:
        """At most `size` candidates for admission: mostly the oldest of the best priorities.

        A quarter of the places go to those that have waited longest whatever their priority, so that
        a flood of urgent requests cannot keep the others out of sight.
        """
        longest_waiting = islice(self._by_entry, size // 4)
        first = self._by_age[: size - size // 4]
        return list(dict.fromkeys((*first, *longest_waiting)))


def _age(request: Request) -> tuple[int, int]:
    return request.age
