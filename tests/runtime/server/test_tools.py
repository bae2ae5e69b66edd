"""Chat with tools: what the engine is held to, and what the client gets, whole and streamed."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from ramet.runtime.config import EngineConfig, ModelOptions, ServerConfig
from ramet.runtime.engine.factory import open_source
from ramet.runtime.errors import ConfigError
from ramet.runtime.server.app import create_app
from ramet.runtime.server.body import convert
from ramet.runtime.server.lifecycle import Lifecycle
from ramet.runtime.server.model import ServedModel
from ramet.runtime.server.protocol import ChatRequest
from ramet.runtime.server.serve import served_model
from ramet.runtime.server.tools import ToolUse, tool_use
from ramet.runtime.structured.calls import CallGrammar
from ramet.runtime.structured.constraint import Constraint, ConstraintKind
from ramet.runtime.text.chat_template import ChatTemplate
from ramet.runtime.text.tokenizer import Tokenizer
from ramet.runtime.tools.form import HERMES, LLAMA3_JSON, MISTRAL_LIST, Form

HI = [{"role": "user", "content": "hi"}]
HEAT = {
    "type": "object",
    "properties": {"to": {"type": "integer"}, "room": {"type": "string"}},
    "required": ["to"],
}


def tool(name: str, parameters: Any = None, **fields: Any) -> dict[str, Any]:
    function = {"name": name, "parameters": parameters, **fields}
    return {"type": "function", "function": {k: v for k, v in function.items() if v is not None}}


TOOLS = [tool("heat", HEAT, description="Heat a room."), tool("ping")]
NAMED = {"type": "function", "function": {"name": "heat"}}
ONE = '<tool_call>\n{"name": "heat", "arguments": {"to": 21, "room": "é"}}\n</tool_call>'
TWO = ONE + '\n<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'


@pytest.fixture(scope="session")
def tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """With a chat template that lists tools."""
    listing = copy.copy(tokenizer)
    assert tokenizer.chat_template is not None
    listing.chat_template = (
        "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}" + tokenizer.chat_template
    )
    return listing


async def chat(http: httpx.AsyncClient, **fields: Any) -> Any:
    body = {"messages": HI, "tools": TOOLS, **fields}
    response = await http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def streamed(http: httpx.AsyncClient, **fields: Any) -> list[dict[str, Any]]:
    body = {"messages": HI, "tools": TOOLS, "stream": True, **fields}
    response = await http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    *events, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def merged(events: list[dict[str, Any]], index: int = 0) -> dict[str, Any]:
    """The chunks of a choice as one, joined as clients join them, and checked on the way."""
    content, reasons = "", []
    calls: list[dict[str, Any]] = []
    choices = [c for e in events for c in e["choices"] if c["index"] == index]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    for choice in choices:
        delta = choice["delta"]
        content += delta.get("content") or ""
        for piece in delta.get("tool_calls", ()):
            function = piece["function"]
            if piece["index"] == len(calls):
                assert piece["type"] == "function" and piece["id"] and function["name"]
                calls.append({k: piece[k] for k in ("id", "type")} | {"function": dict(function)})
            else:
                assert piece.keys() == {"index", "function"} and piece["index"] == len(calls) - 1
                assert function.keys() == {"arguments"}
                calls[-1]["function"]["arguments"] += function["arguments"]
        reasons.append(choice["finish_reason"])
    assert reasons[:-1] == [None] * (len(reasons) - 1)
    assert choices[-1]["delta"] == {}
    return {"content": content, "calls": calls, "finish_reason": reasons[-1]}


def functions(calls: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


async def both(http: httpx.AsyncClient, **fields: Any) -> tuple[Any, Any, Any]:
    """Content, calls and finish reason of an answer, which are the same whole and streamed."""
    (choice,) = (await chat(http, seed=1, **fields))["choices"]
    message = choice["message"]
    stream = merged(await streamed(http, seed=1, **fields))
    calls = functions(message.get("tool_calls", []))
    assert calls == functions(stream["calls"])
    assert (message["content"] or "") == stream["content"]
    assert choice["finish_reason"] == stream["finish_reason"]
    return message["content"], calls, choice["finish_reason"]


HEATED = ("heat", '{"to": 21, "room": "é"}')


@pytest.mark.parametrize("choice", ["required", "auto", None, NAMED])
async def test_calls_are_read_whole_and_streamed(
    http: httpx.AsyncClient, engine: Any, say: Callable[..., Any], choice: Any
) -> None:
    engine.reply = say(TWO if choice != NAMED else ONE)
    outcome = await both(http, tool_choice=choice)
    calls = [HEATED, ("ping", "{}")] if choice != NAMED else [HEATED]
    assert outcome == (None, calls, "tool_calls")


async def test_a_message_with_calls_has_every_field(
    http: httpx.AsyncClient, engine: Any, say: Callable[..., Any]
) -> None:
    engine.reply = say("Let me see.\n" + TWO)
    answer = await chat(http, n=2)
    first, second = (choice["message"] for choice in answer["choices"])
    assert first.keys() == {"role", "content", "tool_calls", "refusal", "annotations"}
    assert (first["role"], first["content"]) == ("assistant", "Let me see.")
    calls = [*first["tool_calls"], *second["tool_calls"]]
    assert [call.keys() for call in calls] == [{"id", "type", "function"}] * 4
    assert {call["type"] for call in calls} == {"function"}
    assert len({call["id"] for call in calls}) == 4
    assert all(call["id"].startswith("call_") for call in calls)
    usage = answer["usage"]
    assert usage["completion_tokens"] == 2 * (len(("Let me see.\n" + TWO).encode()) + 1)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


async def test_every_sample_of_a_stream_has_its_own_calls(
    http: httpx.AsyncClient, engine: Any, say: Callable[..., Any]
) -> None:
    engine.reply = say("Well. " + TWO)
    events = await streamed(http, n=3, stream_options={"include_usage": True})
    outcomes = [merged(events, index) for index in range(3)]
    for outcome in outcomes:
        assert outcome["content"] == "Well." and outcome["finish_reason"] == "tool_calls"
        assert functions(outcome["calls"]) == [HEATED, ("ping", "{}")]
    assert len({call["id"] for outcome in outcomes for call in outcome["calls"]}) == 6
    assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize(
    "text",
    [
        "Hello there! ",
        "\n I would write <tool_call> here.\n",
        '<tool_call>{"name": "heat", "arguments": {"to": 1,}}</tool_call>',
        '<tool_call>{"name": "cool", "arguments": {}}</tool_call>',
        "ends with <tool",
    ],
)
async def test_an_answer_without_calls_is_text_to_the_last_character(
    http: httpx.AsyncClient, engine: Any, say: Callable[..., Any], text: str
) -> None:
    engine.reply = say(text)
    assert await both(http) == (text, [], "stop")
    assert "tool_calls" not in (await chat(http))["choices"][0]["message"]


async def test_a_choice_of_none_leaves_the_text_alone_but_tells_of_the_tools(
    http: httpx.AsyncClient, engine: Any, say: Callable[..., Any], tokenizer: Tokenizer
) -> None:
    engine.reply = say(ONE)
    (choice,) = (await chat(http, tool_choice="none"))["choices"]
    assert choice["message"]["content"] == ONE and choice["finish_reason"] == "stop"
    request = engine.requests[-1]
    assert request.params.constraint is None
    assert '"heat"' in tokenizer.decode(request.prompt_ids, False)


@pytest.mark.parametrize("num_tokens", [1, 12, 30, 50, 60, 90, 95])
@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_a_limit_in_the_middle_of_a_call_is_reported_as_length(
    http: httpx.AsyncClient,
    engine: Any,
    say: Callable[..., Any],
    choice: str,
    num_tokens: int,
) -> None:
    engine.reply = say(TWO)
    content, calls, reason = await both(http, tool_choice=choice, max_tokens=num_tokens)
    assert reason == "length"
    for name, arguments in calls:
        whole = dict([HEATED, ("ping", "{}")])[name]
        assert whole == arguments or (choice == "required" and whole.startswith(arguments))
    if choice == "required":
        assert not content, "half a marker is nothing to read"
        assert calls or num_tokens < ONE.index('{"to"')
    else:
        assert calls or content


async def test_a_stop_string_inside_a_call_that_streams_leaves_the_reason_at_stop(
    http: httpx.AsyncClient, engine: Any, say: Callable[..., Any]
) -> None:
    engine.reply = say(ONE)
    outcome = await both(http, tool_choice="required", stop="21")
    assert outcome == (None, [("heat", '{"to": ')], "stop")


async def test_every_token_of_a_stream_with_calls_is_in_some_chunk(
    http: httpx.AsyncClient, engine: Any, say: Callable[..., Any]
) -> None:
    engine.reply = say("Well. " + TWO)
    fields: dict[str, Any] = {"logprobs": True, "top_logprobs": 1, "return_token_ids": True}
    for choice in ("auto", "required"):
        whole = (await chat(http, tool_choice=choice, **fields))["choices"][0]
        events = await streamed(http, tool_choice=choice, **fields)
        choices = [c for e in events for c in e["choices"]]
        entries = [t for c in choices if c["logprobs"] for t in c["logprobs"]["content"]]
        assert entries == whole["logprobs"]["content"]
        assert [i for c in choices for i in c.get("token_ids", ())] == whole["token_ids"]


async def test_history_with_calls_and_results_reaches_the_prompt(
    http: httpx.AsyncClient, engine: Any, tokenizer: Tokenizer
) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "heat", "arguments": '{"to":21}'}}
    history = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "done, 21 degrees"},
    ]
    await chat(http, messages=history)
    text = tokenizer.decode(engine.requests[-1].prompt_ids, False)
    assert '<tool_call>\n{"name": "heat", "arguments": {"to": 21}}\n</tool_call>' in text
    assert "<|im_start|>tool\ndone, 21 degrees" in text


async def test_a_result_of_a_call_that_nobody_made_is_refused(http: httpx.AsyncClient) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "heat", "arguments": "{}"}}
    called = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "content": "done"}
    for before in ([], [called]):
        messages = [*HI, *before, {**result, "tool_call_id": "c2"}]
        body = {"messages": messages, "tools": TOOLS}
        response = await http.post("/v1/chat/completions", json=body)
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["param"] == f"messages[{len(messages) - 1}].tool_call_id"
    # Calls may be written as text, and have no ids then.
    await chat(http, messages=[*HI, {"role": "assistant", "content": ONE}, result])


async def test_tokenize_counts_the_tools_as_chat_does(http: httpx.AsyncClient, engine: Any) -> None:
    body = {"messages": HI, "tools": TOOLS}
    response = await http.post("/tokenize", json=body)
    assert response.json()["tokens"] == (await chat(http), engine.requests[-1].prompt_ids)[1]


def client(engine: Any, tokenizer: Tokenizer, form: Form = HERMES) -> httpx.AsyncClient:
    """Requests to a server of its own."""
    model = ServedModel(
        name="bytes",
        tokenizer=tokenizer,
        chat_template=ChatTemplate(tokenizer),
        tokenizer_config={},
        version="0.1.0",
        tool_form=form,
    )
    app = create_app(ServerConfig(), engine, model, Lifecycle(engine))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://ramet")


async def test_a_template_that_lists_no_tools_is_helped_by_a_system_message(
    engine: Any, tokenizer: Tokenizer
) -> None:
    plain = copy.copy(tokenizer)
    plain.chat_template = (tokenizer.chat_template or "").partition("{% endfor %}")[2]
    async with client(engine, plain) as http:
        response = await http.post("/tokenize", json={"messages": HI, "tools": TOOLS})
    text = tokenizer.decode(response.json()["tokens"], False)
    assert text.startswith("<|im_start|>system\nYou may call functions")
    assert '"heat"' in text and "<|im_start|>user\nhi" in text


async def test_markers_that_are_special_tokens_are_read_and_no_others_shown(
    engine: Any, tokenizer: Tokenizer, say: Callable[..., Any]
) -> None:
    marker, start = "<|endoftext|>", "<|im_start|>"
    form = replace(MISTRAL_LIST, opening=marker, head=marker + "[", special_ids={marker: 256})
    engine.reply = say(f'Hm{start}.{marker}[{{"name": "ping", "arguments": {{}}}}]')
    async with client(engine, tokenizer, form) as http:
        message = (await chat(http))["choices"][0]["message"]
        assert message["content"] == "Hm." and functions(message["tool_calls"]) == [("ping", "{}")]
        assert len(message["tool_calls"][0]["id"]) == 9
        message = (await chat(http, tools=[]))["choices"][0]["message"]
        assert message["content"].startswith("Hm.[")


def use_of(form: Form = HERMES, constraint: Constraint | None = None, **fields: Any) -> ToolUse:
    body = convert({"messages": HI, "tools": TOOLS, **fields}, ChatRequest)
    use = tool_use(body, form, constraint)
    assert use is not None
    return use


def grammar_of(use: ToolUse) -> CallGrammar:
    constraint = use.constraint
    assert constraint is not None and use.is_held
    assert (constraint.kind, constraint.param) == (ConstraintKind.CALLS, "tools")
    return msgspec.json.decode(constraint.source, type=CallGrammar)


async def test_the_constraint_reaches_the_engine(http: httpx.AsyncClient, engine: Any) -> None:
    await chat(http, tool_choice="required")
    assert engine.requests[-1].params.constraint == use_of(tool_choice="required").constraint


def test_required_holds_the_output_to_calls_of_any_tool() -> None:
    grammar = grammar_of(use_of(tool_choice="required"))
    assert (grammar.text, grammar.is_single, grammar.answer) == ("none", False, None)
    assert "".join(map(str, grammar.head)) == "<tool_call>\n"
    assert [rule.where for rule in grammar.rules] == [
        "tools[0].function.parameters",
        "tools[1].function.parameters",
    ]
    assert grammar.rules[0].schema == HEAT
    assert grammar.rules[0].before == ('{"name": "heat", "arguments": ',)


def test_a_named_tool_is_the_only_one() -> None:
    use = use_of(tool_choice=NAMED)
    assert grammar_of(use).is_single
    assert [rule.where for rule in grammar_of(use).rules] == ["tools[0].function.parameters"]
    assert use.names == {"heat"}


def test_allowed_tools_are_a_choice_among_those_shown() -> None:
    ping = {"type": "function", "function": {"name": "ping"}}
    allowed = {"mode": "required", "tools": [ping]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    grammar = grammar_of(use_of(tool_choice=choice))
    assert grammar.rules[0].where == "tools[1].function.parameters" and not grammar.is_single
    allowed["mode"] = "auto"
    use = use_of(tool_choice=choice)
    assert use.names == {"ping"} and use.constraint is None


@pytest.mark.parametrize(
    "parameters",
    [None, {}, {"type": "object"}, {"type": "object", "properties": {}, "required": []}],
)
def test_a_tool_that_lists_no_parameters_takes_none(parameters: Any) -> None:
    use = use_of(tools=[tool("now", parameters)], tool_choice="required")
    schema = grammar_of(use).rules[0].schema
    assert (schema["properties"], schema["additionalProperties"]) == ({}, False)


def test_one_call_at_most_is_held_to_without_parallel_calls() -> None:
    assert grammar_of(use_of(tool_choice="required", parallel_tool_calls=False)).is_single
    free = grammar_of(use_of(parallel_tool_calls=False))
    assert free.is_single and free.text == "before"
    assert [rule.schema for rule in free.rules] == [{"type": "object"}] * 2


def test_a_strict_tool_is_held_to_its_schema_once_it_is_called() -> None:
    strict = [tool("heat", HEAT, strict=True), tool("ping")]
    grammar = grammar_of(use_of(tools=strict))
    assert grammar.text == "before" and grammar.head == ("<tool_call>", "\n")
    assert [rule.schema for rule in grammar.rules] == [HEAT, {"type": "object"}]
    bare = grammar_of(use_of(LLAMA3_JSON, tools=strict))
    assert (bare.text, bare.head) == ("instead", ())


def test_free_calls_need_no_grammar() -> None:
    loose = [tool("f", strict=False)]
    free: list[dict[str, Any]] = [{}, {"parallel_tool_calls": True}, {"tools": loose}]
    for fields in free:
        use = use_of(**fields)
        assert use.constraint is None and not use.is_held


def test_a_response_format_is_the_alternative_to_calls() -> None:
    schema = {"type": "object", "properties": {"a": {}}}
    grammar = grammar_of(use_of(constraint=Constraint.json_schema(schema, param="response_format")))
    assert (grammar.text, grammar.answer) == ("none", schema)
    assert grammar.rules[0].schema == HEAT
    bare = use_of(LLAMA3_JSON, constraint=Constraint.json_object())
    assert not bare.is_held and bare.constraint is not None
    assert use_of(tool_choice="none", constraint=Constraint.regex("a")).constraint is not None


async def test_without_tools_their_fields_ask_for_nothing(
    http: httpx.AsyncClient, engine: Any
) -> None:
    absent: list[dict[str, Any]] = [{"tools": []}, {"tools": None}]
    for fields in absent:
        for choice in (None, "none", "auto"):
            answer = await chat(http, tool_choice=choice, parallel_tool_calls=False, **fields)
            assert answer["choices"][0]["message"]["content"] == "Hello there!"
    assert {request.params.constraint for request in engine.requests} == {None}


def allowed(*tools: Any, mode: str = "auto") -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [*TOOLS, tool("")]}, "tools[2].function.name"),
    ({"tools": [tool("a b")]}, "tools[0].function.name"),
    ({"tools": [tool("a" * 65)]}, "tools[0].function.name"),
    ({"tools": [*TOOLS, tool("heat")]}, "tools[2].function.name"),
    ({"tools": [tool(f"f{i}") for i in range(129)]}, "tools"),
    ({"tools": [tool("f", {"type": "string"})]}, "tools[0].function.parameters.type"),
    ({"tools": [tool("f", {"properties": 1})]}, "tools[0].function.parameters.properties"),
    ({"tools": [tool("f", {"required": "a"})]}, "tools[0].function.parameters.required"),
    ({"tool_choice": "maybe"}, "tool_choice"),
    ({"tool_choice": {}}, "tool_choice"),
    ({"tool_choice": tool("cool")}, "tool_choice.function.name"),
    ({"tool_choice": allowed()}, "tool_choice.allowed_tools.tools"),
    ({"tool_choice": allowed("heat")}, "tool_choice.allowed_tools.tools"),
    ({"tool_choice": allowed(tool("cool"))}, "tool_choice.allowed_tools.tools"),
    ({"tool_choice": allowed(tool("heat"), mode="none")}, "tool_choice"),
    ({"tools": [], "tool_choice": "required"}, "tool_choice"),
    ({"tools": None, "tool_choice": NAMED}, "tool_choice.function.name"),
    ({"tools": None, "tool_choice": "maybe"}, "tool_choice"),
    ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "response_format"),
    ({"tool_choice": NAMED, "regex": "a"}, "regex"),
    ({"guided_choice": ["a"]}, "guided_choice"),
    ({"json_schema": "no json"}, "json_schema"),
    ({"functions": [{"name": "f"}]}, "functions"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG)
async def test_what_cannot_be_is_a_400_that_names_the_field(
    http: httpx.AsyncClient, engine: Any, fields: dict[str, Any], param: str
) -> None:
    response = await http.post(
        "/v1/chat/completions", json={"messages": HI, "tools": TOOLS, **fields}
    )
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param and param.split(".")[-1] in error["message"]
    assert not engine.requests


@pytest.mark.parametrize(("parser", "form"), [("auto", "hermes"), ("mistral", "mistral")])
def test_the_served_model_writes_calls_as_the_flag_says(
    tiny_folder: Path, tmp_path: Path, parser: str, form: str
) -> None:
    engine = EngineConfig(model=ModelOptions(model=str(tiny_folder)))
    config = ServerConfig(engine=engine, tool_call_parser=parser)
    assert served_model(config, open_source(engine, tmp_path)).tool_form.name == form


def test_a_form_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigError, match="tool_call_parser must be one of auto, hermes"):
        ServerConfig(tool_call_parser="wizard")
