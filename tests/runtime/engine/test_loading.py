"""From a configuration to a loaded core: what it says on the way."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from ramet.kernels.quantization import QuantizedWeight, dequantize, quantize
from ramet.runtime.config import CacheConfig, EngineConfig, ModelOptions
from ramet.runtime.engine.loading import load_core, plan_engine
from ramet.runtime.errors import ConfigError
from ramet.runtime.sources.base import StoredTensor


class QuantizedSource:
    """The tiny model in a file of 4-bit products and an 8-bit embedding."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self.name, self.config = source.name, source.config
        self.eos_token_ids, self.tokenizer = source.eos_token_ids, source.tokenizer

    def stored(self) -> dict[str, StoredTensor]:
        return {
            name: StoredTensor(tuple(tensor.shape), self._bits(name, tensor))
            for name, tensor in self._source.tensors()
        }

    def tensors(
        self, *, quantized: bool = False
    ) -> Iterator[tuple[str, torch.Tensor | QuantizedWeight]]:
        for name, tensor in self._source.tensors():
            bits = self._bits(name, tensor)
            if bits is None:
                yield name, tensor
            else:
                weight = quantize(tensor, bits)
                yield name, weight if quantized else dequantize(weight, torch.float32)

    def _bits(self, name: str, tensor: torch.Tensor) -> int | None:
        if tensor.dim() != 2:
            return None
        return 8 if "embed" in name else 4


def config(quantization: str | None = None, **cache: Any) -> EngineConfig:
    return EngineConfig(
        model=ModelOptions(
            model="tiny", quantization=quantization, kernels="reference", num_threads=1
        ),
        cache=CacheConfig(kv_cache_memory=1 << 20, **cache),
    )


def test_a_quantized_file_served_expanded_is_told_with_the_remedy(
    tiny_source: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    load_core(config(None), QuantizedSource(tiny_source))
    assert "--quantization int4 would compute on them as they are" in caplog.text


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_nothing_is_told_where_it_is_not_expanded(
    tiny_source: Any, caplog: pytest.LogCaptureFixture, quantization: str
) -> None:
    caplog.set_level(logging.INFO)
    core = load_core(config(quantization), QuantizedSource(tiny_source))
    load_core(config(None), tiny_source)
    assert core.info.quantization == quantization
    assert "--quantization" not in caplog.text


@pytest.mark.parametrize(
    ("kv_cache_dtype", "shown", "row_bytes"),
    [
        ("auto", "float32", 32),
        ("float32", "float32", 32),
        ("bfloat16", "bfloat16", 16),
        ("int8", "int8", 12),
    ],
)
def test_a_smaller_kv_cache_dtype_makes_more_blocks_of_the_same_memory(
    tiny_source: Any, kv_cache_dtype: str, shown: str, row_bytes: int
) -> None:
    asked = config(kv_cache_dtype=kv_cache_dtype)
    core = load_core(asked, tiny_source)
    # Keys and values of two layers of two heads of eight dims, in blocks of 16.
    assert core.info.num_blocks == (1 << 20) // (16 * 2 * 2 * 2 * row_bytes)
    assert (core.info.dtype, core.info.kv_cache_dtype) == ("float32", shown)
    assert (1 << 20) - 16 * 8 * row_bytes < core.info.kv_cache_bytes <= 1 << 20
    _, plan = plan_engine(asked, tiny_source)
    assert plan.kv_bytes_per_token == 8 * row_bytes


def test_heads_too_long_for_int8_are_refused_before_anything_is_loaded(tiny_source: Any) -> None:
    long_heads = replace(tiny_source, settings={**tiny_source.config(), "head_dim": 1056})
    for plan in (plan_engine, load_core):
        with pytest.raises(ConfigError, match="1056 elements cannot be cached as int8") as caught:
            plan(config(kv_cache_dtype="int8"), long_heads)
        assert caught.value.param == "kv_cache_dtype"
