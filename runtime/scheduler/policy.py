"""In which order waiting requests are admitted: pure functions over their ages and cache matches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..request import Request

Policy = Callable[[Sequence[Request], int], list[Request]]


def fcfs(waiting: Sequence[Request], max_overtakes: int) -> list[Request]:
    """By priority, then oldest first; whoever was overtaken too often comes before both.

    Args:
        waiting: requests with `num_matched` up to date.
        max_overtakes: a request overtaken this often is admitted before any that was not.
    """
    return sorted(waiting, key=lambda r: (*_ageing(r, max_overtakes), r.priority, r.arrival))


def cache_aware(waiting: Sequence[Request], max_overtakes: int) -> list[Request]:
    """Longest cached prefix first within a priority, so that what is in the cache is used before it goes.

    Ageing as in `fcfs`. Source: SGLang (Zheng et al. 2024), section 3, longest-shared-prefix-first;
    the bound on overtaking is what keeps it from starving anyone.
    """
    return sorted(
        waiting,
        key=lambda r: (*_ageing(r, max_overtakes), r.priority, -r.num_matched, r.arrival),
    )


def _ageing(request: Request, max_overtakes: int) -> tuple[bool, int]:
    aged = request.num_overtaken >= max_overtakes
    return (not aged, request.arrival if aged else 0)


POLICIES: dict[str, Policy] = {"fcfs": fcfs, "cache-aware": cache_aware}
