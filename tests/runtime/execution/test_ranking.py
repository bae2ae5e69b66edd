"""Orders of tokens, with many equal scores."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.runtime.execution.ranking import best, rank_keys, top_ids

SCORES = st.sampled_from([-math.inf, -1e30, -2.5, -1e-40, -0.0, 0.0, 1e-40, 1.0, 3.5, 1e30])


def reference(row: list[float]) -> list[int]:
    return sorted(range(len(row)), key=lambda id_: (-row[id_], id_))


@settings(deadline=None, max_examples=150)
@given(rows=st.lists(st.lists(SCORES, min_size=7, max_size=7), min_size=1, max_size=4))
def test_order_is_by_score_and_then_by_id(rows: list[list[float]]) -> None:
    scores = torch.tensor(rows)
    exact = scores.tolist()
    for num_top in (0, 1, 2, 6, 7):
        expected = [reference(row)[:num_top] for row in exact]
        assert top_ids(rank_keys(scores), num_top).tolist() == expected
    values, ids = best(scores)
    assert ids.tolist() == [reference(row)[0] for row in exact]
    assert values.tolist() == [max(row) for row in exact]


def test_keys_are_not_modified_by_taking_the_top() -> None:
    keys = rank_keys(torch.tensor([[3.0, 1.0, 2.0]]))
    before = keys.clone()
    top_ids(keys, 2)
    assert torch.equal(keys, before)


def test_library_topk_gives_the_same_order() -> None:
    """The path of other devices, run here: keys are all different, so there is only one order."""
    scores = torch.from_numpy(np.random.default_rng(0).integers(0, 9, (5, 300)).astype(np.float32))
    keys = rank_keys(scores)
    there = (2**32 - 1) - (torch.topk(keys, 40).values & (2**32 - 1))
    assert torch.equal(top_ids(keys, 40), there)


def test_best_lets_nan_through() -> None:
    values, _ = best(torch.tensor([[1.0, math.nan, 2.0], [1.0, 0.0, 2.0]]))
    assert np.isnan(values).tolist() == [True, False]
