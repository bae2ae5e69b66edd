"""Bodies per dialect, and when a stream is an answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ramet.bench.protocol import AnswerStream, Prompt, Result, ServerError, Target


def event(text: str, *, index: int = 0, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": index, "text": text, "finish_reason": finish}]}


def replay(prompt: Prompt, events: list[Any]) -> Result:
    """Feed events that arrive at 1, 2, 3 … seconds after the request was due."""
    stream = AnswerStream(prompt)
    for second, item in enumerate(events, start=1):
        text = item if isinstance(item, str) else json.dumps(item)
        stream.feed(f"data: {text}\n".encode(), float(second))
    return stream.result()


PROMPT = Prompt(text="hello", max_tokens=3, due=0.0)


def test_times_of_a_plain_answer() -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}}
    result = replay(PROMPT, [event("a"), event("b"), event("c", finish="length"), usage, "[DONE]"])
    assert (result.ttft, result.latency, result.gaps) == (1.0, 5.0, [1.0, 1.0])
    assert result.time_per_token == 1.0
    assert (result.num_prompt_tokens, result.num_output_tokens) == (9, 3)
    assert result.texts == ["abc"]
    assert result.num_cached_tokens is None


def test_samples_are_timed_apart() -> None:
    prompt = Prompt(text="hello", max_tokens=2, num_samples=2, due=0.0)
    events = [
        event("a", index=1),
        event("b", index=0),
        event("c", index=1, finish="length"),
        event("d", index=0, finish="length"),
        "[DONE]",
    ]
    result = replay(prompt, events)
    assert result.texts == ["bd", "ac"]
    assert result.gaps == [2.0, 2.0]
    assert not result.counted_by_server
    assert result.num_output_tokens == 4


@pytest.mark.parametrize(
    ("where", "num_cached"),
    [
        ({"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 7}}}, 7),
        ({"timings": {"cache_n": 5}}, 5),
    ],
)
def test_cached_tokens_are_found(where: dict[str, Any], num_cached: int) -> None:
    result = replay(PROMPT, [event("a", finish="stop"), {"choices": [], **where}, "[DONE]"])
    assert result.num_cached_tokens == num_cached


def test_an_answer_without_text_counts_from_its_end() -> None:
    result = replay(PROMPT, [event(""), event("", finish="length"), "[DONE]"])
    assert result.ttft == 2.0
    assert result.texts == [""]


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([event("a")], "without \\[DONE\\]"),
        ([event("a"), "[DONE]"], "0 of 1 samples finished"),
        ([event("a"), {"error": {"message": "engine died"}}], "engine died"),
        ([event("a"), {"error": "engine died"}], "engine died"),
    ],
)
def test_half_an_answer_is_an_error(events: list[Any], reason: str) -> None:
    with pytest.raises(ServerError, match=reason):
        replay(PROMPT, events)


@pytest.mark.parametrize(
    ("dialect", "fields"),
    [
        ("ramet", {"ignore_eos": True, "min_tokens": 3}),
        ("vllm", {"ignore_eos": True, "min_tokens": 3}),
        ("sglang", {"ignore_eos": True, "min_tokens": 3}),
        ("llama.cpp", {"ignore_eos": True, "cache_prompt": True}),
        ("openvino", {"ignore_eos": True, "min_new_tokens": 3}),
        ("openai", {}),
    ],
)
def test_dialects_fix_the_length_in_their_own_way(dialect: str, fields: dict[str, Any]) -> None:
    body = Target(url="http://x", model="m", dialect=dialect).body(PROMPT)
    plain = {"model", "prompt", "max_tokens", "temperature", "stream", "stream_options"}
    assert {name: value for name, value in body.items() if name not in plain} == fields


def test_transformers_dialect_sends_only_fields_that_it_knows() -> None:
    body = Target(url="http://x", model="m", dialect="transformers").body(PROMPT)
    assert "stream_options" not in body
    assert json.loads(body["generation_config"])["max_new_tokens"] == 3


def test_chat_endpoint_sends_one_user_message_and_extra_fields() -> None:
    target = Target(url="http://x", model="m", endpoint="chat", extra_body={"cache_salt": "s"})
    body = target.body(Prompt(text="hi", max_tokens=1, num_samples=2, seed=4))
    assert body["messages"] == [{"role": "user", "content": "hi"}]
    assert (body["n"], body["seed"], body["cache_salt"]) == (2, 4, "s")
