"""ramet: a prefix-caching serving runtime for agent programs, and the language to write them in.

Importing it loads neither torch nor the runtime; the names below are fetched when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .lang.api import (
        assistant,
        assistant_begin,
        assistant_end,
        flush_cache,
        gen,
        gen_int,
        gen_string,
        get_server_info,
        image,
        select,
        separate_reasoning,
        system,
        system_begin,
        system_end,
        tool_loop,
        user,
        user_begin,
        user_end,
        video,
    )
    from .lang.backends.endpoint import RuntimeEndpoint
    from .lang.backends.openai import OpenAI
    from .lang.backends.recorder import Recorder
    from .lang.backends.runtime import Runtime
    from .lang.choices import (
        greedy_token_selection,
        token_length_normalized,
        total_likelihood,
        unconditional_likelihood_normalized,
    )
    from .lang.defaults import set_default_backend
    from .lang.errors import (
        BackendError,
        LanguageError,
        ProgramCancelled,
        ProgramError,
        ToolLoopError,
        UnknownVariable,
        Unsupported,
        UsageError,
    )
    from .lang.program import Function, function
    from .lang.state import State, StateGroup

_HOMES: dict[str, tuple[str, ...]] = {
    ".lang.api": (
        *("assistant", "assistant_begin", "assistant_end", "flush_cache", "gen", "gen_int"),
        *("gen_string", "get_server_info", "image", "select", "separate_reasoning", "system"),
        *("system_begin", "system_end", "tool_loop", "user", "user_begin", "user_end", "video"),
    ),
    ".lang.backends.openai": ("OpenAI",),
    ".lang.backends.recorder": ("Recorder",),
    ".lang.backends.runtime": ("Runtime",),
    ".lang.backends.endpoint": ("RuntimeEndpoint",),
    ".lang.choices": (
        *("greedy_token_selection", "token_length_normalized", "total_likelihood"),
        "unconditional_likelihood_normalized",
    ),
    ".lang.defaults": ("set_default_backend",),
    ".lang.errors": (
        *("BackendError", "LanguageError", "ProgramCancelled", "ProgramError", "ToolLoopError"),
        *("UnknownVariable", "Unsupported", "UsageError"),
    ),
    ".lang.program": ("Function", "function"),
    ".lang.state": ("State", "StateGroup"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "BackendError",
    "Function",
    "LanguageError",
    "OpenAI",
    "ProgramCancelled",
    "ProgramError",
    "Recorder",
    "Runtime",
    "RuntimeEndpoint",
    "State",
    "StateGroup",
    "ToolLoopError",
    "UnknownVariable",
    "Unsupported",
    "UsageError",
    "__version__",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "flush_cache",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "get_server_info",
    "greedy_token_selection",
    "image",
    "select",
    "separate_reasoning",
    "set_default_backend",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "tool_loop",
    "total_likelihood",
    "unconditional_likelihood_normalized",
    "user",
    "user_begin",
    "user_end",
    "video",
]


_VENDOR = "OpenAI(model, base_url, api_key) reaches vendors that are compatible with it"
# What programs of SGLang's name beside this, and what there is for it.
_ELSEWHERE = {
    "Engine": "ramet.runtime.Engine is the engine",
    "ServerArgs": "`ramet serve --help` has a server's options, ramet.runtime.Engine those of an engine",
    "global_config": "there are no settings of the process; runs and backends take theirs",
    **dict.fromkeys(("Anthropic", "LiteLLM", "VertexAI", "Crusoe"), _VENDOR),
}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        hint = f": {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
    value = getattr(import_module(_HOME_OF[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
