"""Tools with the real model: calls that are demanded are valid, whatever a weak model makes of them."""

from __future__ import annotations

import json
from typing import Any

import httpx
import jsonschema  # type: ignore[import-untyped]
import openai
import pytest

pytestmark = pytest.mark.real_model

FILE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "folder": {"anyOf": [{"const": "inbox"}, {"const": "later"}, {"enum": ["done", "spam"]}]},
        "stars": {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 5}, {"type": "null"}]},
    },
    "required": ["folder", "stars"],
    "additionalProperties": False,
}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}}
SCHEMAS = {"file_mail": FILE, "now": NOTHING}
TOOLS: Any = [
    {"type": "function", "function": {"name": "file_mail", "parameters": FILE}},
    {"type": "function", "function": {"name": "now", "description": "The time."}},
]
ASK: Any = [{"role": "user", "content": "Please file this mail."}]


def named(name: str) -> Any:
    return {"type": "function", "function": {"name": name}}


def chat(server: Any, **options: Any) -> Any:
    """The answer, or the chunks of a stream."""
    options = {"messages": ASK, "tools": TOOLS, "max_tokens": 128, **options}
    with server.client() as client:
        answer = client.chat.completions.create(model="smollm2", **options)
        return list(answer) if options.get("stream") else answer


def check_calls(calls: Any) -> None:
    assert calls and len({call.id for call in calls}) == len(calls)
    for call in calls:
        assert call.type == "function"
        arguments = json.loads(call.function.arguments)
        jsonschema.validate(arguments, SCHEMAS[call.function.name])


@pytest.mark.parametrize("temperature", [0.0, 1.0, 1.5])
def test_a_demanded_call_has_valid_arguments(server: Any, temperature: float) -> None:
    single = {"parallel_tool_calls": False}
    answer = chat(server, tool_choice="required", n=8, temperature=temperature, seed=3, **single)
    for choice in answer.choices:
        assert choice.finish_reason == "tool_calls" and choice.message.content is None
        assert len(choice.message.tool_calls) == 1
        check_calls(choice.message.tool_calls)


def test_alternatives_of_a_schema_arrive_as_the_values_themselves(server: Any) -> None:
    answer = chat(server, tools=TOOLS[:1], tool_choice="required", max_tokens=48, n=4, seed=5)
    for choice in answer.choices:
        arguments = json.loads(choice.message.tool_calls[0].function.arguments)
        assert arguments["folder"] in ("inbox", "later", "done", "spam")
        assert arguments["stars"] in (1, 2, 3, 4, 5, None)


@pytest.mark.parametrize("stream", [False, True])
def test_a_named_tool_without_parameters_is_called_with_none(server: Any, stream: bool) -> None:
    options = {"tool_choice": named("now"), "parallel_tool_calls": False, "stream": stream}
    answer = chat(server, max_tokens=32, **options)
    if stream:
        choices = [chunk.choices[0] for chunk in answer]
        pieces = [c.delta.tool_calls[0].function for c in choices if c.delta.tool_calls]
        name, arguments = pieces[0].name, "".join(piece.arguments for piece in pieces)
        reason = choices[-1].finish_reason
    else:
        (call,) = answer.choices[0].message.tool_calls
        name, arguments = call.function.name, call.function.arguments
        reason = answer.choices[0].finish_reason
    assert (name, json.loads(arguments), reason) == ("now", {}, "tool_calls")


@pytest.mark.parametrize("choice", ["auto", "none", "required", named("file_mail")])
def test_an_answer_is_the_same_whole_and_streamed(server: Any, choice: Any) -> None:
    options: dict[str, Any] = {"tool_choice": choice, "temperature": 0, "max_tokens": 64}
    whole = chat(server, **options).choices[0]
    content, arguments, names, reason = "", [], [], None
    for chunk in chat(server, stream=True, **options):
        piece = chunk.choices[0]
        content += piece.delta.content or ""
        for call in piece.delta.tool_calls or ():
            if call.function.name:
                names.append(call.function.name)
                arguments.append("")
            arguments[call.index] += call.function.arguments
        reason = piece.finish_reason
    calls = whole.message.tool_calls or []
    assert content == (whole.message.content or "") and reason == whole.finish_reason
    assert names == [call.function.name for call in calls]
    assert arguments == [call.function.arguments for call in calls]
    assert (choice in ("auto", "none")) or calls


def test_the_official_client_parses_streamed_arguments(server: Any) -> None:
    function = {**TOOLS[0]["function"], "strict": True}
    with (
        server.client() as client,
        client.chat.completions.stream(
            model="smollm2",
            messages=ASK,
            tools=[{"type": "function", "function": function}],
            tool_choice="required",
            parallel_tool_calls=False,
            max_tokens=96,
        ) as stream,
    ):
        done = [e for e in stream if e.type == "tool_calls.function.arguments.done"]
        final = stream.get_final_completion()
    jsonschema.validate(done[0].parsed_arguments, FILE)
    assert (
        json.loads(final.choices[0].message.tool_calls[0].function.arguments)
        == done[0].parsed_arguments
    )


def test_strict_tools_leave_the_model_free_to_talk(server: Any) -> None:
    strict = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}]
    free = chat(server, tools=TOOLS[:1], temperature=0, max_tokens=24).choices[0]
    held = chat(server, tools=strict, temperature=0, max_tokens=24).choices[0]
    assert not held.message.tool_calls and held.message.content == free.message.content


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_next_prompt_begins_with_the_tokens_of_the_call(server: Any, name: str) -> None:
    url, body = server.url, {"model": "smollm2", "messages": ASK, "tools": TOOLS, "temperature": 0}
    demanded = {**body, "tool_choice": named(name), "return_token_ids": True, "max_tokens": 128}
    answer = httpx.post(f"{url}/v1/chat/completions", json=demanded, timeout=120).json()
    (choice,) = answer["choices"]
    (call,) = choice["message"]["tool_calls"]
    result = {"role": "tool", "tool_call_id": call["id"], "content": "12:30"}
    body["messages"] = [*ASK, choice["message"], result]
    tokens = httpx.post(f"{url}/tokenize", json=body).json()["tokens"]
    so_far = [*answer["prompt_token_ids"], *choice["token_ids"]]
    assert tokens[: len(so_far)] == so_far
    client_sees = chat(server, messages=body["messages"], tool_choice="none", max_tokens=8)
    assert client_sees.choices[0].message.content


def test_a_schema_that_cannot_be_used_names_its_tool(server: Any) -> None:
    bad = {
        "type": "function",
        "function": {
            "name": "bad",
            "parameters": {"type": "object", "properties": {"a": {"type": "colour"}}},
        },
    }
    with pytest.raises(openai.BadRequestError) as caught:
        chat(server, tools=[*TOOLS, bad], tool_choice="required")
    assert caught.value.param == "tools" and "tools[2].function.parameters" in caught.value.message
