"""From a configuration to an engine that is ready to step: what fits is decided here, before loading."""

from __future__ import annotations

import logging
import statistics
import time
from pathlib import Path

import torch

from ramet.kernels import ops
from ramet.kernels.cores import num_physical_cores
from ramet.kernels.kv_rows import MAX_INT8_HEAD_DIM, row_bytes
from ramet.radix import PrefixCache

from ..config import CacheConfig, EngineConfig, ModelOptions
from ..errors import ConfigError
from ..execution.kv_pool import PagedKVPool
from ..execution.model_runner import ModelRunner
from ..execution.sampler import Sampler
from ..memory_plan import MemoryPlan, available_memory, plan_memory
from ..models import ModelConfig, Precision, dtype_name, load_decoder, weight_bytes
from ..sources.base import ModelSource
from ..text.tokenizer import Tokenizer
from .core import EngineCore
from .factory import open_source
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


def resolve_kv_dtype(cache: CacheConfig, precision: Precision) -> torch.dtype:
    """The torch dtype of cached keys and values; "auto" is that of the computation."""
    if cache.kv_cache_dtype == "auto":
        return precision.dtype
    dtype: torch.dtype = getattr(torch, cache.kv_cache_dtype)
    return dtype


def resolve_precision(options: ModelOptions, kernels: ops.Kernels) -> Precision:
    """In what the weights that the options describe are held."""
    return Precision(resolve_dtype(options.dtype, kernels), options.quantization)


def plan_engine(config: EngineConfig, source: ModelSource) -> tuple[Precision, MemoryPlan]:
    """Decide what the engine will hold, and in what precision, from the model's headers alone.

    Raises:
        ConfigError: unknown architecture, or the KV cache cannot hold one request.
    """
    kernels = load_kernels(config.model, torch.device("cpu"))
    precision = resolve_precision(config.model, kernels)
    return precision, _plan(config, source, precision)[1]


def _plan(
    config: EngineConfig, source: ModelSource, precision: Precision
) -> tuple[ModelConfig, MemoryPlan]:
    model = ModelConfig.from_hf(source.config())
    kv_dtype = resolve_kv_dtype(config.cache, precision)
    if kv_dtype == torch.int8 and model.head_dim > MAX_INT8_HEAD_DIM:
        raise ConfigError(
            f"Heads of {model.head_dim} elements cannot be cached as int8; {MAX_INT8_HEAD_DIM} can.",
            param="kv_cache_dtype",
            hint="Leave out --kv-cache-dtype.",
        )
    plan = plan_memory(
        cache=config.cache,
        kv_bytes_per_token=model.kv_bytes_per_token(row_bytes(model.head_dim, kv_dtype)),
        weight_bytes=weight_bytes(source, model, precision),
        model_max_len=model.max_position_embeddings,
        max_model_len=config.model.max_model_len,
        available_bytes=available_memory(),
        auto_length=config.model.auto_length,
    )
    return model, plan


def _max_retain_seconds(cache: CacheConfig, num_blocks: int) -> float:
    retains = cache.enable_prefix_cache and cache.max_retained_blocks(num_blocks) > 0
    return cache.retain_seconds if retains else 0.0


def open_core(config: EngineConfig, cache_dir: Path) -> EngineCore:
    """Load a model that is on this machine; what the engine's process is given by name.

    Raises:
        ModelNotFound: it is not.
        ConfigError: it cannot work with this configuration.
    """
    return load_core(config, open_source(config, cache_dir))


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
    precision = resolve_precision(config.model, kernels)
    model_config, plan = _plan(config, source, precision)
    if precision.quantization is not None and kernels.name != "cpu":
        logger.warning(
            "kernels %r expand quantized weights at every use: they save memory and are slow.",
            kernels.name,
        )
    _hint_at_stored(source, model_config, precision, plan.weight_bytes)
    tokenizer = Tokenizer(source.tokenizer())
    model = load_decoder(
        source,
        model_config,
        precision=precision,
        device=device,
        kernels=kernels,
        max_positions=plan.max_model_len,
    )
    kv_dtype = resolve_kv_dtype(config.cache, precision)
    pool = PagedKVPool(
        num_layers=model_config.num_layers,
        num_blocks=plan.num_blocks,
        block_size=config.cache.block_size,
        num_kv_heads=model_config.num_kv_heads,
        head_dim=model_config.head_dim,
        dtype=kv_dtype,
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
        dtype=precision.dtype_name,
        quantization=precision.quantization,
        kv_cache_dtype=dtype_name(kv_dtype),
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


def _hint_at_stored(
    source: ModelSource, config: ModelConfig, precision: Precision, num_bytes: int
) -> None:
    """Tell whoever serves a quantized file that it need not be expanded."""
    if precision.quantization is not None or precision.dtype == torch.float16:
        return
    widths = [tensor.bits for tensor in source.stored().values() if tensor.bits is not None]
    if not widths:
        return
    name = f"int{statistics.mode(widths)}"
    smaller = weight_bytes(source, config, Precision(precision.dtype, name))
    logger.info(
        "The file's weights are quantized and are expanded to %.0f MB of %s; "
        "--quantization %s would compute on them as they are, in %.0f MB.",
        num_bytes / 1e6,
        precision.dtype_name,
        name,
        smaller / 1e6,
    )
