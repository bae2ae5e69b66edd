"""The description of the routes that /openapi.json and /docs show.

Bodies are read and checked by msgspec, so their schemas come from there, not from FastAPI.
"""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import FastAPI

from .control import CancelRequest, ReleaseRequest, RetainRequest
from .native import RenderRequest
from .native_work import GenerateItem
from .protocol import ChatRequest, CompletionRequest
from .tokens import DetokenizeRequest, TokenizeRequest

BODIES: dict[str, type[msgspec.Struct]] = {
    "/generate": GenerateItem,
    "/render": RenderRequest,
    "/cancel": CancelRequest,
    "/retain": RetainRequest,
    "/release": ReleaseRequest,
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/tokenize": TokenizeRequest,
    "/v1/detokenize": DetokenizeRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}


class DescribedApp(FastAPI):
    """An application whose description has the bodies' schemas."""

    def openapi(self) -> dict[str, Any]:
        """The description, made once."""
        if self.openapi_schema is None:
            description = super().openapi()
            (refs, schemas) = msgspec.json.schema_components(
                BODIES.values(), ref_template="#/components/schemas/{name}"
            )
            description.setdefault("components", {}).setdefault("schemas", {}).update(schemas)
            for path, ref in zip(BODIES, refs, strict=True):
                description["paths"][path]["post"]["requestBody"] = {
                    "required": True,
                    "content": {"application/json": {"schema": ref}},
                }
            self.openapi_schema = description
        return self.openapi_schema
