"""Siblings, the requests of one fork: one prefill, one batch, and no stranger between them for long."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from ramet.runtime.request import Request, RequestStatus

Simulate = Callable[..., Any]


def tokens(seed: int, size: int) -> list[int]:
    return random.Random(seed).choices(range(50), k=size)


def fork(sim: Any, seed: int, size: int, prefix_len: int = 48, **options: Any) -> list[Request]:
    """Branches with a common prefix, and a few tokens of their own."""
    prefix = tokens(seed, prefix_len)
    return [sim.add([*prefix, i, i, i], group=f"fork-{seed}", **options) for i in range(size)]


def admissions(sim: Any) -> list[Request]:
    """Who was admitted, in order, with an empty step's admissions left out."""
    seen: dict[Request, None] = {}
    for batch in sim.batches:
        for item in batch.scheduled:
            seen.setdefault(item.request)
    return list(seen)


def test_a_fork_is_one_prefill_and_then_one_batch(simulate: Simulate) -> None:
    sim = simulate(max_num_seqs=8, max_num_batched_tokens=64)
    branches = fork(sim, 1, 6, max_tokens=5)
    sim.step()
    assert sim.batches[0].num_prefill_tokens == 48 + 3, "the first computes the prefix, alone"
    sim.step()
    assert {item.request for item in sim.batches[1].scheduled} == set(branches)
    assert sim.batches[1].num_prefill_tokens == 5 * 3, "the others compute what is their own"
    sim.run()
    assert [r.num_cached_tokens for r in branches] == [0] + [48] * 5
    sim.expect_right_outputs()


def test_strangers_do_not_take_the_rows_of_a_fork_whose_prefix_is_being_computed(
    simulate: Simulate,
) -> None:
    sim = simulate(max_num_seqs=4, max_num_batched_tokens=16)
    branches = fork(sim, 1, 4)
    strangers = [sim.add(tokens(50 + i, 8), max_tokens=30) for i in range(6)]
    sim.run()
    assert admissions(sim)[:4] == branches
    assert all(r.status is RequestStatus.FINISHED for r in strangers)
    sim.expect_right_outputs()


def test_under_pressure_siblings_come_before_strangers_with_longer_cached_prefixes(
    simulate: Simulate,
) -> None:
    sim = simulate(max_num_seqs=3, max_num_batched_tokens=128, num_blocks=128)
    warm = sim.add(tokens(9, 60), max_tokens=1)
    sim.run()
    branches = fork(sim, 1, 5)
    sim.step()
    strangers = [sim.add([*warm.token_ids.tolist(), i], max_tokens=4) for i in range(4)]
    sim.run()
    order = admissions(sim)[1:]
    assert order[:5] == branches and set(order[5:]) == set(strangers)


def test_a_branch_that_comes_a_step_later_still_joins_its_siblings(simulate: Simulate) -> None:
    sim = simulate(max_num_seqs=3, max_num_batched_tokens=128, num_blocks=128)
    warm = sim.add(tokens(9, 60), max_tokens=1)
    sim.run()
    early = fork(sim, 1, 2, max_tokens=30)
    sim.step()
    strangers = [sim.add([*warm.token_ids.tolist(), i], max_tokens=2) for i in range(2)]
    late = sim.add([*early[0].prompt_ids.tolist()[:48], 7], group="fork-1", max_tokens=2)
    sim.run()
    assert admissions(sim)[1:] == [*early, late, *strangers]
    assert late.num_cached_tokens == 48


def test_a_stranger_is_passed_by_siblings_only_as_often_as_by_anybody(simulate: Simulate) -> None:
    sim = simulate(max_num_seqs=1, max_overtakes=5, num_blocks=64)
    sim.add(tokens(1, 48), max_tokens=1)
    sim.run()
    stranger = sim.add(tokens(2, 20), max_tokens=1)
    fork(sim, 1, 12, max_tokens=1)
    sim.run()
    assert admissions(sim).index(stranger) == 1 + 5
    assert stranger.num_overtaken == 5


def test_groups_of_two_namespaces_never_wait_for_each_other(simulate: Simulate) -> None:
    sim = simulate(max_num_seqs=4, max_num_batched_tokens=128)
    for namespace in ("a", "b", "a", "b"):
        sim.add(tokens(1, 40), max_tokens=2, namespace=namespace, group="same")
    assert {item.request.namespace for item in sim.step().scheduled} == {"a", "b"}
    sim.run()
    assert [r.num_cached_tokens for r in sim.requests] == [0, 0, 39, 39]
