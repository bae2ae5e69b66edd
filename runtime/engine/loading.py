"""From a configuration to an engine that is ready to step: what fits is decided here, before loading."""

from __future__ import annotations

import logging
import time

import torch

from ramet.kernels import ops
from ramet.kernels.cores import num_physical_cores
from ramet.radix import PrefixCache

from ..config import CacheConfig, EngineConfig, ModelOptions
from ..errors import ConfigError
from ..execution.kv_pool import PagedKVPool
from ..execution.model_runner import ModelRunner
from ..execution.sampler import Sampler
from ..memory_plan import MemoryPlan, available_memory, plan_memory
from ..models import ModelConfig, load_decoder
from ..sources.base import ModelSource
from ..text.tokenizer import Tokenizer
from .core import EngineCore
from .messages import EngineInfo
from .retention import Retention

logger = logging.getLogger(__name__)


def load_kernels(options: ModelOptions, device: torch.device) -> ops.Kernels:
    """The kernels that the options name.

    Raises:
        ConfigError: there are none of that name, or they were not built.
    """
    name = options.kernels
    if name == "auto" and options.dtype == "float16":
        name = "sdpa"  # the native kernels compute in float32 and bfloat16
    try:
        return ops.load(name, device, num_threads=options.num_threads)
    except ValueError as error:
        raise ConfigError(f"kernels: {error}.", param="kernels") from error


def resolve_dtype(name: str, kernels: ops.Kernels) -> torch.dtype:
    """The torch dtype of a configured name.

    "auto" is bfloat16 where a row's bits depend on that row alone. Elsewhere it is float32: products
    round differently in batches of different sizes, and in bfloat16 that changes greedy choices.
    """
    if name == "auto":
        return torch.bfloat16 if kernels.row_invariant else torch.float32
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def plan_engine(config: EngineConfig, source: ModelSource) -> tuple[ModelConfig, MemoryPlan]:
    """Decide what the engine will hold, from the model's headers alone.

    Raises:
        ConfigError: unknown architecture, or the KV cache cannot hold one request.
    """
    kernels = load_kernels(config.model, torch.device("cpu"))
    return _plan(config, source, resolve_dtype(config.model.dtype, kernels))


def _plan(
    config: EngineConfig, source: ModelSource, dtype: torch.dtype
) -> tuple[ModelConfig, MemoryPlan]:
    model = ModelConfig.from_hf(source.config())
    plan = plan_memory(
        cache=config.cache,
        kv_bytes_per_token=model.kv_bytes_per_token(dtype.itemsize),
        weight_bytes=source.weight_bytes(dtype.itemsize),
        model_max_len=model.max_position_embeddings,
        max_model_len=config.model.max_model_len,
        available_bytes=available_memory(),
        auto_length=config.model.auto_length,
    )
    return model, plan


def _max_retain_seconds(cache: CacheConfig, num_blocks: int) -> float:
    retains = cache.enable_prefix_cache and cache.max_retained_blocks(num_blocks) > 0
    return cache.retain_seconds if retains else 0.0


def load_core(config: EngineConfig, source: ModelSource) -> EngineCore:
    """Load the model and build its engine. Takes seconds; sets torch's thread count.

    Raises:
        ConfigError: the model cannot be loaded, or does not fit.
    """
    started = time.monotonic()
    device = torch.device("cpu")
    kernels = load_kernels(config.model, device)
    # Two pools of threads on the same cores slow each other down; the native kernels have their own.
    threads = 1 if kernels.name == "cpu" else config.model.num_threads or num_physical_cores()
    torch.set_num_threads(threads)
    dtype = resolve_dtype(config.model.dtype, kernels)
    model_config, plan = _plan(config, source, dtype)
    tokenizer = Tokenizer(source.tokenizer())
    model = load_decoder(
        source,
        model_config,
        dtype=dtype,
        device=device,
        kernels=kernels,
        max_positions=plan.max_model_len,
    )
    pool = PagedKVPool(
        num_layers=model_config.num_layers,
        num_blocks=plan.num_blocks,
        block_size=config.cache.block_size,
        num_kv_heads=model_config.num_kv_heads,
        head_dim=model_config.head_dim,
        dtype=dtype,
        device=device,
    )
    cache = PrefixCache(
        plan.num_blocks,
        config.cache.block_size,
        enabled=config.cache.enable_prefix_cache,
        eviction_policy=config.cache.eviction_policy,
    )
    runner = ModelRunner(
        model,
        pool,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_model_len=plan.max_model_len,
    )
    eos_token_ids = source.eos_token_ids()
    info = EngineInfo(
        model_name=source.name,
        max_model_len=plan.max_model_len,
        vocab_size=model_config.vocab_size,
        num_blocks=plan.num_blocks,
        block_size=config.cache.block_size,
        dtype=str(dtype).removeprefix("torch."),
        device=str(device),
        kernels=kernels.name,
        eos_token_ids=eos_token_ids,
        weight_bytes=plan.weight_bytes,
        kv_cache_bytes=plan.num_blocks * config.cache.block_size * plan.kv_bytes_per_token,
        load_seconds=time.monotonic() - started,
        max_retain_seconds=_max_retain_seconds(config.cache, plan.num_blocks),
    )
    return EngineCore(
        info=info,
        config=config.scheduler,
        cache=cache,
        retention=Retention(
            cache,
            time.monotonic,
            max_blocks=config.cache.max_retained_blocks(plan.num_blocks),
            max_seconds=info.max_retain_seconds,
        ),
        runner=runner,
        sampler=Sampler(
            model_config.vocab_size,
            device,
            eos_token_ids,
            draw_rows=kernels.draw if isinstance(kernels, ops.DrawsTokens) else None,
        ),
        tokenizer=tokenizer,
        seed=config.model.seed,
        share_inflight=config.cache.enable_prefix_cache,
    )
