"""What a program says about its requests beside sending them: /cancel, /retain and /release.

    {"request_ids": ["a", "b"]}                       end these requests of /generate; others go on
    {"session": "s", "input_ids": [...], "seconds": 30}   evict what is cached of these tokens last
    {"session": "s"}                                  no longer

All three concern the sender's own requests: names belong to an API key (and sessions to a `cache_salt`), and
an unknown one is no error, since what it named may just have ended.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import Request, Response
from msgspec import Meta

from ..engine.arrivals import check_retention
from ..engine.messages import Release, Retain
from .body import convert_strictly, read_object
from .branches import Branches
from .intake import ServerContext, namespace, tenant
from .protocol import CacheSalt, SessionName

MAX_CANCELLED = 1024


class CancelRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of /cancel."""

    request_ids: Annotated[list[str], Meta(min_length=1, max_length=MAX_CANCELLED)]


class RetainRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of /retain; without `seconds` for as long as the server retains anything."""

    session: SessionName
    input_ids: Annotated[list[int], Meta(min_length=1)]
    seconds: float | None = None
    model: str | None = None
    cache_salt: CacheSalt | None = None


class ReleaseRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of /release."""

    session: SessionName
    model: str | None = None
    cache_salt: CacheSalt | None = None


class ControlRoutes:
    """Answers at once; nothing here waits for the engine."""

    def __init__(self, context: ServerContext, branches: Branches) -> None:
        self._context = context
        self._branches = branches

    async def cancel(self, request: Request) -> Response:
        """End requests of /generate by their `request_id`; tells which of them were live."""
        body = convert_strictly(await read_object(request), CancelRequest)
        return _json({"cancelled": self._branches.cancel(tenant(request), body.request_ids)})

    async def retain(self, request: Request) -> Response:
        """Retain a prefix for a session; tells for how many seconds at most."""
        body = convert_strictly(await read_object(request), RetainRequest)
        context = self._context
        context.model.check_name(body.model)
        context.lifecycle.check_accepting()
        info = context.client.info
        message = Retain(
            namespace=namespace(tenant(request), body.cache_salt),
            session=body.session,
            token_ids=body.input_ids,
            seconds=body.seconds,
            tenant=tenant(request),
        )
        check_retention(message, info)
        context.client.post(message)
        granted = info.max_retain_seconds if body.seconds is None else body.seconds
        return _json({"seconds": granted})

    async def release(self, request: Request) -> Response:
        """Retain nothing for a session any more."""
        body = convert_strictly(await read_object(request), ReleaseRequest)
        context = self._context
        context.model.check_name(body.model)
        name = namespace(tenant(request), body.cache_salt)
        context.client.post(Release(namespace=name, session=body.session))
        return _json({})


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
