"""Routes for operators and for clients that look around: models, probes, version, metrics, cache."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import Request, Response

from ..engine.client import EngineStatus
from .body import read_object
from .errors import NotSupported
from .intake import ServerContext
from .metrics import CONTENT_TYPE

RETRY_SECONDS = 5


class OpsRoutes:
    """Answers without the engine computing anything."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    async def models(self, request: Request) -> Response:
        """The served model, as a list."""
        return _json({"object": "list", "data": [self._card()]})

    async def model(self, request: Request) -> Response:
        """The card of one model, whose name may contain slashes."""
        self._context.model.check_name(request.path_params["model_id"])
        return _json(self._card())

    async def health(self, request: Request) -> Response:
        """200 while the server can be left alone: it serves, or is about to."""
        return self._probe(self._context.lifecycle.alive)

    async def ready(self, request: Request) -> Response:
        """200 while new work is taken."""
        lifecycle = self._context.lifecycle
        return self._probe(
            not lifecycle.draining and self._context.client.status is EngineStatus.READY
        )

    async def version(self, request: Request) -> Response:
        """The server's version."""
        return _json({"version": self._context.model.version})

    async def metrics(self, request: Request) -> Response:
        """Counters, gauges and histograms for Prometheus."""
        return Response(self._context.metrics.render(), headers={"content-type": CONTENT_TYPE})

    async def reset_prefix_cache(self, request: Request) -> Response:
        """Forget every cached prefix that no running request holds."""
        self._context.lifecycle.check_accepting()
        await self._context.client.reset_prefix_cache()
        return _json({"success": True})

    async def embeddings(self, request: Request) -> Response:
        """Refuse: the served model generates text."""
        name = (await read_object(request)).get("model")
        self._context.model.check_name(name if isinstance(name, str) else None)
        raise NotSupported("Embeddings are not supported by this server.", param="model")

    def _probe(self, good: bool) -> Response:
        status = {"status": self._context.lifecycle.word}
        if good:
            return _json(status)
        headers = {"retry-after": str(RETRY_SECONDS)}
        return Response(
            msgspec.json.encode(status), 503, headers=headers, media_type="application/json"
        )

    def _card(self) -> dict[str, Any]:
        model, client = self._context.model, self._context.client
        card: dict[str, Any] = {
            "id": model.name,
            "object": "model",
            "created": model.created,
            "owned_by": "ramet",
            "root": model.name,
            "parent": None,
        }
        if client.status is EngineStatus.READY:
            card["max_model_len"] = client.info.max_model_len
        return card


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
