"""Prefixes kept for sessions: for a time, within a budget, and in nobody's way."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ramet.radix import PrefixCache
from ramet.runtime.config import CacheConfig, EngineConfig, ModelOptions, SchedulerConfig
from ramet.runtime.engine.core import EngineCore
from ramet.runtime.engine.loading import load_core
from ramet.runtime.engine.messages import GenerateRequest, Release, Retain
from ramet.runtime.engine.retention import Retention
from ramet.runtime.request import RequestOutput, SamplingParams

BLOCK = 4


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def tokens(seed: int, size: int) -> NDArray[np.int32]:
    return np.array(random.Random(seed).choices(range(3, 259), k=size), dtype=np.int32)


def serve(cache: PrefixCache, ids: NDArray[np.int32], namespace: str = "") -> None:
    handle = cache.acquire(ids, namespace, max_tokens=len(ids))
    table = handle.block_ids
    table += cache.allocate(-(-len(ids) // BLOCK) - len(table)) or []
    handle = cache.commit(handle, ids, table, num_tokens=len(ids))
    cache.free(table[handle.num_tokens // BLOCK :])
    cache.release(handle)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cache() -> PrefixCache:
    made = PrefixCache(64, BLOCK)
    for seed in range(4):
        serve(made, tokens(seed, 16))
    return made


def make(cache: PrefixCache, clock: Clock, max_blocks: int = 16) -> Retention:
    return Retention(cache, clock, max_blocks=max_blocks, max_seconds=60.0)


def test_it_ends_after_its_time_and_never_later_than_allowed(
    cache: PrefixCache, clock: Clock
) -> None:
    retention = make(cache, clock)
    retention.keep("", "short", tokens(0, 16), 5.0)
    retention.keep("", "long", tokens(1, 16), 1000.0)
    retention.keep("", "default", tokens(2, 16))
    for seconds, left in ((4.9, 3), (0.1, 2), (54.0, 2), (1.0, 0)):
        clock.now += seconds
        retention.expire()
        assert len(retention) == left and cache.num_retained == left * 4
    assert retention.num_expired == 3 and retention.num_displaced == 0
    cache.check_integrity()


def test_who_retains_most_gives_up_first_and_of_that_the_oldest(
    cache: PrefixCache, clock: Clock
) -> None:
    retention = make(cache, clock, max_blocks=12)
    retention.keep("", "b", tokens(3, 8), tenant="b")
    for seed in range(3):
        retention.keep("", f"a{seed}", tokens(seed, 16), tenant="a")
    assert retention.sessions == [("", "b"), ("", "a1"), ("", "a2")]
    for seed in range(3):
        retention.keep("", f"more a{seed}", tokens(seed, 16), tenant="a")
        assert ("", "b") in retention.sessions and cache.num_retained <= 12
    retention.release("", "b")
    retention.keep("", "a", tokens(0, 16), tenant="a")
    assert cache.num_retained == 12, "alone one may have all of it"
    cache.check_integrity()


def test_a_session_retains_one_prefix_and_only_its_own(cache: PrefixCache, clock: Clock) -> None:
    retention = make(cache, clock)
    retention.keep("", "s", tokens(0, 16), 5.0)
    retention.keep("", "s", tokens(1, 16), 5.0)
    assert len(retention) == 1 and cache.num_retained == 4
    serve(cache, tokens(1, 16), "x")
    retention.keep("x", "s", tokens(1, 16), 5.0)
    retention.release("y", "s")
    retention.release("x", "other")
    assert len(retention) == 2
    retention.release("", "s")
    assert cache.num_retained == 4 and retention.num_expired == 0
    retention.keep("x", "s", tokens(3, 16), 5.0)
    assert len(retention) == 0, "nothing of it is cached there"


def test_over_budget_the_one_retained_longest_ago_goes(cache: PrefixCache, clock: Clock) -> None:
    retention = make(cache, clock, max_blocks=9)
    for seed in range(3):
        retention.keep("", str(seed), tokens(seed, 16))
    assert retention.num_displaced == 1 and cache.num_retained == 8
    retention.release("", "0")
    retention.keep("", "1", tokens(1, 16))  # it is the newest now
    retention.keep("", "3", tokens(3, 16))
    retention.release("", "1")
    assert retention.num_displaced == 2 and cache.num_retained == 4


def test_a_prefix_beyond_the_budget_is_retained_from_its_start(
    cache: PrefixCache, clock: Clock
) -> None:
    retention = make(cache, clock, max_blocks=3)
    retention.keep("", "s", tokens(0, 16))
    assert cache.num_retained == 3 and len(retention) == 1


def test_sessions_on_the_same_blocks_are_bounded_too(cache: PrefixCache, clock: Clock) -> None:
    retention = make(cache, clock, max_blocks=8)
    for index in range(100):
        retention.keep("", str(index), tokens(0, 16))
    assert len(retention) == 8 and cache.num_retained == 4


@pytest.mark.parametrize(("max_blocks", "max_seconds"), [(0, 60.0), (16, 0.0)])
def test_without_a_budget_nothing_is_retained(
    cache: PrefixCache, clock: Clock, max_blocks: int, max_seconds: float
) -> None:
    retention = Retention(cache, clock, max_blocks=max_blocks, max_seconds=max_seconds)
    retention.keep("", "s", tokens(0, 16))
    assert len(retention) == 0 and cache.num_retained == 0


# The engine


def load(tiny_source: Any, num_tokens: int, **cache: Any) -> EngineCore:
    bytes_per_token = 2 * 2 * 2 * 8 * 4
    config = EngineConfig(
        model=ModelOptions(model="tiny", dtype="float32", max_model_len=96, num_threads=1),
        cache=CacheConfig(block_size=BLOCK, kv_cache_memory=num_tokens * bytes_per_token, **cache),
        scheduler=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64),
    )
    return load_core(config, tiny_source)


def run(core: EngineCore, *requests: GenerateRequest) -> dict[str, list[RequestOutput]]:
    answers: dict[str, list[RequestOutput]] = {}
    for request in requests:
        core.add(request)
    while core.has_work():
        for output in core.step():
            answers.setdefault(output.request_id, []).append(output)
        core.check_integrity()
        stats = core.stats()
        assert stats.blocks_free + stats.blocks_cached + stats.blocks_private == stats.blocks_total
    return answers


def request(request_id: str, ids: list[int], max_tokens: int = 8, **fields: Any) -> GenerateRequest:
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    return GenerateRequest(request_id=request_id, prompt_ids=ids, params=params, **fields)


def flood(core: EngineCore, seed: int, count: int) -> dict[str, list[RequestOutput]]:
    """Traffic that turns the whole cache over."""
    strangers = [request(f"{seed}-{i}", tokens(seed + i, 40).tolist()) for i in range(count)]
    return run(core, *strangers)


def next_turn(core: EngineCore, history: list[int], **fields: Any) -> int:
    """Tokens found of a turn that goes on from `history`."""
    answer = run(core, request("turn", [*history, 5, 6], **fields))["turn"]
    return answer[-1].num_cached_tokens


@pytest.mark.parametrize("retain", [None, 30.0])
def test_an_answer_that_is_retained_outlives_traffic(
    tiny_source: Any, retain: float | None
) -> None:
    core = load(tiny_source, 256)
    ids = tokens(1, 32).tolist()
    answer = run(core, request("a", ids, session="s", retain=retain))["a"]
    history = ids + [t for output in answer for t in output.token_ids]
    flood(core, 100, 12)
    assert core.stats().evicted_blocks > 0
    # The last token was never run, and only whole blocks are retained.
    assert next_turn(core, history) == (0 if retain is None else 36)


def test_the_next_turn_takes_over_and_the_last_one_lets_go(tiny_source: Any) -> None:
    core = load(tiny_source, 256)
    ids = tokens(1, 20).tolist()
    run(core, request("a", ids, session="s", retain=30.0))
    assert core.stats().blocks_retained == 6
    run(core, request("b", [*ids, *tokens(2, 20).tolist()], session="s", retain=30.0))
    assert core.stats().blocks_retained == 11
    run(core, request("c", ids, session="s"))
    assert core.stats().blocks_retained == 0


def test_messages_retain_and_release(tiny_source: Any) -> None:
    core = load(tiny_source, 256)
    ids = tokens(1, 32).tolist()
    run(core, request("a", ids))
    core.retain(Retain(namespace="", session="s", token_ids=ids))
    assert core.stats().blocks_retained == 8
    core.release(Release(namespace="", session="s"))
    assert core.stats().blocks_retained == 0
    assert core.stats().retentions_expired == core.stats().retentions_given_up == 0


@pytest.mark.parametrize(
    ("ids", "seconds"), [([2**40], 5.0), ([-1], 5.0), ([], None), ([5] * 8, float("nan"))]
)
def test_a_message_that_should_not_have_come_retains_nothing(
    tiny_source: Any, ids: list[int], seconds: float | None
) -> None:
    core = load(tiny_source, 256)
    run(core, request("a", [5] * 8))
    core.retain(Retain(namespace="", session="s", token_ids=ids, seconds=seconds))
    assert core.stats().blocks_retained == 0


def test_an_engine_that_rests_says_when_a_prefix_expires(tiny_source: Any) -> None:
    core = load(tiny_source, 256, retain_seconds=0.05)
    assert core.rest() is None
    run(core, request("a", tokens(1, 32).tolist()))
    core.retain(Retain(namespace="", session="s", token_ids=tokens(1, 32).tolist()))
    while (pause := core.rest()) is not None:
        assert 0 <= pause <= 0.05
    assert core.stats().blocks_retained == 0 and core.stats().retentions_expired == 1


def test_nothing_admitted_waits_or_gives_way_for_what_is_retained(tiny_source: Any) -> None:
    """The same traffic over a cache full of retained prefixes, and over an empty one."""
    counts = []
    for retain in (None, 30.0):
        core = load(tiny_source, 128, retain_memory=1.0)
        for index in range(6):
            ids = tokens(index, 16).tolist()
            run(core, request(f"r{index}", ids, session=str(index), retain=retain))
        retained = core.stats().blocks_retained
        assert (retained > 20) == (retain is not None)
        before = core.stats().steps
        answers = flood(core, 100, 4)
        assert all(len(outputs) for outputs in answers.values())
        tokens_of = {k: [t for o in v for t in o.token_ids] for k, v in answers.items()}
        stats = core.stats()
        counts.append((stats.steps - before, stats.preemptions, tokens_of))
        assert (stats.retentions_given_up > 0) == (retain is not None)
        assert stats.blocks_retained < max(retained, 1)
    assert counts[0] == counts[1]


def test_a_cancelled_or_failed_request_leaves_what_is_retained(tiny_source: Any) -> None:
    core = load(tiny_source, 256)
    ids = tokens(1, 32).tolist()
    run(core, request("a", ids, session="s", retain=30.0))
    core.add(request("b", [*ids, 9], session="s", max_tokens=30))
    core.step()
    core.abort(["b"])
    run(core)
    assert core.stats().blocks_retained == 9


@pytest.mark.parametrize("retain", [0.0, -1.0, float("nan"), 301.0])
def test_a_time_that_is_not_granted_is_refused(tiny_source: Any, retain: float) -> None:
    core = load(tiny_source, 256)
    assert core.info.max_retain_seconds == 300.0
    (output,) = run(core, request("a", [5, 6], session="s", retain=retain))["a"]
    assert output.invalid and "at most 300 seconds" in (output.error or "")


@pytest.mark.parametrize(
    "off", [{"retain_memory": 0.0}, {"retain_seconds": 0.0}, {"enable_prefix_cache": False}]
)
def test_an_engine_that_retains_nothing_says_so(tiny_source: Any, off: dict[str, Any]) -> None:
    core = load(tiny_source, 256, **off)
    assert core.info.max_retain_seconds == 0.0
    core.retain(Retain(namespace="", session="s", token_ids=[5, 6, 7, 8, 9]))
    (output,) = run(core, request("a", [5, 6], session="s", retain=1.0))["a"]
    assert output.invalid and "retains nothing" in (output.error or "")
