"""Fields of chat requests: what is refused, and that the refusal names the field."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from ramet.runtime.errors import InvalidRequest
from ramet.runtime.server.protocol import (
    MAX_TOP_K,
    CompletionRequest,
    parse_prompts,
    sampling_params,
)

HI = [{"role": "user", "content": "hi"}]
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}
TOOL = {"type": "function", "function": {"name": "ping"}}

BAD: list[tuple[dict[str, Any], str]] = [
    ({"messages": None}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": [{"content": "hi"}]}, "messages"),
    ({"messages": [{"role": "wizard", "content": "hi"}]}, "messages"),
    ({"messages": [{"role": "user", "content": 7}]}, "messages"),
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages"),
    ({"model": 5}, "model"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"temperature": 10**400}, "temperature"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_p": -0.5}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 1.5}, "min_p"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -5}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_tokens": 4, "min_tokens": 9}, "min_tokens"),
    ({"min_tokens": 10**6}, "min_tokens"),
    ({"presence_penalty": 2.5}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"logit_bias": {"5": 101}}, "logit_bias"),
    ({"logit_bias": {"cat": 5}}, "logit_bias"),
    ({"logit_bias": {"5": "x"}}, "logit_bias"),
    ({"logit_bias": {"99999999": 5}}, "logit_bias"),
    ({"logit_bias": {"-1": 5}}, "logit_bias"),
    ({"logprobs": 3}, "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -2}, "top_logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": "yes"}, "stream"),
    ({"stop": 5}, "stop"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop"),
    ({"stop_token_ids": [10**9]}, "stop_token_ids"),
    ({"seed": "x"}, "seed"),
    ({"seed": 2**70}, "seed"),
    ({"priority": 2**40}, "priority"),
    ({"cache_salt": ""}, "cache_salt"),
    ({"cache_salt": "x" * 129}, "cache_salt"),
    ({"timeout": -1}, "timeout"),
    ({"prompt_logprobs": 21}, "prompt_logprobs"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ({"add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ({"response_format": {"type": "sound"}}, "response_format"),
    ({"response_format": 5}, "response_format"),
    ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs"),
    ({"guided_choice": "a"}, "guided_choice"),
    ({"regex": "a", "ebnf": "root ::= x"}, "ebnf"),
    ({"tools": [{**TOOL, "function": {"name": 7}}]}, "tools"),
    ({"tools": [{"type": "web_search"}]}, "tools"),
    ({"tools": [TOOL], "tool_choice": "maybe"}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"audio": {"voice": "x"}}, "audio"),
    ({"bad_words": ["x"]}, "bad_words"),
    ({"allowed_token_ids": [1]}, "allowed_token_ids"),
    ({"use_beam_search": True}, "use_beam_search"),
    ({"lora_path": "x"}, "lora_path"),
    ({"best_of": 2}, "best_of"),
    ({"chat_template": "{{ x }}"}, "chat_template"),
    ({"echo": True}, "echo"),
]


CASES: list[tuple[dict[str, Any], str, dict[str, bool]]] = [
    (fields, named, {}) for fields, named in BAD
] + [
    (fields, named, {"stream": True})
    for fields, named in BAD
    if not {"stream", "stream_options"} & fields.keys()
]


@pytest.mark.parametrize(("fields", "named", "stream"), CASES, ids=str)
async def test_an_invalid_request_is_a_400_that_names_the_field(
    http: httpx.AsyncClient,
    engine: Any,
    fields: dict[str, Any],
    named: str,
    stream: dict[str, bool],
) -> None:
    body = {"messages": HI, **stream, **fields}
    response = await http.post("/v1/chat/completions", json=body)
    error = response.json()["error"]
    assert response.status_code == 400 and error["type"] == "invalid_request_error"
    assert re.search(rf"\b{named}\b", error["param"]) or re.search(
        rf"\b{named}\b", error["message"]
    )
    assert not engine.requests


def request(**fields: Any) -> CompletionRequest:
    return CompletionRequest(prompt="x", **fields)


def test_a_top_p_of_zero_is_the_likeliest_token_alone() -> None:
    params = sampling_params(request(top_p=0.0), max_tokens=1, logprobs=None)
    assert (params.top_p, params.top_k) == (1.0, 1)


def test_a_top_k_beyond_every_vocabulary_is_bounded() -> None:
    params = sampling_params(request(top_k=10**30), max_tokens=1, logprobs=None)
    assert params.top_k == MAX_TOP_K


def test_a_single_stop_string_is_one_of_a_list() -> None:
    for given, expected in (("ab", ("ab",)), (["a", "b"], ("a", "b")), ([], ()), (None, ())):
        params = sampling_params(request(stop=given), max_tokens=1, logprobs=None)
        assert params.stop == expected


def test_prompts_are_told_apart_by_their_items() -> None:
    assert parse_prompts("x") == ["x"]
    assert parse_prompts(["x", "y"]) == ["x", "y"]
    assert parse_prompts([1, 2]) == [[1, 2]]
    assert parse_prompts([[1, 2], [3]]) == [[1, 2], [3]]
    wrongs: list[Any] = [None, 5, [], {}, [1, "x"], [1.0], [True], [[1], "x"], [[1.5]]]
    for wrong in wrongs:
        with pytest.raises(InvalidRequest, match="prompt"):
            parse_prompts(wrong)
