"""`ramet pull`, `ramet list` and `ramet rm`: the models on this machine."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from .obtain import shown_progress
from .terminal import Settings, format_bytes, print_note, stdout


def register(app: typer.Typer, settings: Settings) -> None:
    """Add the three commands."""
    from ramet.runtime.config import DEFAULT_MODEL
    from ramet.runtime.sources.store import ModelStore

    store = ModelStore(settings.cache_dir)

    @app.command()
    def pull(
        model: Annotated[
            str,
            typer.Argument(
                help="A name that `ramet list` shows, a hub id (owner/model), or one GGUF file of a "
                "hub id (owner/model:file.gguf)."
            ),
        ] = DEFAULT_MODEL,
    ) -> None:
        """Download a model; a download that was broken off is resumed where its source allows it."""
        from ramet.runtime.sources.download import pull as download

        with shown_progress() as on_progress:
            path = download(model, store, on_progress)
        typer.echo(path)

    @app.command("list")
    def list_models() -> None:
        """List the models that are here, and the ones that have a short name."""
        from ramet.runtime.sources.catalog import CATALOG

        console = stdout()
        stored = store.models()
        here = Table("model", "size", "from", title=f"In {escape(str(store.root))}")
        for model in stored:
            here.add_row(*map(escape, (model.name, format_bytes(model.num_bytes), model.origin)))
        if stored:
            console.print(here)
        else:
            print_note(f"There is no model in {store.root} yet.")
        names = {model.name for model in stored}
        known = Table("name", "hub id", title="Known by a short name")
        for entry in CATALOG:
            if entry.name not in names:
                default = " (default)" if entry.name == DEFAULT_MODEL else ""
                known.add_row(escape(entry.name + default), escape(entry.repo_id))
        console.print(known)

    @app.command()
    def rm(models: Annotated[list[str], typer.Argument(metavar="MODEL...")]) -> None:
        """Delete downloaded models."""
        for name in models:
            model = store.remove(name)
            typer.echo(f"removed {model.name} ({format_bytes(model.num_bytes)})")
