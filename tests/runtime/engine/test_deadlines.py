"""Time limits come up in order, once, and do not pile up."""

from __future__ import annotations

import numpy as np

from ramet.runtime.engine.deadlines import Deadlines
from ramet.runtime.request import Request, RequestStatus, SamplingParams


def request(arrival: int, deadline: float | None) -> Request:
    return Request.create(
        request_id=str(arrival),
        prompt_ids=np.array([5], dtype=np.int32),
        params=SamplingParams(),
        seed=0,
        arrival=arrival,
        max_model_len=8,
        deadline=deadline,
    )


def test_live_requests_expire_once_and_soonest_first() -> None:
    deadlines = Deadlines()
    late, soon, ended, never = (request(i, d) for i, d in enumerate((3.0, 1.0, 2.0, None)))
    for one in (late, soon, ended, never):
        deadlines.add(one)
    ended.status = RequestStatus.FINISHED
    assert list(deadlines.expired(0.5)) == []
    assert list(deadlines.expired(3.0)) == [soon, late]
    assert list(deadlines.expired(9.0)) == []


def test_ended_requests_do_not_pile_up_and_live_ones_stay() -> None:
    deadlines = Deadlines()
    kept = [request(i, 1e6) for i in range(100)]
    for one in kept:
        deadlines.add(one)
    for arrival in range(100, 5000):
        short = request(arrival, 1e6)
        deadlines.add(short)
        short.status = RequestStatus.FINISHED
    assert len(deadlines) <= 2 * len(kept) + 1
    assert list(deadlines.expired(1e6)) == kept
