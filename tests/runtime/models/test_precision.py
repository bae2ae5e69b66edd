"""Weights of few bits: who gets how many, what they take, and that the model is the same model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from ramet.kernels import ops
from ramet.kernels.quantization import QuantizedWeight, cat, dequantize, quantize
from ramet.runtime.models import Decoder, ModelConfig, Precision, load_decoder, weight_bytes
from ramet.runtime.models.precision import with_bits
from ramet.runtime.sources.base import StoredTensor

CPU = torch.device("cpu")
PROMPT = list(range(3, 23))
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "tied, with biases": (
        "LlamaConfig",
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "qwen2": ("Qwen2Config", {}),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 16}),
    "phi3": ("Phi3Config", {}),
}


def stored(*bits: int | None) -> list[StoredTensor]:
    return [StoredTensor((8, 32), width) for width in bits]


@pytest.mark.parametrize(
    ("quantization", "is_table", "bits", "expected"),
    [
        (None, False, [4], None),
        ("int4", False, [None], 4),
        ("int4", False, [4], 4),
        ("int4", False, [8], 4),
        ("int8", False, [None], 8),
        ("int8", False, [4], 4),
        ("int8", False, [8], 8),
        # One finer part makes the product finer.
        ("int8", False, [4, 4, 8], 8),
        ("int8", False, [4, None], 8),
        ("int4", False, [4, 8, None], 4),
        # The embedding and the head keep 8 bits, unless the file has them in fewer.
        ("int4", True, [None], 8),
        ("int4", True, [8], 8),
        ("int4", True, [4], 4),
        ("int8", True, [4], 4),
        ("int8", True, [], 8),
    ],
)
def test_bits_are_those_of_the_rule(
    quantization: str | None, is_table: bool, bits: list[int | None], expected: int | None
) -> None:
    width = Precision(torch.bfloat16, quantization).width_of(stored(*bits), is_table=is_table)
    assert (None if width is None else width.bits) == expected


@pytest.mark.parametrize(
    ("quantization", "parts", "has_minimums"),
    [
        ("int4", [(4, False)], False),
        ("int4", [(4, True)], True),
        ("int4", [(4, False), (4, True)], True),
        # What is quantized here gets minimums in 4 bits, and none in 8.
        ("int4", [(8, False)], True),
        ("int4", [(None, False)], True),
        ("int4", [(4, False), (None, False)], True),
        ("int8", [(None, False)], False),
        ("int8", [(8, False), (None, False)], False),
        ("int8", [(8, True)], True),
        ("int8", [(4, False)], False),
        # A part of fewer bits than the whole has its minimums written down.
        ("int8", [(4, False), (8, False)], True),
    ],
)
def test_minimums_are_counted_where_they_are_held(
    quantization: str, parts: list[tuple[int | None, bool]], has_minimums: bool
) -> None:
    found = [StoredTensor((8, 32), bits, has) for bits, has in parts]
    width = Precision(torch.bfloat16, quantization).width_of(found, is_table=False)
    assert width is not None and width.has_minimums == has_minimums
    weights = [_held(bits, has) for bits, has in parts]
    whole = cat([with_bits(weight, width.bits) for weight in weights])
    assert (whole.bits, whole.minimums is not None) == (width.bits, has_minimums)


def _held(bits: int | None, has_minimums: bool) -> torch.Tensor | QuantizedWeight:
    weight = torch.randn(8, 32)
    if bits is None:
        return weight.bfloat16()
    made = quantize(weight, bits)
    minimums = torch.zeros_like(made.scales) if has_minimums else None
    return dataclasses.replace(made, minimums=minimums, dtype=torch.bfloat16)


def test_a_weight_of_few_enough_bits_stays_as_it_is() -> None:
    weight = torch.randn(4, 64)
    eight, four = quantize(weight, 8), quantize(weight, 4)
    assert (
        with_bits(eight, 8) is eight and with_bits(four, 4) is four and with_bits(four, 8) is four
    )
    assert with_bits(weight, 4).bits == with_bits(eight, 4).bits == 4
    assert with_bits(weight, 8).bits == 8


class StoredSource:
    """A source of some tensors that are stored in few bits."""

    def __init__(
        self,
        config: dict[str, Any],
        tensors: dict[str, torch.Tensor],
        bits: Callable[[str], int | None],
    ) -> None:
        self._config = config
        self._tensors: dict[str, torch.Tensor | QuantizedWeight] = {}
        for name, tensor in tensors.items():
            width = bits(name) if tensor.dim() == 2 else None
            self._tensors[name] = tensor if width is None else quantize(tensor, width)

    def stored(self) -> dict[str, StoredTensor]:
        return {
            name: StoredTensor(tuple(tensor.shape), tensor.bits, tensor.minimums is not None)
            if isinstance(tensor, QuantizedWeight)
            else StoredTensor(tuple(tensor.shape))
            for name, tensor in self._tensors.items()
        }

    def tensors(
        self, *, quantized: bool = False
    ) -> Iterator[tuple[str, torch.Tensor | QuantizedWeight]]:
        for name, tensor in self._tensors.items():
            if isinstance(tensor, QuantizedWeight) and not quantized:
                yield name, dequantize(tensor, torch.float32)
            else:
                yield name, tensor


def load(source: Any, model: Any, quantization: str | None, kernels: str = "reference") -> Decoder:
    return load_decoder(
        source,
        ModelConfig.from_hf(model.hf_config),
        precision=Precision(torch.float32, quantization),
        device=CPU,
        kernels=ops.load(kernels, CPU),
    )


def logits(decoder: Decoder, model: Any) -> torch.Tensor:
    (result,) = type(model.run())(decoder, num_seqs=1).step({0: PROMPT})
    return torch.as_tensor(result)


def rounded(model: Any, bits: int) -> dict[str, torch.Tensor]:
    """The model's tensors as its quantized weights have them."""
    return {
        name: dequantize(
            quantize(tensor, 8 if "embed" in name or "lm_head" in name else bits), torch.float32
        )
        if tensor.dim() == 2
        else tensor
        for name, tensor in model.tensors().items()
    }


