"""The scheduler against a model whose KV can be checked slot by slot."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ramet.runtime.errors import OutOfBlocks
from ramet.runtime.request import Request, RequestStatus

Simulate = Callable[..., Any]


def tokens(seed: int, size: int) -> list[int]:
    return random.Random(seed).choices(range(50), k=size)


def test_one_request_gets_its_tokens(simulate: Simulate) -> None:
    sim = simulate()
    sim.add(tokens(1, 10), max_tokens=20)
    sim.run()
    sim.expect_right_outputs()
    assert sim.requests[0].num_output_tokens == 20


def test_a_long_prompt_is_computed_in_chunks_of_the_budget(simulate: Simulate) -> None:
    sim = simulate(max_num_batched_tokens=16)
    sim.add(tokens(1, 100), max_tokens=2)
    sim.run()
    sim.expect_right_outputs()
    assert [b.num_prefill_tokens for b in sim.batches] == [16] * 6 + [4, 0]


def test_the_next_turn_hits_everything_but_the_token_that_was_never_run(simulate: Simulate) -> None:
    sim = simulate()
    first = sim.add(tokens(1, 13), max_tokens=6)
    sim.run()
    history = first.token_ids.tolist()
    second = sim.add(history + tokens(2, 5), max_tokens=3)
    sim.run()
    sim.expect_right_outputs()
    assert second.num_cached_tokens == len(history) - 1 == 18


def test_a_repeated_prompt_runs_one_token(simulate: Simulate) -> None:
    sim = simulate()
    for _ in range(3):
        sim.add(tokens(1, 16), max_tokens=2)
        sim.run()
    assert [r.num_cached_tokens for r in sim.requests] == [0, 15, 15]
    sim.expect_right_outputs()


def test_requests_that_arrive_together_compute_their_prefix_once(simulate: Simulate) -> None:
    for policy in ("fcfs", "cache-aware"):
        sim = simulate(max_num_seqs=8, schedule_policy=policy, max_num_batched_tokens=16)
        prefix = tokens(1, 48)
        for i in range(8):
            sim.add([*prefix, i, i, i], max_tokens=2)
        sim.run()
        sim.expect_right_outputs()
        computed = sum(item.num_new_tokens for b in sim.batches for item in b.scheduled)
        assert computed == 48 + 8 * 3 + 8  # the prefix, the own tokens, one decode each
        assert [r.num_cached_tokens for r in sim.requests] == [0] + [48] * 7


def test_a_follower_computes_less_than_a_block_again_rather_than_wait_a_step(
    simulate: Simulate,
) -> None:
    sim = simulate(max_num_seqs=8, max_num_batched_tokens=16)
    for i in range(4):
        sim.add([*tokens(1, 50), i, i, i], max_tokens=2)
    sim.run()
    sim.expect_right_outputs()
    assert all(48 <= (r.num_cached_tokens or 0) <= 50 for r in sim.requests[1:])


def test_samples_of_one_prompt_share_its_blocks_and_copy_only_the_last(simulate: Simulate) -> None:
    sim = simulate(max_num_seqs=8)
    prompt = tokens(1, 30)
    for _ in range(8):
        sim.add(prompt, max_tokens=2)
    peak = 0
    while sim.scheduler.has_work():
        sim.step()
        peak = max(peak, sim.cache.num_blocks - sim.cache.num_free)
    assert sim.scheduler.counters.copied_blocks == 7
    assert peak == 7 + 8  # 28 tokens in shared blocks; each sample has its own last block


def test_a_follower_does_not_wait_for_a_leader_that_is_far_behind(simulate: Simulate) -> None:
    sim = simulate(max_num_seqs=2, max_num_batched_tokens=8)
    prefix = tokens(1, 60)
    sim.add(prefix[:50], max_tokens=1)
    sim.run()
    sim.cache.reset()
    leader = sim.add(prefix, max_tokens=1)
    sim.step()
    follower = sim.add([*prefix[:12], 7, 7, 7], max_tokens=1)
    sim.step()
    assert leader.num_computed >= 12  # both moved on: four shared tokens are not worth a wait
    sim.run()
    assert follower.num_cached_tokens is not None
    sim.expect_right_outputs()


def test_without_a_prefix_cache_nothing_is_shared_and_nobody_waits(simulate: Simulate) -> None:
    sim = simulate(prefix_cache=False)
    for _ in range(3):
        sim.add(tokens(1, 8), max_tokens=2)
    sim.run()
    assert [r.num_cached_tokens for r in sim.requests] == [0, 0, 0]
    assert sim.cache.num_free == sim.cache.num_blocks
    sim.expect_right_outputs()


def test_a_namespace_sees_nothing_of_another(simulate: Simulate) -> None:
    sim = simulate()
    for namespace in ("a", "b", "a"):
        sim.add(tokens(1, 20), max_tokens=1, namespace=namespace)
        sim.run()
    assert [r.num_cached_tokens for r in sim.requests] == [0, 0, 19]


def test_nobody_waits_for_a_prefix_of_another_namespace(simulate: Simulate) -> None:
    sim = simulate(max_num_batched_tokens=128)
    for namespace in ("a", "b", "b"):
        sim.add(tokens(1, 40), max_tokens=1, namespace=namespace)
    assert [item.request.namespace for item in sim.step().scheduled] == ["a", "b"]
    sim.run()
    assert [r.num_cached_tokens for r in sim.requests] == [0, 0, 39]


def test_a_block_whose_copy_was_never_made_does_not_enter_the_cache(
    simulate: Simulate, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = simulate()
    sim.add(tokens(1, 10), max_tokens=1)
    sim.run()
    request = sim.add(tokens(1, 10) + tokens(2, 7))
    allocate = sim.cache.allocate
    with monkeypatch.context() as tight:
        tight.setattr(sim.cache, "allocate", lambda n: allocate(n) if n == 1 else None)
        with pytest.raises(OutOfBlocks):
            sim.scheduler.schedule()
    assert request.status is RequestStatus.RUNNING and request.num_computed == 10
    sim.cache.reset()  # as eviction would: the block that was to be copied goes
    sim.scheduler.finish(request)
    again = sim.add(tokens(1, 10) + tokens(3, 7))
    sim.run()
    assert again.num_cached_tokens == 8, "whole blocks are shared, not copied"
    sim.expect_right_outputs()


def test_when_memory_runs_out_the_youngest_gives_way_and_loses_nothing(simulate: Simulate) -> None:
    sim = simulate(num_blocks=20, max_num_seqs=4)
    for i in range(6):
        sim.add(tokens(i, 12), max_tokens=30)
    order = []
    while sim.scheduler.has_work():
        live = {r for r in sim.requests if r.status is not RequestStatus.FINISHED}
        sim.step()
        order += [r for r in live if r.status is RequestStatus.FINISHED]
    assert sim.scheduler.counters.preemptions > 0
    assert sim.cache.stats.evicted_blocks > 0
    sim.expect_right_outputs()
    assert all(r.num_output_tokens == 30 for r in sim.requests)
    assert order[0] is sim.requests[0], "the oldest is never the victim"


def test_a_request_that_fills_the_whole_pool_finishes_alone(simulate: Simulate) -> None:
    sim = simulate(num_blocks=16, block_size=4)
    sim.add(tokens(1, 20), max_tokens=8)
    sim.add(tokens(2, 40), max_tokens=23)  # 62 tokens of KV, of 64 slots
    sim.run()
    sim.expect_right_outputs()


def test_decodes_go_on_while_a_long_prompt_is_computed(simulate: Simulate) -> None:
    sim = simulate(max_num_batched_tokens=16)
    talker = sim.add(tokens(1, 4), max_tokens=20)
    sim.step()
    sim.add(tokens(2, 150), max_tokens=1)
    for _ in range(8):
        before = talker.num_output_tokens
        sim.step()
        assert talker.num_output_tokens == before + 1


def test_a_short_prompt_is_not_stuck_behind_a_long_one(simulate: Simulate) -> None:
    sim = simulate(max_num_batched_tokens=16)
    long = sim.add(tokens(1, 160), max_tokens=1)
    sim.step()
    short = sim.add(tokens(2, 6), max_tokens=1)
    sim.step()
    sim.step()
    assert short.status is RequestStatus.FINISHED
    assert long.status is RequestStatus.RUNNING


def test_no_tokens_are_kept_for_a_short_prompt_that_finds_no_memory(simulate: Simulate) -> None:
    sim = simulate(num_blocks=41, max_num_batched_tokens=16)  # 160 tokens, and one block to spare
    long = sim.add(tokens(1, 159), max_tokens=1)
    sim.step()
    short = sim.add(tokens(2, 7), max_tokens=1)
    sim.step()
    assert short.status is RequestStatus.WAITING and long.num_computed == 32
    sim.run()
    assert [b.num_prefill_tokens for b in sim.batches[:9]] == [16] * 9
    sim.expect_right_outputs()


def test_chunks_shrink_to_the_step_latency_target(simulate: Simulate) -> None:
    sim = simulate(max_num_batched_tokens=256, step_latency_target=0.1)
    sim.scheduler.step_time.observe(0.02, num_decodes=1, num_prefill_tokens=0)
    sim.scheduler.step_time.observe(0.52, num_decodes=1, num_prefill_tokens=250)  # 2 ms a token
    sim.add(tokens(1, 4), max_tokens=20)
    sim.step()
    sim.add(tokens(2, 200), max_tokens=1)
    assert sim.step().num_prefill_tokens == 40


@pytest.mark.parametrize("priority", [0, 1])
def test_nobody_is_overtaken_more_often_than_allowed(simulate: Simulate, priority: int) -> None:
    sim = simulate(max_num_seqs=1, max_overtakes=5, num_blocks=64)
    warm = sim.add(tokens(1, 20), max_tokens=1)
    sim.run()
    victim = sim.add(tokens(2, 20), max_tokens=1, priority=priority)
    for i in range(12):
        sim.add([*warm.token_ids.tolist(), i], max_tokens=1)
    admitted: list[Request] = []
    while victim.status is RequestStatus.WAITING:
        sim.step()
        admitted += [
            r for r in sim.requests if r.num_cached_tokens is not None and r not in admitted
        ]
    assert admitted.index(victim) == 1 + 5


def test_a_big_request_that_waits_for_memory_is_not_passed_for_ever(simulate: Simulate) -> None:
    sim = simulate(num_blocks=24, max_num_seqs=4, max_overtakes=3)
    for i in range(3):
        sim.add(tokens(i, 8), max_tokens=12)
    sim.step()
    big = sim.add(tokens(50, 70), max_tokens=2)
    for i in range(20):
        sim.add(tokens(100 + i, 8), max_tokens=12)
    sim.run()
    sim.expect_right_outputs()
    assert big.num_overtaken <= 3


def test_an_abort_frees_memory_at_once_whatever_the_state(simulate: Simulate) -> None:
    sim = simulate(num_blocks=20, max_num_seqs=4)
    requests = [sim.add(tokens(i, 12), max_tokens=30) for i in range(6)]
    for _ in range(12):
        sim.step()
    statuses = {r.status for r in requests}
    assert {RequestStatus.RUNNING, RequestStatus.WAITING, RequestStatus.PREEMPTED} >= statuses
    for request in requests:
        sim.scheduler.finish(request)
        sim.check()
    assert sim.cache.num_private == sim.cache.num_pinned == 0
    assert not sim.scheduler.has_work()


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_random_traffic_keeps_every_invariant(simulate: Simulate, data: st.DataObject) -> None:
    block_size = data.draw(st.sampled_from([1, 3, 4]))
    sim = simulate(
        num_blocks=-(-60 // block_size) + 1 + data.draw(st.integers(0, 8)),
        block_size=block_size,
        max_num_seqs=data.draw(st.integers(1, 5)),
        max_num_batched_tokens=data.draw(st.sampled_from([8, 16, 64])),
        schedule_policy=data.draw(st.sampled_from(["fcfs", "cache-aware"])),
        max_overtakes=data.draw(st.integers(0, 4)),
        prefix_cache=data.draw(st.sampled_from([True, True, True, False])),
    )
    pool = [tokens(seed, 40) for seed in range(2)]
    actions = ["add", "add", "step", "step", "step", "abort", "turn", "retain"]
    for _ in range(data.draw(st.integers(5, 40))):
        action = data.draw(st.sampled_from(actions))
        if action == "add":
            shared = data.draw(st.sampled_from(pool))[: data.draw(st.integers(0, 40))]
            own = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=6))
            sim.add(
                shared + own,
                max_tokens=data.draw(st.integers(0, 10)),
                namespace=data.draw(st.sampled_from(["", "", "x"])),
                priority=data.draw(st.sampled_from([0, 0, 1])),
                group=data.draw(st.sampled_from(["", "g", "h"])),
            )
        elif action == "retain":
            if sim.requests:
                request = data.draw(st.sampled_from(sim.requests))
                sim.cache.retain(request.token_ids, request.namespace, max_blocks=20)
                sim.check()
        elif action == "turn":
            ended = [r for r in sim.requests if r.status is RequestStatus.FINISHED]
            if ended:
                history = data.draw(st.sampled_from(ended)).token_ids.tolist()
                sim.add([*history[:45], 1], max_tokens=5)
        elif action == "abort":
            live = [r for r in sim.requests if r.status is not RequestStatus.FINISHED]
            if live:
                sim.scheduler.finish(data.draw(st.sampled_from(live)))
                sim.check()
        elif sim.scheduler.has_work():
            assert sim.step()
    sim.run()
    sim.expect_right_outputs()
    assert sim.cache.num_private == 0
