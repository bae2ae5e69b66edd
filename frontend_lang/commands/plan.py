"""`ramet plan`: what of a model would fit into this machine's memory, before anything is loaded."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table

from .options import flags_of, from_flags, with_flags
from .terminal import Settings, format_bytes, stdout

# The others change nothing in the plan, and a flag without an effect is a lie.
_RELEVANT = (
    "model",
    "dtype",
    "quantization",
    "max_model_len",
    "block_size",
    "kv_cache_dtype",
    "memory_fraction",
    "kv_cache_memory",
)


def register(app: typer.Typer, settings: Settings) -> None:
    """Add `ramet plan`."""
    from ramet.runtime.config import EngineConfig

    def plan(
        as_json: Annotated[
            bool, typer.Option("--json", help="Print numbers for programs.")
        ] = False,
        **values: Any,
    ) -> None:
        """Show what fits: weights, KV cache, context length and how many requests of it.

        The model must be here (`ramet pull`); only its headers are read.
        """
        from ramet.runtime.engine.loading import plan_engine, resolve_kv_dtype
        from ramet.runtime.models import dtype_name
        from ramet.runtime.sources.resolve import resolve
        from ramet.runtime.sources.store import ModelStore

        config = from_flags(EngineConfig, values)
        source = resolve(config.model.model, ModelStore(settings.cache_dir))
        precision, fits = plan_engine(config, source)
        numbers = asdict(fits) | {
            "model": source.name,
            "dtype": precision.dtype_name,
            "quantization": precision.quantization,
            "kv_cache_dtype": dtype_name(resolve_kv_dtype(config.cache, precision)),
            "num_tokens": fits.num_tokens,
            "kv_cache_bytes": fits.kv_cache_bytes,
            "num_max_len_requests": fits.num_max_len_requests,
        }
        if as_json:
            typer.echo(json.dumps(numbers))
        else:
            stdout().print(_table(numbers))

    flags = [flag for flag in flags_of(EngineConfig) if flag.name in _RELEVANT]
    app.command()(with_flags(plan, flags))


def _table(numbers: dict[str, Any]) -> Table:
    table = Table(title=numbers["model"], title_justify="left", show_header=False)
    context = f"{numbers['max_model_len']:,} tokens"
    if numbers["max_model_len"] != numbers["model_max_len"]:
        context += f" (the model's own: {numbers['model_max_len']:,})"
    blocks = f"{numbers['num_blocks']:,} blocks of {numbers['block_size']}"
    held_as = numbers["quantization"] or numbers["dtype"]
    kv_bytes = format_bytes(numbers["kv_bytes_per_token"])
    rows = (
        ("weights", f"{format_bytes(numbers['weight_bytes'])} as {held_as}"),
        ("KV per token", f"{kv_bytes} as {numbers['kv_cache_dtype']}"),
        ("KV cache", f"{format_bytes(numbers['kv_cache_bytes'])}, {blocks}"),
        ("tokens in the KV cache", f"{numbers['num_tokens']:,}"),
        ("context", context),
        ("requests of that length", f"{numbers['num_max_len_requests']:,}"),
    )
    for row in rows:
        table.add_row(*row)
    return table
