"""From the fields of three dialects to one constraint, or to an error that names the field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from ramet.runtime.engine.messages import GenerateRequest
from ramet.runtime.request import FinishReason, RequestOutput
from ramet.runtime.structured.constraint import Constraint

SCHEMA = {"type": "object", "properties": {"b": {}, "a": {}}}
HI = [{"role": "user", "content": "hi"}]

FIELDS: list[tuple[dict[str, Any], Constraint | None]] = [
    ({"response_format": {"type": "text"}}, None),
    ({"response_format": {"type": "json_object"}}, Constraint.json_object()),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        Constraint.json_schema(SCHEMA),
    ),
    ({"structured_outputs": {}}, None),
    ({"structured_outputs": {"json": SCHEMA, "regex": None}}, Constraint.json_schema(SCHEMA)),
    ({"structured_outputs": {"regex": "a+"}}, Constraint.regex("a+")),
    ({"structured_outputs": {"choice": ["a", "b"]}}, Constraint.choice(["a", "b"])),
    ({"structured_outputs": {"grammar": "root ::= x"}}, Constraint.grammar("root ::= x")),
    ({"structured_outputs": {"json_object": True}}, Constraint.json_object()),
    ({"structured_outputs": {"json_object": False}}, None),
    (
        {"structured_outputs": {"disable_any_whitespace": False, "regex": "a"}},
        Constraint.regex("a"),
    ),
    ({"regex": ""}, Constraint.regex("")),
    ({"json_schema": '{"type": "null"}'}, Constraint.json_schema('{"type": "null"}')),
    ({"ebnf": "root ::= x"}, Constraint.grammar("root ::= x")),
    ({"guided_json": SCHEMA}, Constraint.json_schema(SCHEMA)),
    ({"guided_regex": "a+"}, Constraint.regex("a+")),
    ({"guided_choice": ["a"]}, Constraint.choice(["a"])),
    ({"guided_grammar": "root ::= x"}, Constraint.grammar("root ::= x")),
    ({"guided_json_object": True}, Constraint.json_object()),
]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize(("fields", "constraint"), FIELDS)
async def test_every_name_means_the_same_constraint(
    http: httpx.AsyncClient, engine: Any, path: str, fields: Any, constraint: Constraint | None
) -> None:
    prompt = {"prompt": "hi"} if path == "/v1/completions" else {"messages": HI}
    response = await http.post(path, json={**prompt, **fields})
    assert response.status_code == 200, response.text
    assert engine.requests[-1].params.constraint == constraint


BAD: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        "response_format.json_schema.schema",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": False}}},
        "response_format.json_schema.schema",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": ""}}},
        "response_format.json_schema.schema",
    ),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ({"structured_outputs": {"choice": [1]}}, "structured_outputs.choice"),
    ({"structured_outputs": {"regex": 1}}, "structured_outputs.regex"),
    ({"structured_outputs": {"json_object": 1}}, "structured_outputs.json_object"),
    ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
    ({"structured_outputs": {"whitespace_pattern": "x"}}, "structured_outputs.whitespace_pattern"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice"),
    ({"regex": "a", "response_format": {"type": "json_object"}}, "regex"),
    ({"guided_decoding_backend": "x"}, "guided_decoding_backend"),
]


@pytest.mark.parametrize(("fields", "param"), BAD)
async def test_what_cannot_be_is_a_400_that_names_the_field(
    http: httpx.AsyncClient, fields: Any, param: str
) -> None:
    response = await http.post("/v1/chat/completions", json={"messages": HI, **fields})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert param.split(".")[-1] in error["message"]


def refusal(
    error: str, *, invalid: bool = False, overloaded: bool = False
) -> Callable[[GenerateRequest], list[RequestOutput]]:
    """What an engine replies that takes no request."""

    def reply(request: GenerateRequest) -> list[RequestOutput]:
        return [
            RequestOutput(
                request_id=request.request_id,
                finish_reason=FinishReason.ERROR,
                error=error,
                invalid=invalid,
                overloaded=overloaded,
            )
        ]

    return reply


@pytest.fixture
def refusing(engine: Any) -> Any:
    """An engine that finds every constraint unusable."""
    engine.reply = refusal("The schema has keywords that are not supported: x.", invalid=True)
    return engine


@pytest.mark.parametrize("stream", [False, True])
async def test_a_constraint_that_does_not_compile_is_a_400_streamed_or_not(
    http: httpx.AsyncClient, refusing: Any, stream: bool
) -> None:
    body = {"messages": HI, "guided_json": {"x": 1}, "stream": stream}
    response = await http.post("/v1/chat/completions", json=body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "guided_json")
    assert "not supported: x" in error["message"]
    assert not refusing.live


async def test_a_machine_that_is_too_busy_for_a_constraint_is_a_503_to_be_tried_again(
    http: httpx.AsyncClient, engine: Any
) -> None:
    engine.reply = refusal("The machine was too busy.", overloaded=True)
    response = await http.post("/v1/completions", json={"prompt": "hi", "guided_json": {}})
    assert response.status_code == 503 and response.headers["retry-after"] == "1"
    assert response.json()["error"]["message"] == "The machine was too busy."


async def test_a_constrained_stream_has_the_events_of_a_free_one(
    http: httpx.AsyncClient, engine: Any, say: Callable[..., Any]
) -> None:
    streams = []
    for fields in ({}, {"regex": "Hello there!"}):
        body = {"prompt": "hi", "stream": True, "seed": 1, "request_id": "x", **fields}
        response = await http.post("/v1/completions", json=body)
        streams.append([line.split('"choices"')[-1] for line in response.text.splitlines()])
    assert streams[0] == streams[1] and streams[0][-2] == "data: [DONE]"


async def test_an_output_that_ends_with_text_keeps_its_last_token(
    http: httpx.AsyncClient, engine: Any
) -> None:
    def reply(request: GenerateRequest) -> list[RequestOutput]:
        return [
            RequestOutput(
                request_id=request.request_id,
                token_ids=tuple(engine.tokenizer.encode("ab", False)),
                finish_reason=FinishReason.STOP,
                ends_with_text=True,
            )
        ]

    engine.reply = reply
    response = await http.post("/v1/completions", json={"prompt": "hi", "regex": "ab"})
    choice = response.json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("ab", "stop")
