"""Perplexity and agreement: what they are of, and that equal models agree."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from ramet.bench.quality import Result, common_prefix, measure, table, windows


def result(
    precision: str = "a",
    *,
    logprobs: tuple[float, ...] = (-1.0, -3.0),
    choices: tuple[int, ...] = (1, 2, 3, 4),
    answers: tuple[tuple[int, ...], ...] = ((1, 2, 3), (4, 5, 6)),
) -> Result:
    return Result(precision, logprobs, choices, answers, weight_bytes=2_000_000, seconds=1.0)


def test_perplexity_is_the_exponential_of_the_mean() -> None:
    assert result().perplexity == pytest.approx(math.exp(2.0))


def test_agreement_counts_positions_and_tokens_up_to_the_first_that_differs() -> None:
    other = result(choices=(1, 2, 0, 0), answers=((1, 0, 3), (4, 5, 6)))
    assert result().same_choices(other) == 0.5
    assert result().same_prefix(other) == pytest.approx(4 / 6)
    assert result().same_answers(other) == 0.5


def test_common_prefix_ends_at_the_first_difference_or_with_the_shorter() -> None:
    assert common_prefix([1, 2, 3], [1, 2, 4]) == 2
    assert common_prefix([1, 2], [1, 2, 4]) == 2
    assert common_prefix([], [1]) == 0


def test_table_compares_every_precision_with_the_first_two() -> None:
    rows = table([result("a"), result("b"), result("c", choices=(1, 2, 3, 0))]).splitlines()
    assert rows[2].split(" | ")[:3] == ["| a", "2", "7.389"]
    assert rows[2].count("-") == 3
    assert rows[4].split(" | ")[3] == rows[4].split(" | ")[6] == "0.750"


def test_windows_are_whole_and_a_text_that_is_too_short_is_told() -> None:
    assert windows(list(range(10)), 9, 4) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(ValueError, match="has 10 tokens, not 11"):
        windows(list(range(10)), 11, 4)


@pytest.mark.real_model
@pytest.mark.parametrize("precision", ["int4", "int8-kv"])
def test_the_real_model_has_read_documentation(smollm2_path: Path, precision: str) -> None:
    measured = measure(str(smollm2_path), precision, num_tokens=300, window=128, num_answers=2)
    # Two whole windows, of which the first token is not scored.
    assert len(measured.logprobs) == len(measured.choices) == 2 * 127
    assert [len(answer) for answer in measured.answers] == [64, 64]
    assert 3 < measured.perplexity < 100
