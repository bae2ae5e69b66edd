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

    Siblings, requests of one group, stay together: whoever has one that runs comes before all others of
    its priority, and behind the first of a group come the rest of it. Ageing as in `fcfs`. Source: SGLang
    (Zheng et al. 2024), section 3, longest-shared-prefix-first; the bound on overtaking is what keeps
    it from starving anyone.
    """
    ordered = sorted(
        waiting,
        key=lambda r: (
            *_ageing(r, max_overtakes),
            r.priority,
            not r.has_running_sibling,
            -r.num_matched,
            r.arrival,
        ),
    )
    return _siblings_together(ordered, max_overtakes)


def _siblings_together(ordered: Sequence[Request], max_overtakes: int) -> list[Request]:
    """Each group at the place of its first; a request that aged stays where its age puts it."""
    families: dict[object, list[Request]] = {}
    for request in ordered:
        is_alone = not request.group or request.num_overtaken >= max_overtakes
        key = request if is_alone else (request.namespace, request.group, request.priority)
        families.setdefault(key, []).append(request)
    return [request for family in families.values() for request in family]


def _ageing(request: Request, max_overtakes: int) -> tuple[bool, int]:
    aged = request.num_overtaken >= max_overtakes
    return (not aged, request.arrival if aged else 0)


POLICIES: dict[str, Policy] = {"fcfs": fcfs, "cache-aware": cache_aware}
