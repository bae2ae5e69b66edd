"""Quantized weights: what they stand for, how near they come, and ops on them in plain torch."""

from __future__ import annotations

import pytest
import torch

from ramet.kernels import ops
from ramet.kernels.quantization import QuantizedWeight, cat, dequantize, quantize, take


def random(
    rng: torch.Generator, shape: tuple[int, int], bits: int, minimums: bool
) -> QuantizedWeight:
    groups = (shape[0], -(-shape[1] // 32))
    return QuantizedWeight(
        torch.randint(2**bits, shape, generator=rng, dtype=torch.uint8),
        torch.rand(groups, generator=rng).half(),
        torch.randn(groups, generator=rng).half() if minimums else None,
        bits,
        torch.float32,
    )


def element(weight: QuantizedWeight, row: int, column: int) -> float:
    group = (row, column // 32)
    scale = float(weight.scales[group])
    implied = -(2 ** (weight.bits - 1)) * scale
    minimum = implied if weight.minimums is None else float(weight.minimums[group])
    return scale * int(weight.values[row, column]) + minimum


@pytest.mark.parametrize("minimums", [True, False])
@pytest.mark.parametrize("bits", [8, 4])
def test_a_weight_stands_for_scale_times_value_plus_minimum(
    rng: torch.Generator, bits: int, minimums: bool
) -> None:
    weight = random(rng, (3, 45), bits, minimums)
    expected = torch.tensor([[element(weight, r, c) for c in range(45)] for r in range(3)])
    assert torch.equal(dequantize(weight), expected)
    assert torch.equal(dequantize(weight, torch.bfloat16), expected.bfloat16())
    assert dequantize(weight.to(torch.float16)).dtype == torch.float16


@pytest.mark.parametrize("columns", [1, 31, 32, 33, 96, 100])
def test_8_bits_are_within_half_a_step(rng: torch.Generator, columns: int) -> None:
    weight = torch.randn(7, columns, generator=rng)
    quantized = quantize(weight, 8)
    assert quantized.minimums is None and quantized.shape == weight.shape
    steps = quantized.scales.float().repeat_interleave(32, 1)[:, :columns]
    # A float16 scale is off by up to 2^-11, which the 127th step feels most.
    assert bool(((dequantize(quantized) - weight).abs() <= steps * (0.5 + 127 / 2048)).all())


@pytest.mark.parametrize("columns", [1, 31, 32, 33, 96, 100])
def test_4_bits_are_nearer_than_rounding_between_the_extremes(
    rng: torch.Generator, columns: int
) -> None:
    weight = torch.randn(400, columns, generator=rng)
    quantized = quantize(weight, 4)
    assert quantized.minimums is not None
    error = (dequantize(quantized) - weight).square().mean()
    groups = torch.nn.functional.pad(weight, (0, -columns % 32), value=torch.nan).unfold(1, 32, 32)
    low = groups.nan_to_num(torch.inf).amin(-1, keepdim=True)
    high = groups.nan_to_num(-torch.inf).amax(-1, keepdim=True)
    step = ((high - low) / 15).clamp(min=1e-9)
    simple = ((groups - low) / step).round() * step + low
    assert error < 1.001 * (simple - groups).square().nanmean() + 1e-6


@pytest.mark.parametrize("bits", [8, 4])
def test_what_fits_exactly_stays_exact(rng: torch.Generator, bits: int) -> None:
    """Weights that are multiples of a power of two, with both extremes in every group."""
    low, high = (-127, 127) if bits == 8 else (0, 15)
    values = torch.randint(low, high + 1, (5, 64), generator=rng).float()
    values[:, ::32], values[:, 1::32] = low, high
    weight = values / 16 - (0 if bits == 8 else 0.375)
    assert torch.equal(dequantize(quantize(weight, bits)), weight)
    constant = torch.full((2, 40), 0.75)
    assert torch.equal(dequantize(quantize(constant, 4)), constant)
    assert torch.equal(dequantize(quantize(torch.zeros(2, 40), bits)), torch.zeros(2, 40))


def test_rows_are_quantized_alone(rng: torch.Generator) -> None:
    weight = torch.randn(300, 576, generator=rng).bfloat16()
    for bits in (8, 4):
        whole, alone = quantize(weight, bits), quantize(weight[211:212], bits)
        assert whole.dtype == torch.bfloat16
        assert torch.equal(dequantize(take(whole, torch.tensor([211]))), dequantize(alone))


@pytest.mark.parametrize("minimums", [(True, False), (False, False)])
@pytest.mark.parametrize("bits", [(8, 8), (4, 4), (4, 8)])
def test_cat_keeps_every_row_as_it_was(
    rng: torch.Generator, bits: tuple[int, int], minimums: tuple[bool, bool]
) -> None:
    parts = [random(rng, (3 + i, 40), bits[i], minimums[i]) for i in range(2)]
    both = cat(parts)
    assert both.bits == max(bits)
    assert torch.equal(dequantize(both), torch.cat([dequantize(part) for part in parts]))
    assert (both.minimums is None) == (not any(minimums) and bits[0] == bits[1])


def test_cat_refuses_what_does_not_go_together(rng: torch.Generator) -> None:
    weight = random(rng, (3, 40), 8, False)
    with pytest.raises(ValueError, match="no weights"):
        cat([])
    with pytest.raises(ValueError, match=r"\[3, 40\] torch.float32, \[2, 39\]"):
        cat([weight, random(rng, (2, 39), 8, False)])
    with pytest.raises(ValueError, match="different columns or dtypes"):
        cat([weight, weight.to(torch.bfloat16)])
    large = QuantizedWeight(
        torch.zeros(1, 4, dtype=torch.uint8), torch.full((1, 1), 600.0).half(), None, 8
    )
    with pytest.raises(ValueError, match="too large for its minimum"):
        cat([large, random(rng, (1, 4), 8, True).to(torch.bfloat16)])


def test_fields_that_do_not_fit_are_named() -> None:
    values, scales = torch.zeros(2, 40, dtype=torch.uint8), torch.zeros(2, 2).half()
    with pytest.raises(ValueError, match="bits must be 8 or 4, not 5"):
        QuantizedWeight(values, scales, None, 5)
    with pytest.raises(ValueError, match="values must be a matrix of uint8, not torch.int8"):
        QuantizedWeight(values.to(torch.int8), scales, None, 8)
    with pytest.raises(ValueError, match=r"scales must be float16 \[2, 2\]"):
        QuantizedWeight(values, scales[:, :1], None, 8)
    with pytest.raises(ValueError, match=r"minimums must be float16 \[2, 2\]"):
        QuantizedWeight(values, scales, scales.float(), 8)
    with pytest.raises(ValueError, match="go to 15, not to 16"):
        QuantizedWeight(values + 16, scales, None, 4)
    with pytest.raises(ValueError, match="dtype must be a float's"):
        QuantizedWeight(values, scales, None, 8, torch.int8)


def test_weights_that_cannot_be_quantized_raise() -> None:
    with pytest.raises(ValueError, match="bits must be 8 or 4, not 3"):
        quantize(torch.zeros(2, 2), 3)
    with pytest.raises(ValueError, match="matrix of floats, not torch.int64"):
        quantize(torch.zeros(2, 2, dtype=torch.int64), 8)
    for bits in (8, 4):
        for bad in (torch.nan, torch.inf, 1e9):
            with pytest.raises(ValueError, match="not finite, or too large"):
                quantize(torch.tensor([[0.0, bad]]), bits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bits", [8, 4])
def test_ops_in_torch_have_the_bits_of_the_expanded_weight(
    kernels: ops.Kernels, rng: torch.Generator, bits: int, dtype: torch.dtype
) -> None:
    weight = quantize(torch.randn(40, 72, generator=rng).to(dtype), bits)
    bias, x = (torch.randn(size, generator=rng).to(dtype) for size in ((40,), (5, 72)))
    packed = kernels.pack_linear(weight, bias.clone())
    dense = kernels.pack_linear(dequantize(weight), bias.clone())
    assert (packed.out_features, packed.in_features) == (40, 72)
    assert torch.equal(kernels.linear(x, packed), kernels.linear(x, dense))
    ids = torch.tensor([39, 0, 0, 7])
    assert torch.equal(kernels.embedding(ids, packed, 2.5), kernels.embedding(ids, dense, 2.5))
    gated, dense = kernels.pack_gated_linear(weight), kernels.pack_gated_linear(dequantize(weight))
    assert torch.equal(
        kernels.gated_linear(x, gated, "silu"), kernels.gated_linear(x, dense, "silu")
    )


def test_packing_a_quantized_weight_checks_its_bias_and_rows(
    kernels: ops.Kernels, rng: torch.Generator
) -> None:
    weight = quantize(torch.randn(5, 32, generator=rng), 8)
    with pytest.raises(ValueError, match="does not fit"):
        kernels.pack_linear(weight, torch.zeros(4))
    with pytest.raises(ValueError, match="even number of rows"):
        kernels.pack_gated_linear(weight)


@pytest.mark.parametrize("bits", [8, 4])
def test_a_matrix_without_columns_is_refused_and_one_without_rows_is_none(bits: int) -> None:
    with pytest.raises(ValueError, match="must have columns"):
        quantize(torch.empty(3, 0), bits)
    assert quantize(torch.empty(0, 5), bits).shape == (0, 5)
