"""How an error looks on the wire: one table from error classes to HTTP, one envelope for all.

Knows the error tree and OpenAI's error body; knows no route. The envelope always has its four keys,
also for unknown paths, wrong methods and faults of our own, because OpenAI's clients read them.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from http import HTTPStatus

import msgspec
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from ..errors import (
    CapacityError,
    ContextLengthExceeded,
    DeadlineExceeded,
    EngineDead,
    InvalidRequest,
    ModelNotFound,
    QueueFull,
    RametError,
    RequestError,
    ServerDraining,
)

logger = logging.getLogger(__name__)

MAX_MESSAGE_LEN = 2000
CLIENT_CLOSED_REQUEST = 499


class Unauthorized(RequestError):
    """The request brings no key, or one that is not ours."""


class BodyTooLarge(RequestError):
    """The request's body is longer than the server reads."""


class NotSupported(InvalidRequest):
    """The whole route is a feature that this server does not have."""


@dataclass(frozen=True, slots=True)
class HttpError:
    """What a class of errors becomes.

    Attributes:
        status: HTTP status code.
        type: OpenAI's coarse kind of error.
        code: OpenAI's machine-readable reason, or None.
        retry_after: seconds after which a retry makes sense; None if it never does.
        message: replaces the error's own message, where that could show internals.
    """

    status: int
    type: str = "invalid_request_error"
    code: str | None = None
    retry_after: int | None = None
    message: str | None = None


# OpenAI's clients retry by themselves on 408, 409, 429 and from 500 up: a mistake of the client must
# be a 4xx, and a Retry-After above 120 seconds would turn their retries off.
ERRORS: dict[type[Exception], HttpError] = {
    RequestError: HttpError(400),
    ContextLengthExceeded: HttpError(400, code="context_length_exceeded"),
    ModelNotFound: HttpError(404, code="model_not_found"),
    NotSupported: HttpError(501, code="unsupported"),
    Unauthorized: HttpError(401, code="invalid_api_key"),
    BodyTooLarge: HttpError(413),
    CapacityError: HttpError(503, "server_error", "server_overloaded", retry_after=1),
    QueueFull: HttpError(429, "server_error", "server_overloaded", retry_after=1),
    DeadlineExceeded: HttpError(503, "server_error", "timeout", retry_after=1),
    ServerDraining: HttpError(503, "server_error", "server_unavailable", retry_after=5),
    EngineDead: HttpError(503, "server_error", "engine_unavailable", retry_after=5),
    ClientDisconnect: HttpError(CLIENT_CLOSED_REQUEST, message="The client closed the request."),
    Exception: HttpError(500, "server_error", message="The server failed on this request."),
}


def http_error(error: Exception) -> HttpError:
    """The row of the table that fits `error` most closely."""
    return next(ERRORS[kind] for kind in type(error).__mro__ if kind in ERRORS)


def error_body(error: Exception) -> bytes:
    """`error` as an OpenAI error envelope: one line of JSON."""
    row = http_error(error)
    message = row.message or str(error)
    if len(message) > MAX_MESSAGE_LEN:
        message = message[:MAX_MESSAGE_LEN] + "…"
    param = error.param if isinstance(error, RametError) else None
    return _envelope(message, row.type, param, row.code)


def error_response(error: Exception) -> Response:
    """`error` as an HTTP response; faults of our own are logged with their traceback."""
    row = http_error(error)
    if row.status == HTTPStatus.INTERNAL_SERVER_ERROR:
        logger.error("request failed", exc_info=error)
    headers = {} if row.retry_after is None else {"retry-after": str(row.retry_after)}
    if row.status == HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    return Response(error_body(error), row.status, headers, media_type="application/json")


def add_error_handlers(app: FastAPI) -> None:
    """Answer every error that a route of `app` raises in OpenAI's envelope."""

    async def on_known_error(request: Request, error: Exception) -> Response:
        return error_response(error)

    async def on_http_exception(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == HTTPStatus.NOT_FOUND:
            message = f"There is no {request.url.path[:200]!r} here."
        elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            message = f"{request.method} is not allowed on {request.url.path[:200]!r}."
        else:
            message = str(error.detail) or HTTPStatus(error.status_code).phrase
        kind = "invalid_request_error" if error.status_code < 500 else "server_error"
        return Response(
            _envelope(message, kind, None, None),
            error.status_code,
            dict(error.headers or {}),
            media_type="application/json",
        )

    app.add_exception_handler(RametError, on_known_error)
    app.add_exception_handler(ClientDisconnect, on_known_error)
    app.add_exception_handler(HTTPException, on_http_exception)


def _envelope(message: str, kind: str, param: str | None, code: str | None) -> bytes:
    error = {"message": message, "type": kind, "param": param, "code": code}
    return msgspec.json.encode({"error": error})
