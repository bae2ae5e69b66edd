"""`ramet bench programs`: real agent programs on real data, from flags to figures."""

from __future__ import annotations

import json
import platform
import time
import uuid
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ..protocol import ServerError
from .program import DataError, Program
from .replay import HISTORIES
from .target import BACKENDS, Target, open_target

NAMES = ("react", "tree_of_thought", "tau_bench", "self_consistency", "json_extraction")


def programs(
    data: Annotated[
        Path, typer.Option(exists=True, file_okay=False, help="Folder of the public data sets.")
    ],
    program: Annotated[
        list[str], typer.Option(help=", ".join(NAMES) + "; repeatable, all by default.")
    ] = [],  # noqa: B006 (typer copies it)
    backend: Annotated[
        str, typer.Option(help=", ".join(BACKENDS) + ": in this process, or at --url.")
    ] = "endpoint",
    url: Annotated[
        str, typer.Option(help="The server's root, without /v1.")
    ] = "http://127.0.0.1:8000",
    model: Annotated[
        str, typer.Option(help="Default: ramet's own model, or the first that the server lists.")
    ] = "",
    api_key: Annotated[str | None, typer.Option()] = None,
    kv_cache_memory: Annotated[
        int | None, typer.Option(min=1, help="Of an engine in this process, in MiB.")
    ] = None,
    sessions: Annotated[
        int | None, typer.Option(min=1, help="Of each program; each has a default.")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Sessions at once; each program has a default.")
    ] = None,
    history: Annotated[
        str,
        typer.Option(
            help="What replays go on with: the recorded text, or what the model generated."
        ),
    ] = HISTORIES[0],
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write everything here.")
    ] = None,
) -> None:
    """Run agent programs on real data: hit rate against an infinite cache, time, correctness.

    The exit code is 1 if a session failed.
    """
    from .measure import Options

    try:
        chosen = [find(name) for name in program or NAMES]
        if history not in HISTORIES:
            raise ValueError(f"history must be one of {', '.join(HISTORIES)}, not {history!r}")
        target = Target(
            backend=backend,
            url=url,
            model=model,
            api_key=api_key,
            kv_cache_memory=None if kv_cache_memory is None else kv_cache_memory * 2**20,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    options = Options(data=data, num_sessions=sessions, concurrency=concurrency, history=history)
    try:
        outcome = _run(chosen, target, options, Console())
    except (DataError, ServerError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error
    if json_file is not None:
        json_file.write_text(json.dumps(outcome, indent=1) + "\n")
    if any(figures["failed"] for figures in outcome["programs"].values()):
        raise typer.Exit(1)


def find(name: str) -> Program[Any]:
    """The program of that name.

    Raises:
        ValueError: there is none.
    """
    if name not in NAMES:
        raise ValueError(f"program must be one of {', '.join(NAMES)}, not {name!r}")
    found: Program[Any] = import_module(f".{name}", __package__).PROGRAM
    return found


def _run(
    chosen: list[Program[Any]], target: Target, options: Any, console: Console
) -> dict[str, Any]:
    from .measure import measure
    from .table import table

    opened = open_target(target)
    try:
        facts = {
            "backend": target.backend,
            "url": None if target.backend == "runtime" else target.url,
            "model": opened.name,
            "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "client": f"python {platform.python_version()}, {platform.platform()}",
        }
        outcome: dict[str, Any] = {**facts, "programs": {}}
        for program in chosen:
            backend = opened.backend(uuid.uuid4().hex)
            figures = measure(program, backend, opened.tokens(), options)
            outcome["programs"][program.name] = figures
            console.print(table(program.name, figures))
            for reason, times in figures["failures"].items():
                console.print(f"{times} x {reason}", style="red", markup=False)
        return outcome
    finally:
        opened.close()
