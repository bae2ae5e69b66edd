"""Choosing by SGLang's definitions, on matrices whose winners are known."""

from __future__ import annotations

from typing import Any

import pytest

import ramet as sgl

# Three options: a long likely one, one whose first token is best, one that the prompt favours most.
LOGPROBS = [[-1.0, -0.1, -0.1], [-0.5, -3.0], [-1.5, -1.0]]
BARE = [[-1.0, -0.1, -0.1], [-0.6, -2.0], [-8.0, -4.0]]


@pytest.mark.parametrize(
    ("method", "scores"),
    [
        (sgl.token_length_normalized, [-0.4, -1.75, -1.25]),
        (sgl.greedy_token_selection, [0.0, 3.0, 0.0]),
        (sgl.unconditional_likelihood_normalized, [0.0, -0.45, 4.75]),
        (sgl.total_likelihood, [-1.2, -3.5, -2.5]),
    ],
)
def test_each_method_scores_by_its_formula(method: Any, scores: list[float]) -> None:
    assert method.score(LOGPROBS, BARE) == pytest.approx(scores)


def test_greedy_continues_a_short_option_by_its_mean() -> None:
    assert sgl.greedy_token_selection.score([[-1.0], [-1.0, -0.5]], [[], []]) == [1.0, 2.0]
    assert sgl.greedy_token_selection.score([[-1.0], [-1.0, -2.0]], [[], []]) == [2.0, 1.0]


def test_an_option_of_no_tokens_scores_nothing() -> None:
    assert sgl.token_length_normalized.score([[], [-1.0]], [[], []]) == [0.0, -1.0]


def test_all_scores_are_kept(backend: Any) -> None:
    scores = {"Paris": [-0.2, -0.4], "Rome": [-3.0], "Bonn": [-1.0, -9.0]}
    backend.score_of = lambda prompt, option: scores[option]

    @sgl.function
    def program(s: sgl.State) -> None:
        s += sgl.user("The capital of France?")
        s += sgl.assistant(sgl.select("a", choices=list(scores)))
        s += sgl.assistant(
            sgl.gen("b", choices=["Rome"], choices_method=sgl.unconditional_likelihood_normalized)
        )

    state = program.run()
    meta = state.meta("a")
    assert state["a"] == "Paris" and meta["method"] == "token_length_normalized"
    assert meta["scores"] == pytest.approx({"Paris": -0.3, "Rome": -3.0, "Bonn": -5.0})
    assert meta["normalized_prompt_logprobs"] == pytest.approx([-0.3, -3.0, -5.0])
    assert meta["options"][2].logprobs == (-1.0, -9.0)
    assert [request.unconditional for request in backend.scorings] == [False, True]
    assert state.messages()[1] == {"role": "assistant", "content": "Paris"}
