"""`ramet serve`: the OpenAI-compatible server. Its flags are the fields of `ServerConfig`."""

from __future__ import annotations

from typing import Any

import typer

from .obtain import obtain
from .options import flags_of, from_flags, with_flags
from .terminal import Settings


def register(app: typer.Typer, settings: Settings) -> None:
    """Add `ramet serve`."""
    from ramet.runtime.config import ServerConfig

    def serve(**values: Any) -> None:
        """Serve a model over an OpenAI-compatible HTTP endpoint.

        A model that is not here yet is downloaded first.
        """
        from ramet.runtime.server.serve import serve as run_server

        config = from_flags(ServerConfig, values)
        obtain(config.engine.model.model, settings)
        raise typer.Exit(run_server(config, cache_dir=settings.cache_dir))

    app.command()(with_flags(serve, flags_of(ServerConfig)))
