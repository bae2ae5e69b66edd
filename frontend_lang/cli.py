"""The `ramet` command: where the environment is read, logging is set up and errors become text.

It owns the list of subcommands and the exit codes (0 done, 1 it could not be done, 2 misused); what
a subcommand does is in `commands/`. Subcommands of other packages join through the entry-point group
`ramet.commands`, each a typer app under the entry point's name.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated

import typer

from . import __version__
from .commands import chat, models, plan, serve, versions
from .commands.terminal import Settings, print_error

COMMAND_GROUP = "ramet.commands"
LOG_LEVELS = ("debug", "info", "warning", "error")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        argv: the arguments after the program's name; None takes the process's own.
    """
    from ramet.runtime.engine.logs import configure_logging
    from ramet.runtime.errors import RametError

    try:
        settings = read_settings()
        configure_logging(settings.log_level.upper())
        if settings.log_level != "debug":
            logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every request
        app = build_app(settings, entry_points(group=COMMAND_GROUP))
        app(args=None if argv is None else list(argv), prog_name="ramet")
    except RametError as error:
        print_error(error.message, error.hint)
        return 1
    except OSError as error:
        if error.filename is None:
            raise
        print_error(f"{error.filename}: {error.strerror}")  # a folder that may not be written, say
        return 1
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except KeyboardInterrupt:
        return 130
    return 0


def read_settings() -> Settings:
    """What the environment says: `RAMET_CACHE_DIR` and `RAMET_LOG_LEVEL`; nothing else is read.

    Raises:
        ConfigError: the log level is unknown.
    """
    from ramet.runtime.errors import ConfigError

    level = os.environ.get("RAMET_LOG_LEVEL", "info").lower()
    if level not in LOG_LEVELS:
        raise ConfigError(
            f"RAMET_LOG_LEVEL is {level!r}.",
            param="RAMET_LOG_LEVEL",
            hint=f"Use one of {', '.join(LOG_LEVELS)}.",
        )
    folder = os.environ.get("RAMET_CACHE_DIR") or Path.home() / ".cache" / "ramet"
    return Settings(cache_dir=Path(folder).expanduser(), log_level=level)


def build_app(settings: Settings, plugins: Iterable[EntryPoint] = ()) -> typer.Typer:
    """The whole command line, bound to `settings`.

    A plug-in that cannot be loaded is reported on stderr and left out; the rest works.
    """
    app = typer.Typer(
        help="Serve language models to agents; everything that requests share is computed once.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for module in (serve, chat, models, plan, versions):
        module.register(app, settings)
    for plugin in plugins:
        try:
            app.add_typer(plugin.load(), name=plugin.name)
        except Exception as error:
            print_error(
                f"The command {plugin.name!r} ({plugin.value}) could not be loaded: {error}"
            )
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ramet {__version__}")
        raise typer.Exit()


def _root(
    version: Annotated[
        bool,
        typer.Option(callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    pass
