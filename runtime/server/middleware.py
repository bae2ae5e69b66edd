"""What happens to every request, whatever its route: an id, a time, a key.

Plain ASGI, so that streams pass through untouched and a disconnect reaches the route.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import Unauthorized, error_response
from .metrics import ServerMetrics

GUARDED = frozenset(
    {
        "/cancel",
        "/detokenize",
        "/generate",
        "/release",
        "/render",
        "/reset_prefix_cache",
        "/retain",
        "/tokenize",
        "/tokenizer_info",
    }
)

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/=+-]{1,128}")


class RequestContext:
    """Puts `x-request-id` and `openai-processing-ms` on every response, and counts it.

    A request's own X-Request-Id is kept if it is short and plain. An exception that no handler took
    becomes a 500 here, so that it has the headers too.
    """

    def __init__(self, app: ASGIApp, metrics: ServerMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        request_id = Headers(scope=scope).get("x-request-id", "")
        if not _REQUEST_ID.fullmatch(request_id):
            request_id = f"req_{uuid4().hex}"
        status: int | None = None

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                headers["openai-processing-ms"] = f"{1000 * (time.perf_counter() - started):.3f}"
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except Exception as error:
            if status is not None:
                raise
            await error_response(error)(scope, receive, send_with_headers)
        finally:
            route = getattr(scope.get("route"), "path", "unknown")
            self._metrics.count_request(scope["method"], route, status)


class ApiKeys:
    """Lets guarded paths through only with one of the keys, and remembers which.

    The digest of the key becomes `scope["state"]["tenant"]`; requests of different tenants share no
    KV. Without keys everything passes, and there is one tenant.
    """

    def __init__(self, app: ASGIApp, keys: tuple[str, ...]) -> None:
        self._app = app
        self._digests = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._digests or not _is_guarded(scope):
            await self._app(scope, receive, send)
            return
        scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        sent = _digest(key.strip().encode("latin-1"))
        # All digests are compared, in constant time, so that the time tells nothing of any key.
        matches = [hmac.compare_digest(sent, digest) for digest in self._digests]
        if scheme.lower() != "bearer" or not any(matches):
            error = Unauthorized(
                "Incorrect API key provided." if key else "You did not provide an API key.",
                hint="Send one of this server's keys as Authorization: Bearer KEY.",
            )
            await error_response(error)(scope, receive, send)
            return
        scope.setdefault("state", {})["tenant"] = sent.hex()
        await self._app(scope, receive, send)


def _is_guarded(scope: Scope) -> bool:
    path: str = scope["path"]
    return scope["method"] != "OPTIONS" and (
        path == "/v1" or path.startswith("/v1/") or path.rstrip("/") in GUARDED
    )


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