@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_quantized_model_is_the_model_of_its_rounded_weights(
    tiny_model: Callable[..., Any],
    memory_source: Callable[..., Any],
    family: str,
    quantization: str,
) -> None:
    name, options = FAMILIES[family]
    model = tiny_model(name, **options)
    bits = int(quantization.removeprefix("int"))
    quantized = load(memory_source(model.hf_config, model.tensors()), model, quantization)
    plain = load(memory_source(model.hf_config, rounded(model, bits)), model, None)
    torch.testing.assert_close(logits(quantized, model), logits(plain, model), atol=2e-5, rtol=2e-5)


@pytest.mark.skipif(not ops.is_built(), reason="the native kernels were not built")
@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_native_kernels_differ_by_the_rounding_of_activations(
    tiny_model: Callable[..., Any],
    memory_source: Callable[..., Any],
    family: str,
    quantization: str,
) -> None:
    name, options = FAMILIES[family]
    model = tiny_model(name, **options)
    source = memory_source(model.hf_config, model.tensors())
    native = logits(load(source, model, quantization, "cpu"), model)
    exact = logits(load(source, model, quantization), model)
    assert 0 < (native - exact).norm() < 0.05 * exact.norm()


def test_what_a_file_stores_in_few_bits_is_not_rounded_again(
    tiny_model: Callable[..., Any],
) -> None:
    """Queries and keys in 4 bits, values in 8, the rest in 4: as they are, under int8."""
    model = tiny_model("LlamaConfig")
    source = StoredSource(
        model.hf_config, model.tensors(), lambda name: 8 if "v_proj" in name else 4
    )
    torch.testing.assert_close(
        logits(load(source, model, "int8"), model),
        logits(load(source, model, None), model),
        atol=2e-5,
        rtol=2e-5,
    )


def test_eight_stored_bits_become_four_where_four_are_asked_for(
    tiny_model: Callable[..., Any],
) -> None:
    model = tiny_model("LlamaConfig")
    config = ModelConfig.from_hf(model.hf_config)
    source: Any = StoredSource(model.hf_config, model.tensors(), lambda name: 8)
    kept, fewer = (
        weight_bytes(source, config, Precision(torch.float32, name)) for name in ("int8", "int4")
    )
    assert fewer < kept
    exact = logits(load(source, model, None), model)
    assert not torch.allclose(logits(load(source, model, "int4"), model), exact, atol=1e-3)


def test_weight_bytes_count_what_is_held(
    tiny_model: Callable[..., Any], memory_source: Callable[..., Any]
) -> None:
    model = tiny_model("LlamaConfig", attention_bias=True, tie_word_embeddings=True)
    source = memory_source(model.hf_config, model.tensors())
    config = ModelConfig.from_hf(model.hf_config)
    norms = 7 * 48 * 4
    # Columns of 48 are two groups, the second one short; each of 32 values and a float16 scale.
    tables = 97 * 2 * (32 + 2)
    rows_of_two_groups, rows_of_three_groups, biases = 80 + 48 + 160, 48, 80 + 48
    groups = 3 * (2 * rows_of_two_groups + 3 * rows_of_three_groups)
    expected = {
        None: norms + 2 * (97 * 48 + 3 * (48 * rows_of_two_groups + 80 * 48 + biases)),
        "int8": norms + tables + groups * (32 + 2) + 2 * 3 * biases,
        "int4": norms + tables + groups * (16 + 4) + 2 * 3 * biases,
    }
    for quantization, num_bytes in expected.items():
        precision = Precision(torch.bfloat16, quantization)
        assert weight_bytes(source, config, precision) == num_bytes, quantization
