"""`ramet chat`: talk to a model in the terminal."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .conversation import HELP, Speaker, converse, terminal_reader
from .obtain import obtain
from .speakers import EngineSpeaker, ServerSpeaker, connect
from .terminal import Settings, print_note

if TYPE_CHECKING:
    from ramet.runtime.config import EngineConfig


def register(app: typer.Typer, settings: Settings) -> None:
    """Add `ramet chat`."""

    @app.command()
    def chat(
        model: Annotated[
            str | None,
            typer.Argument(
                metavar="MODEL",
                help="The model; with --url its name there. Default: the built-in one, or the "
                "server's first.",
            ),
        ] = None,
        url: Annotated[
            str | None,
            typer.Option(help="Talk to this server; otherwise the model runs in this process."),
        ] = None,
        api_key: Annotated[str | None, typer.Option(help="The server's key.")] = None,
        system: Annotated[str | None, typer.Option(help="The system message.")] = None,
        temperature: Annotated[
            float, typer.Option(min=0.0, max=2.0, help="0 always takes the likeliest token.")
        ] = 0.7,
        max_tokens: Annotated[
            int | None, typer.Option(min=1, help="Most tokens of one answer.")
        ] = None,
        seed: Annotated[int | None, typer.Option(help="Makes answers repeatable.")] = None,
    ) -> None:
        """Talk to a model in the terminal.

        Lines that are piped in are answered one after the other.
        """
        options: dict[str, Any] = {"temperature": temperature}
        options |= {"max_tokens": max_tokens} if max_tokens is not None else {}
        options |= {"seed": seed} if seed is not None else {}
        interactive = sys.stdin.isatty()
        with ExitStack() as stack:
            if url is not None:
                speaker, name = _server(stack, url, api_key, model, options)
            else:
                speaker, name = _engine(stack, settings, model, options)
            if interactive:
                print_note(f"{name}. {HELP}")
            read_line = terminal_reader(sys.stdin, ">>> ")
            code = converse(speaker, read_line, system=system, interactive=interactive)
        raise typer.Exit(code)


def _server(
    stack: ExitStack, url: str, api_key: str | None, model: str | None, options: dict[str, Any]
) -> tuple[Speaker, str]:
    client = stack.enter_context(connect(url, api_key))
    speaker = ServerSpeaker(client, model, options)
    return speaker, f"{speaker.model} at {url}"


def _engine(
    stack: ExitStack, settings: Settings, model: str | None, options: dict[str, Any]
) -> tuple[Speaker, str]:
    from ramet.runtime import Engine
    from ramet.runtime.config import DEFAULT_MODEL

    name = model or DEFAULT_MODEL
    config = _single_conversation(name, settings)
    engine = stack.enter_context(Engine(config, cache_dir=settings.cache_dir))
    return EngineSpeaker(engine, options), name


def _single_conversation(model: str, settings: Settings) -> EngineConfig:
    """A configuration that takes no more memory than one request of full length needs."""
    from ramet.runtime.config import CacheConfig, EngineConfig, ModelOptions
    from ramet.runtime.engine.loading import plan_engine
    from ramet.runtime.memory_plan import blocks_for

    source = obtain(model, settings)
    config = EngineConfig(model=ModelOptions(model=model, auto_length=True))
    _, plan = plan_engine(config, source)
    num_slots = blocks_for(plan.max_model_len, plan.block_size) * plan.block_size
    # The length is fixed too: what was free a moment ago may be less when the model is loaded.
    return replace(
        config,
        model=ModelOptions(model=model, max_model_len=plan.max_model_len),
        cache=CacheConfig(kv_cache_memory=num_slots * plan.kv_bytes_per_token),
    )
