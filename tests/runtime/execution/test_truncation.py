"""Draws against a plain float64 implementation for one row."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ramet.runtime.execution.truncation import Cuts, draw

VOCAB = 30
TINY = float(np.finfo(np.float32).tiny)


def cuts_of(rows: list[dict[str, float]], vocab_size: int = VOCAB) -> Cuts:
    def column(name: str, default: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor([row.get(name, default) for row in rows], dtype=dtype)

    return Cuts(
        temperature=column("temperature", 1.0, torch.float32),
        top_k=column("top_k", vocab_size, torch.int64),
        top_p=column("top_p", 1.0, torch.float64),
        min_p=column("min_p", 0.0, torch.float32),
        uniform=column("uniform", 0.5, torch.float64),
    )


def reference(logits: NDArray[np.float32], cut: dict[str, float]) -> dict[int, tuple[float, float]]:
    """Token -> its share of [0, 1), for the tokens that are kept."""
    exact = logits.astype(np.float64)
    order = sorted(range(len(exact)), key=lambda id_: (-exact[id_], id_))
    kept = order[: int(cut.get("top_k", len(order)))]
    weights = np.exp((exact - exact.max()) / cut.get("temperature", 1.0))
    total, before, nucleus = sum(weights[id_] for id_ in kept), 0.0, []
    for id_ in kept:
        if before < cut.get("top_p", math.inf) * total:
            nucleus.append(id_)
        before += weights[id_]
    kept = [id_ for id_ in nucleus if weights[id_] >= cut.get("min_p", 0.0) * weights[order[0]]]
    if cut.get("top_k", len(order)) >= len(order) and cut.get("top_p", 1.0) == 1.0:
        kept.sort()
    edges = np.cumsum([0.0, *(weights[id_] for id_ in kept)])
    edges /= edges[-1]
    return {id_: (edges[i], edges[i + 1]) for i, id_ in enumerate(kept)}


CUT = st.fixed_dictionaries(
    {"uniform": st.floats(0, 1, exclude_max=True)},
    optional={
        "temperature": st.sampled_from([0.1, 0.7, 1.0, 2.0]),
        "top_k": st.integers(2, VOCAB),
        "top_p": st.sampled_from([0.01, 0.3, 0.5, 0.9, 0.999]),
        "min_p": st.sampled_from([0.02, 0.3, 1.0]),
    },
)


@settings(deadline=None, max_examples=300)
@given(rows=st.lists(CUT, min_size=1, max_size=20), seed=st.integers(0, 10_000))
def test_draws_follow_the_definition(rows: list[dict[str, float]], seed: int) -> None:
    values = np.random.default_rng(seed).normal(0, 2, (len(rows), VOCAB)).astype(np.float32)
    drawn = draw(torch.from_numpy(values), cuts_of(rows)).tolist()
    for logits, cut, token_id in zip(values, rows, drawn, strict=True):
        shares = reference(logits, cut)
        assert token_id in shares
        low, high = shares[token_id]
        assert low - 1e-6 <= cut["uniform"] <= high + 1e-6


@settings(deadline=None, max_examples=100)
@given(rows=st.lists(CUT, min_size=2, max_size=40), seed=st.integers(0, 10_000))
def test_a_row_alone_draws_what_it_draws_in_a_batch(
    rows: list[dict[str, float]], seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(rows), 1003, generator=generator).mul_(2).round(decimals=1)
    full = [
        {**row, "top_k": 1003 if row.get("top_k") == VOCAB else row.get("top_k", 1003)}
        for row in rows
    ]
    together = draw(logits, cuts_of(full, 1003)).tolist()
    alone = [
        draw(logits[row : row + 1], cuts_of([cut], 1003)).item() for row, cut in enumerate(full)
    ]
    assert together == alone


def edge(**cut: Any) -> int:
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0]])
    return int(draw(logits, cuts_of([cut], 4)).item())


@pytest.mark.parametrize("uniform", [0.0, 0.3, 1 - 2**-53])
def test_of_equal_tokens_the_cuts_keep_the_lower_id(uniform: float) -> None:
    assert edge(uniform=uniform, top_k=1) == 1
    assert edge(uniform=uniform, top_p=0.1) == 1
    assert edge(uniform=uniform, top_p=1e-12) == 1
    assert edge(uniform=uniform, top_k=3, top_p=0.3) == 1


def test_min_p_one_keeps_exactly_the_likeliest() -> None:
    assert {edge(uniform=u, min_p=1.0) for u in (0.0, 0.49, 0.51, 1 - 2**-53)} == {1, 2}
    assert {edge(uniform=u, min_p=1.0, top_p=0.99) for u in (0.0, 0.49, 0.51, 0.99)} == {1, 2}


def test_top_p_is_taken_of_what_top_k_left() -> None:
    """Of tokens with 0.5, 0.3, 0.2 the first two hold 0.625 and 0.375 of their own sum."""
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log()
    last = 1 - 2**-53
    assert draw(logits, cuts_of([{"top_k": 2, "top_p": 0.6, "uniform": last}], 3)).item() == 0
    assert draw(logits, cuts_of([{"top_k": 2, "top_p": 0.65, "uniform": last}], 3)).item() == 1
    assert draw(logits, cuts_of([{"top_p": 0.6, "uniform": last}], 3)).item() == 1


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53])
@pytest.mark.parametrize("cut", [{}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.1}])
def test_the_smallest_temperature_is_greedy(uniform: float, cut: dict[str, float]) -> None:
    logits = torch.tensor([[1.0, 2.0, 30000.0, 29999.998, -math.inf]])
    row = {**cut, "uniform": uniform, "temperature": TINY}
    assert draw(logits, cuts_of([row], 5)).item() == 2


@pytest.mark.parametrize("cut", [{}, {"top_k": 40}, {"top_p": 0.999999}])
def test_the_greatest_number_never_draws_an_impossible_token(cut: dict[str, float]) -> None:
    logits = torch.full((1, 100), -math.inf)
    logits[0, [3, 50]] = torch.tensor([2.0, 1.0])
    row = {**cut, "uniform": 1 - 2**-53}
    assert draw(logits, cuts_of([row], 100)).item() == 50
    assert draw(logits, cuts_of([{**cut, "uniform": 0.0}], 100)).item() == 3


def test_a_row_of_nan_disturbs_no_other() -> None:
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(1))
    rows: list[dict[str, float]] = [{}, {"top_k": 4}, {"top_p": 0.8}, {"min_p": 0.2}]
    expected = draw(logits, cuts_of(rows)).tolist()
    for bad in range(4):
        broken = logits.clone()
        broken[bad, 3] = math.nan
        drawn = draw(broken, cuts_of(rows)).tolist()
        assert 0 <= drawn[bad] < VOCAB
        assert drawn[:bad] + drawn[bad + 1 :] == expected[:bad] + expected[bad + 1 :]


def test_rows_laid_out_by_id_are_drawn_by_what_was_given() -> None:
    def draw_rows(
        logits: torch.Tensor, temperature: torch.Tensor, min_p: torch.Tensor, uniform: torch.Tensor
    ) -> torch.Tensor:
        assert logits.shape == (temperature.shape[0], 10)
        assert min_p.shape == uniform.shape == temperature.shape
        return 100 + (10 * uniform).long()

    cuts = Cuts(
        temperature=torch.ones(4),
        top_k=torch.tensor([10, 1, 10, 10]),
        top_p=torch.tensor([1.0, 1.0, 1e-9, 1.0], dtype=torch.float64),
        min_p=torch.zeros(4),
        uniform=torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64),
    )
    logits = torch.arange(40.0).reshape(4, 10)
    assert draw(logits, cuts, draw_rows).tolist() == [101, 9, 9, 104]
    both = torch.tensor([0, 3])
    assert draw(logits[both], cuts.rows(both), draw_rows).tolist() == [101, 104]
