"""Penalties against their formulas, one request at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ramet.runtime.execution.penalties import Penalties
from ramet.runtime.request import SamplingParams

CPU = torch.device("cpu")
VOCAB = 12


def reference(
    logits: NDArray[np.float32], params: SamplingParams, prompt: list[int], output: list[int]
) -> NDArray[np.float64]:
    """The formulas, token by token."""
    result = logits.astype(np.float64)
    for token_id in range(len(result)):
        if token_id in prompt or token_id in output:
            repetition = params.repetition_penalty
            result[token_id] *= 1 / repetition if result[token_id] > 0 else repetition
        count = output.count(token_id)
        result[token_id] -= params.frequency_penalty * count
        result[token_id] -= params.presence_penalty * (count > 0)
    return result


def params_of(repetition: float, presence: float, frequency: float) -> SamplingParams:
    return SamplingParams(
        repetition_penalty=repetition, presence_penalty=presence, frequency_penalty=frequency
    )


@settings(deadline=None, max_examples=60)
@given(
    requests=st.lists(
        st.tuples(
            st.sampled_from([0.5, 1.0, 1.3, 2.0]),
            st.sampled_from([-2.0, 0.0, 0.7]),
            st.sampled_from([-0.5, 0.0, 2.0]),
            st.lists(st.integers(0, VOCAB - 1), max_size=6),
            st.lists(st.integers(0, VOCAB - 1), max_size=6),
        ),
        min_size=1,
        max_size=6,
    ),
    seed=st.integers(0, 1000),
)
def test_penalties_follow_their_formulas(
    requests: list[tuple[float, float, float, list[int], list[int]]], seed: int
) -> None:
    penalties = Penalties(VOCAB, CPU)
    logits = np.random.default_rng(seed).normal(0, 2, (len(requests), VOCAB)).astype(np.float32)
    expected = []
    for index, (repetition, presence, frequency, prompt, output) in enumerate(requests):
        params = params_of(repetition, presence, frequency)
        penalties.add(str(index), params, np.array(prompt, np.int32))
        for token_id in output:
            penalties.record([str(index)], [token_id])
        expected.append(reference(logits[index], params, prompt, output))
    # The requests' rows lie in another order and among rows of others.
    rows = torch.arange(len(requests)).flip(0) + 1
    actual = torch.full((len(requests) + 2, VOCAB), 7.0)
    actual[rows] = torch.from_numpy(logits)
    penalties.apply(actual, rows, [str(index) for index in range(len(requests))])
    np.testing.assert_allclose(actual[rows], expected, rtol=1e-5, atol=1e-5)
    assert (actual[[0, -1]] == 7.0).all()


def test_prompt_tokens_count_for_repetition_only() -> None:
    penalties = Penalties(VOCAB, CPU)
    penalties.add("a", params_of(1.0, 1.0, 1.0), np.array([1, 1, 2], np.int32))
    penalties.add("b", params_of(2.0, 0.0, 0.0), np.array([1, 1, 2], np.int32))
    logits = torch.ones(2, VOCAB)
    penalties.apply(logits, torch.tensor([0, 1]), ["a", "b"])
    assert logits[0].tolist() == [1.0] * VOCAB
    assert logits[1, :4].tolist() == [1.0, 0.5, 0.5, 1.0]


def test_negative_infinity_stays_and_nothing_becomes_nan() -> None:
    penalties = Penalties(VOCAB, CPU)
    penalties.add("a", params_of(1.5, -2.0, -2.0), np.array([0], np.int32))
    penalties.record(["a"], [0])
    logits = torch.full((1, VOCAB), -math.inf)
    penalties.apply(logits, torch.tensor([0]), ["a"])
    assert (logits == -math.inf).all()


def test_a_reused_row_starts_empty() -> None:
    penalties = Penalties(VOCAB, CPU)
    for name in ("first", "second", "third"):
        for index in range(9):
            request_id = f"{name}-{index}"
            penalties.add(request_id, params_of(2.0, 1.0, 1.0), np.array([index], np.int32))
            logits = torch.ones(1, VOCAB)
            penalties.apply(logits, torch.tensor([0]), [request_id])
            expected = [0.5 if token_id == index else 1.0 for token_id in range(VOCAB)]
            assert logits[0].tolist() == expected
            penalties.record([request_id], [11 - index])
        for index in range(9):
            penalties.remove(f"{name}-{index}")


def test_removing_a_request_without_penalties_does_nothing() -> None:
    penalties = Penalties(VOCAB, CPU)
    penalties.remove("unknown")
    assert "unknown" not in penalties


@pytest.mark.parametrize("token_id", [-1, VOCAB])
def test_prompt_ids_outside_the_vocabulary_raise(token_id: int) -> None:
    penalties = Penalties(VOCAB, CPU)
    with pytest.raises(ValueError, match="outside the vocabulary of 12 tokens"):
        penalties.add("a", params_of(1.0, 1.0, 0.0), np.array([3, token_id], np.int32))
    assert "a" not in penalties
