"""`ramet version`: what is installed, for a bug report."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import typer

from .. import __version__
from .terminal import Settings

REPORTED = ("torch", "transformers", "tokenizers", "fastapi", "uvicorn")


def register(app: typer.Typer, settings: Settings) -> None:
    """Add `ramet version`."""

    @app.command("version")
    def show_version() -> None:
        """Show the versions of ramet and of what it stands on."""
        typer.echo(f"ramet {__version__}")
        typer.echo(f"python {platform.python_version()} ({platform.system()} {platform.machine()})")
        for name in REPORTED:
            try:
                typer.echo(f"{name} {version(name)}")
            except PackageNotFoundError:
                typer.echo(f"{name} is not installed")
