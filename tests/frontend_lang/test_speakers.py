"""Answers of a server, good and bad, through its chat endpoint."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from ramet.commands.speakers import ServerSpeaker, connect
from ramet.runtime.errors import EngineError, InvalidRequest, RametError

MESSAGES = [{"role": "user", "content": "hi"}]


def event(**delta: str) -> str:
    return f"data: {json.dumps({'choices': [{'index': 0, 'delta': delta}]})}\n\n"


def speaker(answer: httpx.Response, seen: list[dict[str, Any]] | None = None) -> ServerSpeaker:
    """A speaker whose server gives one answer to every chat."""

    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "served"}]})
        if seen is not None:
            seen.append(json.loads(request.content))
        return answer

    client = httpx.Client(transport=httpx.MockTransport(handle), base_url="http://server")
    return ServerSpeaker(client, None, {"temperature": 0.0})


def test_pieces_are_the_deltas_of_the_stream() -> None:
    seen: list[dict[str, Any]] = []
    body = event(role="assistant") + event(content="Hel") + event(content="lo") + "data: [DONE]\n\n"
    talk = speaker(httpx.Response(200, text=body), seen)
    assert list(talk.answer(MESSAGES)) == ["Hel", "lo"]
    assert seen == [
        {"model": "served", "messages": MESSAGES, "stream": True, "temperature": 0.0},
    ]


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (httpx.Response(400, json={"error": {"message": "too long"}}), InvalidRequest, "too long"),
        (httpx.Response(401, json={"error": {"message": "no key"}}), InvalidRequest, "--api-key"),
        (httpx.Response(503, text="busy"), EngineError, "busy"),
        (httpx.Response(200, text=event(content="a")), EngineError, "broke off"),
        (
            httpx.Response(200, text='data: {"error": {"message": "engine died"}}\n\n'),
            EngineError,
            "engine died",
        ),
    ],
)
def test_failures_are_errors(answer: httpx.Response, kind: type[RametError], message: str) -> None:
    with pytest.raises(kind, match=message):
        list(speaker(answer).answer(MESSAGES))


def test_a_server_that_is_not_there_is_an_error_with_a_hint() -> None:
    with connect("http://127.0.0.1:9", None) as client:
        with pytest.raises(EngineError, match="ramet serve"):
            ServerSpeaker(client, None, {})


def test_a_server_without_models_is_an_error() -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json={"data": []}))
    with httpx.Client(transport=transport, base_url="http://server") as client:
        with pytest.raises(EngineError, match="lists no model"):
            ServerSpeaker(client, None, {})


def test_url_may_end_in_v1_and_the_key_is_sent() -> None:
    with connect("http://server:1/v1/", "key") as client:
        assert client.base_url == "http://server:1"
        assert client.headers["Authorization"] == "Bearer key"
