"""Log-probabilities against the definition in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from ramet.runtime.execution.logprobs import MIN_LOGPROB, prompt_logprobs, token_logprobs


def random_logits(num_rows: int, vocab_size: int = 101) -> torch.Tensor:
    values = np.random.default_rng(3).normal(0, 3, (num_rows, vocab_size))
    return torch.from_numpy(values.astype(np.float32))


def test_values_ranks_and_tops_follow_the_definition() -> None:
    logits = random_logits(40)
    token_ids = list(range(40))
    entries = prompt_logprobs(logits, token_ids, 5)
    assert len(entries) == 40
    for row, token_id, entry in zip(logits.double().numpy(), token_ids, entries, strict=True):
        logprobs = row - np.log(np.exp(row).sum())
        order = np.argsort(-logprobs)
        assert entry.token_id == token_id
        assert entry.logprob == pytest.approx(logprobs[token_id], abs=1e-5)
        assert entry.rank == order.tolist().index(token_id) + 1
        assert entry.top_ids == tuple(order[:5])
        assert entry.top_logprobs == pytest.approx(logprobs[order[:5]], abs=1e-5)
        assert list(entry.top_logprobs) == sorted(entry.top_logprobs, reverse=True)


def test_a_listed_token_has_the_identical_value_in_the_list() -> None:
    logits = random_logits(20)
    token_ids = logits.topk(3).indices[:, 2].tolist()
    for entry in prompt_logprobs(logits, token_ids, 4):
        assert entry.top_ids.index(entry.token_id) == entry.rank - 1 == 2
        assert entry.top_logprobs[2] == entry.logprob


def test_equal_tokens_are_ranked_by_id() -> None:
    entry = prompt_logprobs(torch.zeros(1, 6), [3], 6)[0]
    assert entry.rank == 4
    assert entry.top_ids == (0, 1, 2, 3, 4, 5)


def test_impossible_tokens_have_the_floor() -> None:
    logits = torch.tensor([[0.0, -math.inf, 0.0]])
    entry = prompt_logprobs(logits, [1], 3)[0]
    assert entry.logprob == MIN_LOGPROB == -9999.0
    assert entry.top_logprobs[2] == MIN_LOGPROB
    assert entry.rank == 3


def test_rows_may_ask_for_different_numbers() -> None:
    logits = random_logits(3)
    entries = token_logprobs(logits, [1, 2, 3], [0, 2, 20])
    assert [len(entry.top_ids) for entry in entries] == [0, 2, 20]
    assert [entry.top_ids for entry in entries[1:]] == [
        prompt_logprobs(logits[1:2], [2], 2)[0].top_ids,
        prompt_logprobs(logits[2:3], [3], 20)[0].top_ids,
    ]


def test_more_than_the_vocabulary_lists_all_of_it() -> None:
    assert sorted(prompt_logprobs(torch.zeros(1, 4), [0], 20)[0].top_ids) == [0, 1, 2, 3]


def test_a_row_alone_and_among_many_is_the_same_to_the_bit() -> None:
    logits = random_logits(50, 1003)
    together = prompt_logprobs(logits, list(range(50)), 7)
    for row in (0, 15, 16, 33, 49):
        assert prompt_logprobs(logits[row : row + 1], [row], 7) == [together[row]]


def test_token_ids_may_be_an_array() -> None:
    logits = random_logits(2)
    assert prompt_logprobs(logits, np.array([4, 5], np.int32), 1) == prompt_logprobs(
        logits, [4, 5], 1
    )


def test_a_number_of_tokens_other_than_of_rows_raises() -> None:
    with pytest.raises(ValueError, match="2 rows of logits for 1 tokens"):
        prompt_logprobs(torch.zeros(2, 4), [0], 1)


def test_no_rows_give_no_entries() -> None:
    assert prompt_logprobs(torch.zeros(0, 4), [], 3) == []
