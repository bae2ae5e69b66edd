"""What the user may set: frozen, composed, and validated where it is made.

    ServerConfig
    ├── engine: EngineConfig
    │   ├── model: ModelOptions
    │   ├── cache: CacheConfig
    │   └── scheduler: SchedulerConfig
    └── host, port, api_key, …

Every field carries its help text, its flag group and, where the flag's name differs, its flag; the
command line is generated from them. None means "auto": it is resolved where the facts are known (the
model's context length, the machine's memory) into the engine's `EngineInfo`, never written back here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .errors import ConfigError

DTYPES = ("auto", "float32", "bfloat16", "float16")
KV_CACHE_DTYPES = ("auto", "bfloat16", "float32", "int8")
QUANTIZATIONS = ("int8", "int4")
POLICIES = ("cache-aware", "fcfs")
EVICTION_POLICIES = ("lru", "lfu")
TOOL_CALL_PARSERS = ("auto", "hermes", "llama3_json", "mistral")
DEFAULT_MODEL = "smollm2-135m-instruct"

_SUFFIXES = {
    "": 1,
    "k": 1000,
    "K": 1024,
    "m": 1000**2,
    "M": 1024**2,
    "g": 1000**3,
    "G": 1024**3,
}


def parse_length(text: str) -> int | None:
    """A number of tokens: `4096`, `32k` (32,000), `32K` (32,768), `1.5k`; None for `auto`.

    Raises:
        ConfigError: the text is none of these, or not above zero.
    """
    if text == "auto":
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmM]?)", text.strip())
    value = float(match[1]) * _SUFFIXES[match[2]] if match else 0.0
    if value <= 0 or value != int(value):
        raise ConfigError(
            f"{text!r} is not a number of tokens.",
            hint="Write 4096, 32k (32,000), 32K (32,768) or auto.",
        )
    return int(value)


def parse_bytes(text: str) -> int:
    """A number of bytes: `2000000000`, `2g` (2e9), `2G` or `2GiB` (2 x 1024^3), `512MiB`.

    Raises:
        ConfigError: the text is none of these, or not above zero.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kKmMgG]?)(i?B)?", text.strip())
    value = (
        int(float(match[1]) * _SUFFIXES[match[2].upper() if match[3] == "iB" else match[2]])
        if match
        else 0
    )
    if value <= 0:
        raise ConfigError(
            f"{text!r} is not a size.", hint="Write bytes, or a size such as 2GiB or 512MiB."
        )
    return value


