"""ramet.runtime owns block bytes, time and the network: it turns requests into tokens.

Steps: `engine` runs the loop, `scheduler` says what each step computes, `execution` and `models` compute
it, `text` goes between strings and ids, `sources` finds models, `server` speaks HTTP. It knows nothing
of programs; those live in the layer above.

Names of dimensions, wherever a shape is written:

    num_tokens      tokens of one step, over all requests
    num_seqs        requests in one step
    num_layers      decoder layers
    num_blocks      blocks of the KV cache
    block_size      slots (token positions) of a block
    num_heads       query heads
    num_kv_heads    key and value heads; num_heads is a multiple of it
    head_dim        width of one head
    hidden_size     width of the residual stream
    vocab_size      rows of the embedding

Importing this package loads neither torch nor a model; the names below are fetched when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import CacheConfig, EngineConfig, ModelOptions, SchedulerConfig, ServerConfig
    from .engine.completion import AsyncTextStream, Completion, TextStream
    from .engine.engine import Engine
    from .errors import RametError
    from .request import FinishReason, SamplingParams, TokenLogprobs

__all__ = [
    "AsyncTextStream",
    "CacheConfig",
    "Completion",
    "Engine",
    "EngineConfig",
    "FinishReason",
    "ModelOptions",
    "RametError",
    "SamplingParams",
    "SchedulerConfig",
    "ServerConfig",
    "TextStream",
    "TokenLogprobs",
]

_HOMES = {
    ".config": ("CacheConfig", "EngineConfig", "ModelOptions", "SchedulerConfig", "ServerConfig"),
    ".engine.completion": ("AsyncTextStream", "Completion", "TextStream"),
    ".engine.engine": ("Engine",),
    ".errors": ("RametError",),
    ".request": ("FinishReason", "SamplingParams", "TokenLogprobs"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home, __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
