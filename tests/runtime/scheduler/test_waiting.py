"""Who is looked at for admission, when more wait than can be looked at."""

from __future__ import annotations

import numpy as np
import pytest

from ramet.runtime.request import Request, SamplingParams
from ramet.runtime.scheduler.waiting import WaitingQueue


def request(arrival: int, priority: int = 0) -> Request:
    return Request.create(
        request_id=str(arrival),
        prompt_ids=np.array([5], dtype=np.int32),
        params=SamplingParams(),
        seed=0,
        arrival=arrival,
        max_model_len=8,
        priority=priority,
    )


def test_the_head_goes_by_priority_and_then_by_age() -> None:
    queue = WaitingQueue()
    late, urgent, early = request(3), request(2, priority=-1), request(1)
    for one in (late, urgent, early):
        queue.add(one)
    assert list(queue) == [urgent, early, late]
    queue.remove(early)
    assert list(queue) == [urgent, late] and len(queue) == 2
    with pytest.raises(KeyError):
        queue.remove(early)


def test_a_flood_of_urgent_requests_does_not_hide_who_waits_longest() -> None:
    queue = WaitingQueue()
    patient = [request(arrival, priority=5) for arrival in range(4)]
    for one in (*patient, *(request(arrival, priority=-5) for arrival in range(4, 200))):
        queue.add(one)
    head = queue.head(16)
    assert len(head) == 16 and set(patient) <= set(head)
