"""Computing once what arrives together: a follower waits for the prefix that a leader is computing.

A leader commits its prompt to the tree chunk by chunk, so a follower that waits until the leader has
passed their common prefix finds all of it cached. It waits only for requests that run, hence for a
bounded time.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..request import Request, RequestStatus, TokenArray


def common_prefix_length(a: TokenArray, b: TokenArray) -> int:
    """Number of leading tokens that two sequences share."""
    size = min(len(a), len(b))
    differs = a[:size] != b[:size]
    first = int(differs.argmax()) if size else 0
    return first if size and differs[first] else size


def must_wait(request: Request, running: Iterable[Request], min_gain: int) -> bool:
    """Whether `request` saves at least `min_gain` tokens by waiting for a running prefill.

    Remembers the leader it found, so that the next call is a comparison. It does not wait where that
    would be slower: where the leader, which may get only half of a step's budget, has more than twice
    as much to compute before the end of their common prefix as the request itself would have.

    Args:
        request: a waiting request with `num_matched` up to date.
        running: the requests that run.
        min_gain: tokens; below this, computing them twice is cheaper than a step of delay.
    """
    leader = request.leader
    if leader is not None:
        if leader.status is RequestStatus.RUNNING and leader.num_computed < request.leader_target:
            return True
        request.leader = None
    usable = request.token_ids[: request.num_reusable]
    for candidate in running:
        if (
            candidate.num_computed >= candidate.num_prompt_tokens
            or candidate.namespace != request.namespace
        ):
            continue
        shared = common_prefix_length(usable, candidate.prompt_ids)
        gain = shared - request.num_matched
        if gain >= min_gain and shared - candidate.num_computed <= 2 * gain:
            request.leader, request.leader_target = candidate, shared
            return True
    return False
