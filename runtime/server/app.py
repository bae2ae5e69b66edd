"""The HTTP application: routes, middleware and errors put together; nothing is decided here."""

from __future__ import annotations

import random

from fastapi import FastAPI

from ..config import ServerConfig
from ..engine.client import EngineClient
from .branches import Branches
from .chat import ChatRoute
from .completions import CompletionRoute
from .control import ControlRoutes
from .description import DescribedApp
from .errors import add_error_handlers
from .intake import ServerContext
from .lifecycle import Lifecycle
from .metrics import ServerMetrics
from .middleware import ApiKeys, RequestContext
from .model import ServedModel
from .native import NativeRoutes
from .ops import OpsRoutes
from .tokens import TokenRoutes


def create_app(
    config: ServerConfig, client: EngineClient, model: ServedModel, lifecycle: Lifecycle
) -> FastAPI:
    """The application that serves `model` through `client`.

    It starts and stops nothing: the caller starts the client (before or while the application
    answers probes), tells `lifecycle` when to drain, and stops the client at the end.

    Args:
        config: keys, and the seed of requests that bring none.
        client: the engine, wherever it runs.
        model: its name and its text.
        lifecycle: of the same client.
    """
    metrics = ServerMetrics(client)
    context = ServerContext(
        config=config,
        client=client,
        model=model,
        lifecycle=lifecycle,
        metrics=metrics,
        seeds=random.Random(config.engine.model.seed),
    )
    app = DescribedApp(title="ramet", version=model.version, redirect_slashes=False)
    add_error_handlers(app)
    _add_routes(app, context)
    # The last one added is the outermost: refusals for a missing key have the headers too.
    app.add_middleware(ApiKeys, keys=config.api_key)
    app.add_middleware(RequestContext, metrics=metrics)
    return app


def _add_routes(app: FastAPI, context: ServerContext) -> None:
    tokens, ops = TokenRoutes(context), OpsRoutes(context)
    chat, completions = ChatRoute(context), CompletionRoute(context)
    branches = Branches()
    native, control = NativeRoutes(context, branches), ControlRoutes(context, branches)
    for path, endpoint in (
        ("/generate", native.generate),
        ("/render", native.render),
        ("/cancel", control.cancel),
        ("/retain", control.retain),
        ("/release", control.release),
        ("/v1/chat/completions", chat.create),
        ("/v1/completions", completions.create),
        ("/v1/embeddings", ops.embeddings),
        ("/v1/tokenize", tokens.tokenize),
        ("/v1/detokenize", tokens.detokenize),
        ("/tokenize", tokens.tokenize),
        ("/detokenize", tokens.detokenize),
        ("/reset_prefix_cache", ops.reset_prefix_cache),
    ):
        app.add_api_route(path, endpoint, methods=["POST"], response_model=None)
    for path, endpoint in (
        ("/v1/models", ops.models),
        ("/v1/models/{model_id:path}", ops.model),
        ("/health", ops.health),
        ("/ready", ops.ready),
        ("/version", ops.version),
        ("/metrics", ops.metrics),
        ("/tokenizer_info", tokens.info),
    ):
        app.add_api_route(path, endpoint, methods=["GET"], response_model=None)
        app.add_api_route(
            path, endpoint, methods=["HEAD"], response_model=None, include_in_schema=False
        )
