import numpy as np
import pytest

from ramet.runtime.request import Request, SamplingParams
from ramet.runtime.scheduler.policy import POLICIES, Policy


def waiting(
    arrival: int,
    matched: int = 0,
    priority: int = 0,
    overtaken: int = 0,
    group: str = "",
    namespace: str = "",
) -> Request:
    request = Request.create(
        request_id=str(arrival),
        prompt_ids=np.ones(4, dtype=np.int32),
        params=SamplingParams(),
        seed=0,
        arrival=arrival,
        max_model_len=16,
        group=group,
        namespace=namespace,
        priority=priority,
    )
    request.num_matched, request.num_overtaken = matched, overtaken
    return request


def order(policy: Policy, *requests: Request) -> list[int]:
    return [request.arrival for request in policy(requests, 8)]


def test_fcfs_ignores_the_cache() -> None:
    assert order(POLICIES["fcfs"], waiting(1, matched=9), waiting(0), waiting(2, matched=90)) == [
        0,
        1,
        2,
    ]


def test_cache_aware_prefers_the_longest_match_then_the_oldest() -> None:
    policy = POLICIES["cache-aware"]
    assert order(policy, waiting(0), waiting(1, 9), waiting(2, 90), waiting(3, 9)) == [2, 1, 3, 0]


@pytest.mark.parametrize("name", POLICIES)
def test_priority_comes_before_everything_but_age(name: str) -> None:
    policy = POLICIES[name]
    assert order(policy, waiting(0, 90, priority=1), waiting(1), waiting(2, priority=-1)) == [
        2,
        1,
        0,
    ]


@pytest.mark.parametrize("name", POLICIES)
def test_whoever_was_overtaken_too_often_comes_first_oldest_first(name: str) -> None:
    policy = POLICIES[name]
    aged = [waiting(5, overtaken=8, priority=3), waiting(4, overtaken=9, priority=7)]
    assert order(policy, waiting(0, 99), waiting(1, overtaken=7), *aged)[:2] == [4, 5]


def test_the_rest_of_a_group_comes_behind_its_first() -> None:
    group = [waiting(i, matched, group="g") for i, matched in ((1, 3), (4, 50), (5, 0))]
    assert order(POLICIES["cache-aware"], waiting(2, 9), waiting(3, 60), *group) == [3, 4, 1, 5, 2]


def test_whoever_has_a_sibling_that_runs_comes_before_strangers() -> None:
    sibling = waiting(9, group="g")
    sibling.has_running_sibling = True
    assert order(POLICIES["cache-aware"], waiting(0, 90), sibling) == [9, 0]
    assert order(POLICIES["cache-aware"], waiting(0, 90, priority=-1), sibling) == [0, 9]
    assert order(POLICIES["cache-aware"], waiting(0, 90, overtaken=8), sibling) == [0, 9]


def test_groups_of_two_namespaces_are_strangers_whatever_their_names() -> None:
    policy = POLICIES["cache-aware"]
    one = [waiting(i, matched, group="g") for i, matched in ((0, 9), (3, 0))]
    other = [waiting(i, matched, group="g", namespace="x") for i, matched in ((1, 8), (2, 0))]
    assert order(policy, *one, *other) == [0, 3, 1, 2]
