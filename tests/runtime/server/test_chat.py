"""Chat over HTTP, whole answers: what the client gets, and what the engine is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from ramet.runtime.text.tokenizer import Tokenizer

HI = [{"role": "user", "content": "hi"}]
RENDERED_HI = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


async def chat(http: httpx.AsyncClient, **fields: Any) -> Any:
    response = await http.post("/v1/chat/completions", json={"messages": HI, **fields})
    assert response.status_code == 200, response.text
    return response.json()


async def test_an_answer_has_every_field(
    http: httpx.AsyncClient, engine: Any, tokenizer: Tokenizer
) -> None:
    engine.num_cached_tokens = 5
    answer = await chat(http)
    assert answer["object"] == "chat.completion" and answer["id"].startswith("chatcmpl-")
    assert answer["model"] == "org/bytes" and isinstance(answer["created"], int)
    assert answer["system_fingerprint"].startswith("fp_")
    (choice,) = answer["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"] == "Hello there!"
    assert "tool_calls" not in choice["message"]
    assert choice["index"] == 0 and choice["finish_reason"] == "stop"
    assert choice["logprobs"] is None and choice["stop_reason"] is None
    num_prompt = len(tokenizer.encode(RENDERED_HI, False))
    assert answer["usage"] == {
        "prompt_tokens": num_prompt,
        "completion_tokens": 13,
        "total_tokens": num_prompt + 13,
        "prompt_tokens_details": {"cached_tokens": 5},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


async def test_the_engine_gets_the_rendered_conversation(
    http: httpx.AsyncClient, engine: Any, tokenizer: Tokenizer
) -> None:
    await chat(http)
    (request,) = engine.requests
    assert tokenizer.decode(request.prompt_ids, False) == RENDERED_HI


async def test_answers_have_different_ids(http: httpx.AsyncClient) -> None:
    assert (await chat(http))["id"] != (await chat(http))["id"]


async def test_a_request_id_names_the_answer_and_may_repeat(http: httpx.AsyncClient) -> None:
    for name in ("request_id", "rid"):
        for _ in range(2):
            assert (await chat(http, **{name: "mine"}))["id"] == "chatcmpl-mine"


async def test_without_a_limit_the_answer_may_fill_the_context(
    http: httpx.AsyncClient, engine: Any
) -> None:
    await chat(http)
    (request,) = engine.requests
    assert request.params.max_tokens == 512 - len(request.prompt_ids)


async def test_a_limit_beyond_the_context_is_cut_to_what_fits(
    http: httpx.AsyncClient, engine: Any
) -> None:
    await chat(http, max_tokens=100_000)
    (request,) = engine.requests
    assert request.params.max_tokens == 512 - len(request.prompt_ids)


async def test_the_newer_name_of_the_limit_wins(http: httpx.AsyncClient) -> None:
    answer = await chat(http, max_tokens=9, max_completion_tokens=4)
    assert answer["usage"]["completion_tokens"] == 4
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["choices"][0]["message"]["content"] == "Hell"


async def test_a_prompt_that_leaves_no_room_is_refused_with_the_counts(
    http: httpx.AsyncClient, engine: Any
) -> None:
    messages = [{"role": "user", "content": "x" * 600}]
    for stream in (False, True):
        response = await http.post(
            "/v1/chat/completions", json={"messages": messages, "stream": stream}
        )
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["code"] == "context_length_exceeded" and error["param"] == "messages"
        assert "maximum context length is 512" in error["message"] and "619" in error["message"]
    assert not engine.requests


async def test_truncation_on_demand_keeps_the_end_or_the_start(
    http: httpx.AsyncClient, engine: Any, tokenizer: Tokenizer
) -> None:
    await chat(http, truncate_prompt_tokens=3)
    await chat(http, truncate_prompt_tokens=3, truncation_side="right")
    messages = [{"role": "user", "content": "x" * 600}]
    await chat(http, messages=messages, truncate_prompt_tokens=-1, max_tokens=4)
    last, first, fitted = (request.prompt_ids for request in engine.requests)
    whole = tokenizer.encode(RENDERED_HI, False)
    assert (last, first, len(fitted)) == (whole[-3:], whole[:3], 508)


async def test_samples_have_seeds_of_their_own_and_the_prompt_counts_once(
    http: httpx.AsyncClient, engine: Any
) -> None:
    one = await chat(http, seed=7)
    four = await chat(http, seed=7, n=4)
    assert [c["index"] for c in four["choices"]] == [0, 1, 2, 3]
    assert four["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]
    assert four["usage"]["completion_tokens"] == 4 * one["usage"]["completion_tokens"]
    seeds = [request.params.seed for request in engine.requests]
    assert seeds[0] == seeds[1] == 7 and len(set(seeds[1:])) == 4
    assert len({request.request_id for request in engine.requests}) == 5


async def test_a_missing_seed_is_drawn_anew(http: httpx.AsyncClient, engine: Any) -> None:
    await chat(http)
    await chat(http)
    first, second = (request.params.seed for request in engine.requests)
    assert first is not None and second is not None and first != second


async def test_a_stop_string_ends_the_answer_and_is_reported(http: httpx.AsyncClient) -> None:
    (choice,) = (await chat(http, stop=["zzz", "o th"]))["choices"]
    assert choice["message"]["content"] == "Hell"
    assert choice["finish_reason"] == "stop" and choice["stop_reason"] == "o th"


async def test_a_stop_string_can_be_kept(http: httpx.AsyncClient) -> None:
    for name in ("include_stop_str_in_output", "no_stop_trim"):
        (choice,) = (await chat(http, stop="o th", **{name: True}))["choices"]
        assert choice["message"]["content"] == "Hello th"


async def test_a_stop_string_that_the_engine_overlooks_ends_the_request(
    http: httpx.AsyncClient, engine: Any
) -> None:
    engine.ignores_stop = True
    (choice,) = (await chat(http, stop="ll"))["choices"]
    assert choice["message"]["content"] == "He" and choice["finish_reason"] == "stop"
    assert len(engine.aborted) == 1


async def test_a_stop_token_is_no_part_of_the_text_but_counts(
    http: httpx.AsyncClient, tokenizer: Tokenizer
) -> None:
    (stop,) = tokenizer.encode("o", False)
    answer = await chat(http, stop_token_ids=[stop], return_token_ids=True)
    (choice,) = answer["choices"]
    assert choice["message"]["content"] == "Hell" and choice["stop_reason"] == stop
    assert choice["token_ids"][-1] == stop and answer["usage"]["completion_tokens"] == 5


async def test_held_back_text_is_released_at_the_limit(http: httpx.AsyncClient) -> None:
    (choice,) = (await chat(http, stop="ell!", max_tokens=4))["choices"]
    assert choice["message"]["content"] == "Hell" and choice["finish_reason"] == "length"


async def test_token_ids_come_on_request(http: httpx.AsyncClient, tokenizer: Tokenizer) -> None:
    answer = await chat(http, return_token_ids=True)
    assert answer["prompt_token_ids"] == tokenizer.encode(RENDERED_HI, False)
    assert answer["choices"][0]["token_ids"] == [*tokenizer.encode("Hello there!", False), 258]


async def test_prompt_logprobs_come_on_request(http: httpx.AsyncClient) -> None:
    answer = await chat(http, prompt_logprobs=1)
    rows = answer["prompt_logprobs"]
    assert len(rows) == answer["usage"]["prompt_tokens"] and rows[0] is None
    (entry,) = rows[-1].values()
    assert entry["rank"] == 1 and entry["decoded_token"] == "\n" and entry["logprob"] <= 0


async def test_every_sampling_field_reaches_the_engine(
    http: httpx.AsyncClient, engine: Any
) -> None:
    fields = {
        "temperature": 0.5,
        "top_k": 4,
        "top_p": 0.9,
        "min_p": 0.1,
        "presence_penalty": 0.25,
        "frequency_penalty": -0.25,
        "repetition_penalty": 1.5,
        "seed": -3,
        "min_tokens": 2,
        "ignore_eos": True,
        "skip_special_tokens": False,
        "prompt_logprobs": 2,
    }
    await chat(
        http,
        **fields,
        max_tokens=6,
        logit_bias={"65": 1},
        stop="x",
        stop_token_ids=[9],
        include_stop_str_in_output=True,
        logprobs=True,
        top_logprobs=3,
        priority=5,
        timeout=9.5,
    )
    (request,) = engine.requests
    params = request.params
    got = {name: getattr(params, name) for name in fields} | {"seed": -3}
    assert got == fields and params.seed % 2**64 == -3 % 2**64
    assert (params.max_tokens, params.logit_bias, params.stop) == (6, {65: 1.0}, ("x",))
    assert (params.stop_token_ids, params.include_stop_str_in_output) == ((9,), True)
    assert (params.logprobs, request.priority, request.timeout) == (3, 5, 9.5)


async def test_nulls_and_inert_fields_change_nothing(http: httpx.AsyncClient, engine: Any) -> None:
    plain = await chat(http, seed=1)
    nulls = dict.fromkeys(
        "n stop stream stream_options presence_penalty top_logprobs logit_bias max_tokens tools "
        "response_format logprobs top_k user metadata cache_salt".split()
    )
    inert = {
        "user": "u",
        "store": False,
        "metadata": {"run": "7"},
        "service_tier": "auto",
        "modalities": ["text"],
        "response_format": {"type": "text"},
        "verbosity": "low",
        "reasoning_effort": "low",
        "prediction": {"type": "content", "content": "x"},
        "parallel_tool_calls": True,
        "tools": [],
        "tool_choice": "auto",
        "session_id": "s",
        "bad_words": [],
        "length_penalty": 1.0,
        "some_future_field": {"x": 1},
        "chat_template_kwargs": {"enable_thinking": False},
        "stream_options": {},
    }
    for fields in (nulls, inert):
        answer = await chat(http, seed=1, **fields)
        assert answer["choices"] == plain["choices"] and answer["usage"] == plain["usage"]
    first, *others = (r.params for r in engine.requests)
    assert others == [first, first]
    assert answer["service_tier"] == "default" and answer["metadata"] == {"run": "7"}


async def test_message_forms_are_equivalent(http: httpx.AsyncClient, engine: Any) -> None:
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    await chat(http)
    await chat(http, messages=[{"role": "user", "content": parts, "name": "ann"}])
    first, second = (request.prompt_ids for request in engine.requests)
    assert first == second


async def test_a_past_tool_call_reaches_the_prompt(
    http: httpx.AsyncClient, engine: Any, tokenizer: Tokenizer
) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "heat", "arguments": '{"to":21}'}}
    history = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
        {"role": "tool", "tool_call_id": "c", "content": "done, 21 degrees"},
    ]
    await chat(http, messages=history)
    text = tokenizer.decode(engine.requests[0].prompt_ids, False)
    assert "done, 21 degrees" in text and "heat" in text


async def test_the_final_message_can_be_continued(
    http: httpx.AsyncClient, engine: Any, tokenizer: Tokenizer
) -> None:
    messages = [*HI, {"role": "assistant", "content": "My colour is"}]
    await chat(http, messages=messages, continue_final_message=True)
    assert tokenizer.decode(engine.requests[0].prompt_ids, False).endswith("My colour is")


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("naïve 🧪", 10), ("日本語", 7)],
)
async def test_characters_of_several_tokens_are_whole(
    http: httpx.AsyncClient, engine: Any, say: Callable[..., Any], text: str, tokens: int
) -> None:
    engine.reply = say(text)
    (choice,) = (await chat(http, max_tokens=tokens))["choices"]
    expected = text.encode()[:tokens].decode("utf-8", "replace")
    assert choice["message"]["content"] == expected


async def test_chat_logprobs_are_one_entry_per_token_with_its_own_bytes(
    http: httpx.AsyncClient, engine: Any, say: Callable[..., Any]
) -> None:
    engine.reply = say("é!")
    answer = await chat(http, logprobs=True, top_logprobs=2, max_tokens=3)
    content = answer["choices"][0]["logprobs"]["content"]
    assert bytes(b for token in content for b in token["bytes"]).decode() == "é!"
    assert [token["token"] for token in content] == ["\ufffd", "\ufffd", "!"]
    for token in content:
        values = [top["logprob"] for top in token["top_logprobs"]]
        assert len(values) == 2 and values == sorted(values, reverse=True)
        assert token["top_logprobs"][0] == {k: token[k] for k in ("token", "logprob", "bytes")}


async def test_tokens_can_be_named_by_their_ids(http: httpx.AsyncClient) -> None:
    answer = await chat(http, logprobs=True, return_tokens_as_token_ids=True, max_tokens=1)
    (token,) = answer["choices"][0]["logprobs"]["content"]
    assert token["token"].startswith("token_id:") and bytes(token["bytes"]) == b"H"
