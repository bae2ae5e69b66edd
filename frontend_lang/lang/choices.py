"""Which option a `select` takes, given the log-probabilities of their tokens.

The three of SGLang, by its definitions, and the plain one. Every method gives each option a score;
the first option with the highest score is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Matrix = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class ChoicesMethod:
    """A way to choose.

    Attributes:
        name: as in meta data.
        score: from the options' log-probabilities, and those without the prompt, to their scores.
        needs_unconditional: whether those without the prompt are needed.
    """

    name: str
    score: Callable[[Matrix, Matrix], list[float]]
    needs_unconditional: bool = False

    def __repr__(self) -> str:
        return self.name


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _token_length_normalized(logprobs: Matrix, unconditional: Matrix) -> list[float]:
    return [_mean(row) for row in logprobs]


def _total_likelihood(logprobs: Matrix, unconditional: Matrix) -> list[float]:
    return [sum(row) for row in logprobs]


def _unconditional_likelihood_normalized(logprobs: Matrix, unconditional: Matrix) -> list[float]:
    return [
        _mean([a - b for a, b in zip(row, bare, strict=True)])
        for row, bare in zip(logprobs, unconditional, strict=True)
    ]


def _greedy_token_selection(logprobs: Matrix, unconditional: Matrix) -> list[float]:
    """The score is how many positions an option stays among the best; a short one is continued by
    its mean, so that it can be compared with a longer one that begins with it."""
    size = max(len(row) for row in logprobs)
    rows = [[*row, *[_mean(row)] * (size - len(row))] for row in logprobs]
    survived = [0.0] * len(rows)
    alive = list(range(len(rows)))
    for position in range(size):
        best = max(rows[i][position] for i in alive)
        alive = [i for i in alive if rows[i][position] == best]
        for i in alive:
            survived[i] += 1.0
    return survived


token_length_normalized = ChoicesMethod("token_length_normalized", _token_length_normalized)
greedy_token_selection = ChoicesMethod("greedy_token_selection", _greedy_token_selection)
unconditional_likelihood_normalized = ChoicesMethod(
    "unconditional_likelihood_normalized", _unconditional_likelihood_normalized, True
)
total_likelihood = ChoicesMethod("total_likelihood", _total_likelihood)
