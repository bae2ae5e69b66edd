"""From a configuration to a loaded core: what it says on the way."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from ramet.kernels.quantization import QuantizedWeight, dequantize, quantize
from ramet.runtime.config import CacheConfig, EngineConfig, ModelOptions
from ramet.runtime.engine.loading import load_core
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


def config(quantization: str | None) -> EngineConfig:
    return EngineConfig(
        model=ModelOptions(
            model="tiny", quantization=quantization, kernels="reference", num_threads=1
        ),
        cache=CacheConfig(kv_cache_memory=1 << 20),
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
