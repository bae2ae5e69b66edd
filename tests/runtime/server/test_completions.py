"""Completions over HTTP, whole answers."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from ramet.runtime.text.tokenizer import Tokenizer


async def complete(http: httpx.AsyncClient, prompt: Any = "hi", **fields: Any) -> Any:
    response = await http.post("/v1/completions", json={"prompt": prompt, **fields})
    assert response.status_code == 200, response.text
    return response.json()


async def test_an_answer_has_every_field(http: httpx.AsyncClient, engine: Any) -> None:
    answer = await complete(http)
    assert answer["object"] == "text_completion" and answer["id"].startswith("cmpl-")
    (choice,) = answer["choices"]
    assert choice["index"] == 0 and choice["text"] == "Hello there!"
    assert choice["finish_reason"] == "stop" and choice["logprobs"] is None
    assert answer["usage"]["prompt_tokens"] == 2 and answer["usage"]["total_tokens"] == 15
    assert engine.requests[0].params.max_tokens == 16, "16 unless given"


async def test_a_prompt_may_be_text_or_ids_or_several_of_either(
    http: httpx.AsyncClient, engine: Any, tokenizer: Tokenizer
) -> None:
    texts = ["hi", "Bob"]
    ids = [tokenizer.encode(text, False) for text in texts]
    await complete(http, texts[0])
    await complete(http, ids[0])
    assert [c["index"] for c in (await complete(http, texts))["choices"]] == [0, 1]
    assert (await complete(http, ids))["usage"]["prompt_tokens"] == 5
    got = [request.prompt_ids for request in engine.requests]
    assert got == [ids[0], ids[0], *ids, *ids]


async def test_choices_go_by_prompt_and_then_by_sample(
    http: httpx.AsyncClient, engine: Any
) -> None:
    engine.num_cached_tokens = 1
    answer = await complete(http, ["ab", "c"], n=3, echo=True, seed=5)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3, 4, 5]
    assert [c["text"].removesuffix("Hello there!") for c in answer["choices"]] == ["ab"] * 3 + [
        "c"
    ] * 3
    usage = answer["usage"]
    assert usage["prompt_tokens"] == 3 and usage["completion_tokens"] == 6 * 13
    assert usage["prompt_tokens_details"]["cached_tokens"] == 2, "the first sample of each prompt"
    seeds = [request.params.seed for request in engine.requests]
    assert seeds[:3] == seeds[3:] and len(set(seeds)) == 3 and seeds[0] == 5


async def test_echo_shows_the_prompt_as_it_was_given(
    http: httpx.AsyncClient, tokenizer: Tokenizer
) -> None:
    prompt = "naïve 🧪"
    for form in (prompt, tokenizer.encode(prompt, False)):
        (choice,) = (await complete(http, form, echo=True))["choices"]
        assert choice["text"] == f"{prompt}Hello there!"


async def test_logprobs_are_four_lists_of_one_length(http: httpx.AsyncClient) -> None:
    (choice,) = (await complete(http, logprobs=2, max_tokens=3))["choices"]
    assert choice["logprobs"] == {
        "tokens": ["H", "e", "l"],
        "token_logprobs": [-1.0, -0.625, -0.5],
        "top_logprobs": [
            {"H": -1.0, "I": -2.0},
            {"e": -0.625, "f": -1.625},
            {"l": -0.5, "m": -1.5},
        ],
        "text_offset": [0, 1, 2],
    }


async def test_the_sampled_token_is_listed_even_without_others(http: httpx.AsyncClient) -> None:
    (choice,) = (await complete(http, logprobs=0, max_tokens=1))["choices"]
    assert choice["logprobs"]["top_logprobs"] == [{"H": -1.0}]


async def test_echo_with_logprobs_scores_the_prompt(http: httpx.AsyncClient) -> None:
    (choice,) = (await complete(http, "abc", logprobs=1, echo=True, max_tokens=1))["choices"]
    scores = choice["logprobs"]
    assert scores["tokens"] == ["a", "b", "c", "H"] and scores["text_offset"] == [0, 1, 2, 3]
    assert scores["token_logprobs"][0] is None and scores["top_logprobs"][0] is None
    assert all(value <= 0 for value in scores["token_logprobs"][1:])
    assert all(scores["top_logprobs"][1:]) and "prompt_logprobs" not in choice


async def test_scored_tokens_join_to_the_echoed_text(http: httpx.AsyncClient) -> None:
    (choice,) = (await complete(http, "naïve 🧪", logprobs=1, echo=True))["choices"]
    assert choice["text"] == "naïve 🧪Hello there!"
    assert "".join(choice["logprobs"]["tokens"]).removesuffix("<|im_end|>") == choice["text"]


async def test_a_prompt_can_be_scored_alone(http: httpx.AsyncClient) -> None:
    answer = await complete(http, "abc", logprobs=1, echo=True, max_tokens=0)
    (choice,) = answer["choices"]
    assert choice["text"] == "abc" and choice["finish_reason"] == "length"
    assert choice["logprobs"]["tokens"] == ["a", "b", "c"]
    assert answer["usage"]["completion_tokens"] == 0


async def test_prompt_logprobs_are_one_map_per_prompt_token(
    http: httpx.AsyncClient, tokenizer: Tokenizer
) -> None:
    (choice,) = (await complete(http, "abc", prompt_logprobs=1, max_tokens=1))["choices"]
    first, *rows = choice["prompt_logprobs"]
    assert first is None
    for row, token in zip(rows, tokenizer.encode("bc", False), strict=True):
        assert list(row) == [str(token)] and row[str(token)]["rank"] == 1
        assert row[str(token)]["decoded_token"] == tokenizer.token_text(token)


async def test_token_ids_of_a_choice_have_its_prompt_beside_them(
    http: httpx.AsyncClient, tokenizer: Tokenizer
) -> None:
    answer = await complete(http, ["a", "bc"], return_token_ids=True, max_tokens=1)
    prompts = [choice["prompt_token_ids"] for choice in answer["choices"]]
    assert prompts == [tokenizer.encode("a", False), tokenizer.encode("bc", False)]
    assert [len(choice["token_ids"]) for choice in answer["choices"]] == [1, 1]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [10**9]}, "prompt"),
        ({"prompt": [10**30]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [[1], [-1]], "echo": True}, "prompt"),
        ({"prompt": ["x"] * 600, "n": 2}, "prompt"),
        ({"prompt": "a", "max_tokens": -1}, "max_tokens"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "logprobs": -3}, "logprobs"),
        ({"prompt": "a", "logprobs": 500}, "logprobs"),
        ({"prompt": "a", "suffix": "end"}, "suffix"),
        ({"prompt": "a", "best_of": 3, "n": 2}, "best_of"),
        ({"prompt": "a", "best_of": 1, "n": 2}, "best_of"),
        ({"prompt": "a", "prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"prompt": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"prompt": "a", "timeout": 0}, "timeout"),
    ],
    ids=str,
)
async def test_an_invalid_request_is_a_400_that_names_the_field(
    http: httpx.AsyncClient, engine: Any, fields: dict[str, Any], param: str
) -> None:
    response = await http.post("/v1/completions", json=fields)
    error = response.json()["error"]
    assert response.status_code == 400 and error["type"] == "invalid_request_error"
    assert error["param"] == param and not engine.requests


async def test_best_of_as_many_as_are_returned_is_accepted(http: httpx.AsyncClient) -> None:
    assert len((await complete(http, best_of=2, n=2))["choices"]) == 2


async def test_a_prompt_beyond_the_context_is_refused_with_the_counts(
    http: httpx.AsyncClient,
) -> None:
    response = await http.post("/v1/completions", json={"prompt": ["a", "x" * 512]})
    error = response.json()["error"]
    assert response.status_code == 400 and error["code"] == "context_length_exceeded"
    assert error["param"] == "prompt" and "512" in error["message"]


async def test_the_samples_of_each_prompt_are_siblings(
    http: httpx.AsyncClient, engine: Any
) -> None:
    body = {"prompt": ["a", "b"], "n": 2, "max_tokens": 1}
    assert (await http.post("/v1/completions", json=body)).status_code == 200
    first, second = engine.requests[:2], engine.requests[2:]
    assert first[0].group == first[1].group != second[0].group == second[1].group