def option(
    default: Any,
    help: str,
    group: str,
    flag: str | None = None,
    *,
    parse: Callable[[str], Any] | None = None,
) -> Any:
    """A dataclass field that the command line shows as `flag` under `group`.

    Args:
        flag: the flag's name where it is not the field's; without dashes it is a positional argument.
        parse: turns the flag's text into the field's value; None leaves that to the field's type.
    """
    metadata = {"help": help, "group": group, "flag": flag, "parse": parse}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """Which model, in which precision, for how long a context.

    `auto_length` lets a context that does not fit into memory shrink to what does; without it that is
    an error. It is what `--max-model-len auto` sets, and applies where `max_model_len` is None.
    """

    model: str = option(
        DEFAULT_MODEL,
        "A Hugging Face folder, a GGUF file, a hub id, or a name that `ramet list` shows.",
        "Model",
        "MODEL",
    )
    dtype: str = option(
        "auto", "Precision of weights and computation: auto, float32, bfloat16, float16.", "Model"
    )
    quantization: str | None = option(
        None,
        "Hold weights in 8 or 4 bits and compute on these: int8 or int4. What a GGUF file stores in as "
        "few or fewer is taken as it is; embedding and head have 8. Default: none.",
        "Model",
    )
    max_model_len: int | None = option(
        None,
        "Most tokens of prompt and output together: 8192, 32k, 32K, or auto: as many of the model's "
        "own as fit into memory. Default: the model's own.",
        "Model",
        parse=parse_length,
    )
    auto_length: bool = False
    seed: int = option(0, "Seeds the requests that bring no seed of their own.", "Model")
    kernels: str = option(
        "auto",
        "Who computes: auto, cpu (native), sdpa, reference; cpu:avx2 and the like force an "
        "instruction set.",
        "Model",
    )
    num_threads: int | None = option(
        None,
        "CPU threads for the arithmetic; auto: the physical cores available.",
        "Model",
        "--cpu-threads",
    )

    def __post_init__(self) -> None:
        _one_of("dtype", self.dtype, DTYPES)
        if self.quantization is not None:
            _one_of("quantization", self.quantization, QUANTIZATIONS)
            if self.dtype == "float16":
                raise ConfigError(
                    f"quantization {self.quantization} computes in bfloat16 or float32, not in float16.",
                    param="quantization",
                    hint="Leave --dtype at auto.",
                )
        _at_least("max_model_len", self.max_model_len, 1)
        _at_least("num_threads", self.num_threads, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """How much KV memory there is, and what may be shared in it."""

    block_size: int = option(16, "Tokens per block of KV memory.", "KV cache")
    kv_cache_dtype: str = option(
        "auto",
        "Precision of cached keys and values: auto (that of the computation), bfloat16, float32, or "
        "int8 with a scale for each head of each token.",
        "KV cache",
    )
    memory_fraction: float = option(
        0.5,
        "Fraction of the memory that is free once the weights are loaded which the KV cache may take.",
        "KV cache",
        "--gpu-memory-utilization",
    )
    kv_cache_memory: int | None = option(
        None,
        "Size of the KV cache in bytes, or as 2GiB; overrides the fraction.",
        "KV cache",
        parse=parse_bytes,
    )
    enable_prefix_cache: bool = option(
        True, "Reuse the KV of shared prefixes.", "KV cache", "--prefix-cache/--no-prefix-cache"
    )
    eviction_policy: str = option("lru", "Which unused prefix goes first: lru or lfu.", "KV cache")
    retain_memory: float = option(
        0.25,
        "Most of the KV cache, as a fraction, that is evicted last because a session waits, such as for "
        "a tool; 0 retains nothing.",
        "KV cache",
    )
    retain_seconds: float = option(
        300.0, "Most seconds that a session's prefix is retained; 0 retains nothing.", "KV cache"
    )

    def __post_init__(self) -> None:
        _at_least("block_size", self.block_size, 1)
        _one_of("kv_cache_dtype", self.kv_cache_dtype, KV_CACHE_DTYPES)
        _at_least("kv_cache_memory", self.kv_cache_memory, 1)
        _one_of("eviction_policy", self.eviction_policy, EVICTION_POLICIES)
        if not 0.0 < self.memory_fraction <= 1.0:
            raise ConfigError(
                f"gpu_memory_utilization must be above 0 and at most 1, not {self.memory_fraction}.",
                param="gpu_memory_utilization",
            )
        if not 0.0 <= self.retain_memory <= 1.0:
            raise ConfigError(
                f"retain_memory must be between 0 and 1, not {self.retain_memory}.",
                param="retain_memory",
            )
        if not 0.0 <= self.retain_seconds < float("inf"):
            raise ConfigError(
                f"retain_seconds must be at least 0 and finite, not {self.retain_seconds}.",
                param="retain_seconds",
            )

    def max_retained_blocks(self, num_blocks: int) -> int:
        """Of a cache of `num_blocks`, as many as may be retained."""
        return int(self.retain_memory * num_blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """How requests share the steps of the engine."""

    max_num_seqs: int = option(64, "Most requests that run at once.", "Scheduler")
    max_num_batched_tokens: int = option(2048, "Most tokens computed in one step.", "Scheduler")
    schedule_policy: str = option(
        "cache-aware",
        "Order of admission: cache-aware (longest cached prefix first) or fcfs.",
        "Scheduler",
    )
    max_overtakes: int = option(
        32, "How many later requests may be admitted before one that waits.", "Scheduler"
    )
    step_latency_target: float = option(
        0.2,
        "Seconds that a step may take while requests decode; prefill chunks are cut to meet it.",
        "Scheduler",
    )
    max_queue_len: int = option(
        4096, "Most requests that may wait; more are refused with 429.", "Scheduler"
    )

    @property
    def max_live(self) -> int:
        """Most requests that may run or wait."""
        return self.max_num_seqs + self.max_queue_len

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_queue_len"):
            _at_least(name, getattr(self, name), 1)
        _at_least("max_overtakes", self.max_overtakes, 0)
        _one_of("schedule_policy", self.schedule_policy, POLICIES)
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least "
                f"max_num_seqs ({self.max_num_seqs}), so that every running request can decode.",
                param="max_num_batched_tokens",
            )
        if not self.step_latency_target > 0:
            raise ConfigError(
                f"step_latency_target must be above 0 seconds, not {self.step_latency_target}.",
                param="step_latency_target",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything that decides what the engine computes, and how."""

    model: ModelOptions = field(default_factory=ModelOptions)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Where and for whom the engine is served over HTTP."""

    engine: EngineConfig = field(default_factory=EngineConfig)
    host: str = option("127.0.0.1", "Address to listen on.", "Server")
    port: int = option(8000, "Port to listen on; 0 picks a free one.", "Server")
    served_model_name: str | None = option(
        None, "Name that clients use for the model; auto: the MODEL argument.", "Server"
    )
    api_key: tuple[str, ...] = option(
        (), "Keys of which clients must send one as a bearer token; repeatable.", "Server"
    )
    tool_call_parser: str = option(
        "auto",
        "How the model writes calls of tools: hermes, llama3_json, mistral; auto: as its chat template "
        "shows, or hermes.",
        "Server",
    )
    shutdown_timeout: float = option(
        30.0, "Seconds that running requests get to finish after SIGTERM.", "Server"
    )

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port must be between 0 and 65535, not {self.port}.", param="port")
        _one_of("tool_call_parser", self.tool_call_parser, TOOL_CALL_PARSERS)
        if not self.shutdown_timeout >= 0:
            raise ConfigError(
                f"shutdown_timeout must be at least 0 seconds, not {self.shutdown_timeout}.",
                param="shutdown_timeout",
            )
        if any(not key for key in self.api_key):
            raise ConfigError("api_key must not be empty.", param="api_key")


def _at_least(name: str, value: int | None, low: int) -> None:
    if value is not None and value < low:
        raise ConfigError(f"{name} must be at least {low}, not {value}.", param=name)


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, not {value!r}.", param=name)
