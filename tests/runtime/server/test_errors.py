"""Errors on the wire: the right status, and always the same envelope."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from ramet.runtime.engine.client import EngineStatus
from ramet.runtime.errors import (
    ConfigError,
    ContextLengthExceeded,
    DeadlineExceeded,
    EngineDead,
    EngineError,
    InvalidRequest,
    ModelNotFound,
    OutOfBlocks,
    QueueFull,
    ServerDraining,
)
from ramet.runtime.request import FinishReason, RequestOutput
from ramet.runtime.server.errors import error_body, error_response, http_error
from ramet.runtime.server.lifecycle import Lifecycle

HI = [{"role": "user", "content": "hi"}]


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    assert float(response.headers["openai-processing-ms"]) >= 0
    (error,) = response.json().values()
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"] and isinstance(error["type"], str)
    return dict(error)


async def post(http: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await http.post("/v1/chat/completions", json={"messages": HI, **fields})


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (InvalidRequest("x", param="n"), 400, "invalid_request_error", None),
        (
            ContextLengthExceeded(9, 8, param="prompt"),
            400,
            "invalid_request_error",
            "context_length_exceeded",
        ),
        (ModelNotFound("x"), 404, "invalid_request_error", "model_not_found"),
        (QueueFull("x"), 429, "server_error", "server_overloaded"),
        (OutOfBlocks("x"), 503, "server_error", "server_overloaded"),
        (DeadlineExceeded("x"), 503, "server_error", "timeout"),
        (ServerDraining("x"), 503, "server_error", "server_unavailable"),
        (EngineDead("x"), 503, "server_error", "engine_unavailable"),
        (EngineError("x"), 500, "server_error", None),
        (ConfigError("x"), 500, "server_error", None),
        (KeyError("x"), 500, "server_error", None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_each_error_has_its_row(error: Exception, status: int, kind: str, code: str | None) -> None:
    row = http_error(error)
    assert (row.status, row.type, row.code) == (status, kind, code)
    response = error_response(error)
    assert response.status_code == status
    if status in (429, 503):
        assert 0 < int(response.headers["retry-after"]) <= 120
    else:
        assert "retry-after" not in response.headers


def test_a_long_message_is_cut() -> None:
    assert len(error_body(InvalidRequest("x" * 1_000_000))) < 5000


def test_a_fault_of_our_own_shows_no_internals() -> None:
    assert b"/etc" not in error_body(OSError("cannot open /etc/secret"))


async def test_an_unknown_path_is_a_404(http: httpx.AsyncClient) -> None:
    for path in ("/v1/no/such/path", "/nothing", "/v1/chat/completions/"):
        assert path in error_of(await http.get(path), 404)["message"]


async def test_a_wrong_method_is_a_405_that_says_which_is_right(http: httpx.AsyncClient) -> None:
    response = await http.get("/v1/chat/completions")
    error_of(response, 405)
    assert response.headers["allow"] == "POST"
    error_of(await http.delete("/v1/models"), 405)
    error_of(await http.delete("/v1/models/org/bytes"), 405)


async def test_an_unknown_model_is_a_404_that_names_it(http: httpx.AsyncClient) -> None:
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize"):
        body = {"model": "no-such-7", "messages": HI, "prompt": "x", "input": "x"}
        error = error_of(await http.post(path, json=body), 404)
        assert error["code"] == "model_not_found" and "no-such-7" in error["message"]


async def test_an_exception_that_nobody_expects_is_a_500(
    http: httpx.AsyncClient, app: FastAPI
) -> None:
    async def broken() -> None:
        raise RuntimeError("/secret/path")

    app.add_api_route("/broken", broken)
    assert "secret" not in error_of(await http.get("/broken"), 500)["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_full_queue_is_a_429_with_retry_after(
    http: httpx.AsyncClient, engine: Any, stream: bool
) -> None:
    engine.refusal = QueueFull("4096 requests wait already.")
    response = await post(http, stream=stream)
    assert error_of(response, 429)["code"] == "server_overloaded"
    assert 0 < float(response.headers["retry-after"]) <= 120
    engine.refusal = None
    assert (await post(http)).status_code == 200


@pytest.mark.parametrize("status", [EngineStatus.STARTING, EngineStatus.DEAD, EngineStatus.STOPPED])
@pytest.mark.parametrize("stream", [False, True])
async def test_without_a_ready_engine_work_is_refused_with_retry_after(
    http: httpx.AsyncClient, engine: Any, status: EngineStatus, stream: bool
) -> None:
    engine.status = status
    response = await post(http, stream=stream)
    error_of(response, 503)
    assert 0 < float(response.headers["retry-after"]) <= 120
    engine.status = EngineStatus.READY
    assert (await post(http)).status_code == 200


async def test_a_draining_server_refuses_new_work(
    http: httpx.AsyncClient, lifecycle: Lifecycle, engine: Any
) -> None:
    lifecycle.drain()
    response = await post(http)
    assert error_of(response, 503)["code"] == "server_unavailable"
    assert response.headers["retry-after"] and not engine.requests


async def test_an_engine_that_dies_ends_the_answer_and_the_next_one_works(
    http: httpx.AsyncClient, engine: Any, say: Callable[..., Any]
) -> None:
    good = engine.reply
    engine.reply = say("Hel", EngineDead("The engine process ended."))
    assert error_of(await post(http), 503)["code"] == "engine_unavailable"
    engine.reply = good
    assert (await post(http)).status_code == 200


@pytest.mark.parametrize(
    ("reason", "fields", "status", "code"),
    [
        (FinishReason.ERROR, {}, 500, None),
        (FinishReason.ABORT, {}, 503, "server_unavailable"),
        (FinishReason.ABORT, {"timeout": 0.01}, 503, "timeout"),
        (FinishReason.ABORT, {"timeout": 60}, 503, "server_unavailable"),
    ],
)
async def test_what_the_engine_ends_early_is_an_error(
    http: httpx.AsyncClient,
    engine: Any,
    say: Callable[..., Any],
    reason: FinishReason,
    fields: dict[str, Any],
    status: int,
    code: str | None,
) -> None:
    def reply(request: Any) -> list[Any]:
        return [
            65,
            RequestOutput(request_id=request.request_id, finish_reason=reason, error="ended"),
        ]

    engine.reply = reply
    engine.delay = 0.02
    assert error_of(await post(http, **fields), status)["code"] == code
    assert engine.num_live == 0


async def test_embeddings_are_refused_as_not_supported(http: httpx.AsyncClient) -> None:
    response = await http.post("/v1/embeddings", json={"input": "x"})
    assert error_of(response, 501)["code"] == "unsupported"
