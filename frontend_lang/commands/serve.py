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
        from ramet.runtime.engine.heap import growing
        from ramet.runtime.engine.spawn import spawned

        config = from_flags(ServerConfig, values)
        # Its imports and those of the server take as long as each other, so they go on at once.
        with spawned() as process, growing():
            obtain(config.engine.model.model, settings)
            from ramet.runtime.server.serve import serve as run_server

            code = run_server(config, cache_dir=settings.cache_dir, process=process)
        raise typer.Exit(code)

    app.command()(with_flags(serve, flags_of(ServerConfig)))
