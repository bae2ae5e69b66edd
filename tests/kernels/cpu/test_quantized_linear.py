"""Products of quantized weights in native code: against their formula, and the same bits in every batch."""

from __future__ import annotations

import pytest
import torch

from ramet.kernels.cpu.kernels import CpuKernels
from ramet.kernels.quantization import QuantizedWeight, dequantize, quantize
from ramet.kernels.reference import ReferenceKernels

# Whole groups and panels, and sizes that end inside of every unit: quad, pair of quads, group, panel.
SHAPES = [(32, 32), (96, 64), (1, 1), (17, 33), (100, 72), (63, 31), (160, 129), (40, 36)]
NUM_ROWS = [1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 70]
KINDS = [(8, False), (8, True), (4, False), (4, True)]


@pytest.fixture(params=KINDS, ids=lambda kind: f"{kind[0]}bits{'+min' if kind[1] else ''}")
def kind(request: pytest.FixtureRequest) -> tuple[int, bool]:
    bits, minimums = request.param
    return int(bits), bool(minimums)


def random(
    shape: tuple[int, int], kind: tuple[int, bool], dtype: torch.dtype, generator: torch.Generator
) -> QuantizedWeight:
    """Every value and scale that a file may hold, not only what `quantize` makes."""
    bits, minimums = kind
    groups = (shape[0], -(-shape[1] // 32))
    size = 2**bits * shape[1] ** 0.5
    return QuantizedWeight(
        torch.randint(2**bits, shape, generator=generator, dtype=torch.uint8),
        (torch.randn(groups, generator=generator) / size).half(),
        (torch.randn(groups, generator=generator) / size).half() if minimums else None,
        bits,
        dtype,
    )


def rounded(x: torch.Tensor) -> torch.Tensor:
    """x with each group of 32 columns of a row as integers from -127 to 127 and a scale."""
    wide = torch.nn.functional.pad(x.float(), (0, -x.shape[1] % 32)).view(x.shape[0], -1, 32)
    top = wide.abs().amax(-1, keepdim=True)
    # Of a number and a tensor, torch multiplies by the reciprocal: not the same nearest integers.
    integers = (wide * (torch.full_like(top, 127) / top).nan_to_num(posinf=0)).round()
    return (integers.double() * (top / 127).double()).flatten(1)[:, : x.shape[1]]


def assert_near(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    """float32 steps, and one rounding to bfloat16, which may fall to the other side."""
    tolerance = 8e-3 if dtype == torch.bfloat16 else 2e-5
    torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_linear_is_the_product_of_rounded_rows_plus_bias(
    kernels: CpuKernels,
    dtype: torch.dtype,
    generator: torch.Generator,
    kind: tuple[int, bool],
    shape: tuple[int, int],
) -> None:
    weight = random(shape, kind, dtype, generator)
    bias = torch.randn(shape[0], generator=generator).to(dtype)
    matrix = dequantize(weight, torch.float64)
    plain, biased = kernels.pack_linear(weight), kernels.pack_linear(weight, bias)
    assert (plain.out_features, plain.in_features) == shape
    for num_rows in NUM_ROWS:
        x = torch.randn(num_rows, shape[1], generator=generator).to(dtype)
        expected = rounded(x) @ matrix.T
        out = kernels.linear(x, plain)
        assert out.dtype == dtype
        assert_near(out, expected, dtype)
        assert_near(kernels.linear(x, biased), expected + bias.double(), dtype)
        logits = kernels.logits(x, plain)
        assert logits.dtype == torch.float32
        assert_near(logits, expected, torch.float32)


@pytest.mark.parametrize("bits", [8, 4])
def test_products_are_near_those_of_the_weight_before(
    kernels: CpuKernels,
    reference: ReferenceKernels,
    dtype: torch.dtype,
    generator: torch.Generator,
    bits: int,
) -> None:
    weight = (torch.randn(64, 576, generator=generator) / 24).to(dtype)
    x = torch.randn(9, 576, generator=generator).to(dtype)
    expected = reference.linear(x, reference.pack_linear(weight)).float()
    out = kernels.linear(x, kernels.pack_linear(quantize(weight, bits))).float()
    error = (out - expected).square().mean().sqrt() / expected.square().mean().sqrt()
    assert error < (0.02 if bits == 8 else 0.12)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_has_the_same_bits_in_every_batch(
    kernels: CpuKernels,
    dtype: torch.dtype,
    generator: torch.Generator,
    kind: tuple[int, bool],
    shape: tuple[int, int],
) -> None:
    packed = kernels.pack_linear(random(shape, kind, dtype, generator))
    x = torch.randn(70, shape[1], generator=generator).to(dtype)
    whole = kernels.linear(x, packed)
    alone = torch.cat([kernels.linear(row, packed) for row in torch.split(x, 1)])
    assert torch.equal(alone, whole)
    for size in (2, 3, 5, 8, 13, 16, 19, 33, 64):
        parts = [kernels.linear(rows, packed) for rows in torch.split(x, size)]
        assert torch.equal(torch.cat(parts), whole)


def test_many_row_blocks_have_the_bits_of_one_row(
    kernels: CpuKernels, generator: torch.Generator, kind: tuple[int, bool]
) -> None:
    """Wide enough that the rows no longer fit one block of the cache."""
    packed = kernels.pack_linear(random((40, 4096), kind, torch.bfloat16, generator))
    x = torch.randn(150, 4096, generator=generator).to(torch.bfloat16)
    whole = kernels.linear(x, packed)
    for row in (0, 31, 32, 95, 96, 149):
        assert torch.equal(kernels.linear(x[row : row + 1], packed)[0], whole[row])


def test_the_number_of_threads_changes_no_bit(
    kernels: CpuKernels, generator: torch.Generator, kind: tuple[int, bool]
) -> None:
    weight = random((300, 96), kind, torch.bfloat16, generator)
    x = torch.randn(40, 96, generator=generator).to(torch.bfloat16)
    alone = CpuKernels(isa=kernels.isa, num_threads=1)
    expected = alone.linear(x, alone.pack_linear(weight))
    assert torch.equal(kernels.linear(x, kernels.pack_linear(weight)), expected)


def test_a_fused_residual_has_the_bits_of_the_sum(
    kernels: CpuKernels, dtype: torch.dtype, generator: torch.Generator, kind: tuple[int, bool]
) -> None:
    packed = kernels.pack_linear(random((50, 40), kind, dtype, generator))
    x = torch.randn(21, 40, generator=generator).to(dtype)
    residual = torch.randn(21, 50, generator=generator).to(dtype)
    fused = kernels.add_linear(x, packed, residual)
    assert torch.equal(fused, kernels.linear(x, packed) + residual)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("n", [16, 20, 77])
def test_a_fused_activation_has_the_bits_of_the_two_ops(
    kernels: CpuKernels,
    dtype: torch.dtype,
    generator: torch.Generator,
    kind: tuple[int, bool],
    n: int,
    activation: str,
) -> None:
    weight = random((2 * n, 40), kind, dtype, generator)
    bias = torch.randn(2 * n, generator=generator).to(dtype)
    x = torch.randn(21, 40, generator=generator).to(dtype)
    fused = kernels.gated_linear(x, kernels.pack_gated_linear(weight, bias), activation)
    plain = kernels.linear(x, kernels.pack_linear(weight, bias))
    assert torch.equal(fused, kernels.gated_activation(plain, activation))


def test_logits_are_bounded_by_a_softcap(
    kernels: CpuKernels, generator: torch.Generator, kind: tuple[int, bool]
) -> None:
    packed = kernels.pack_linear(random((70, 64), kind, torch.bfloat16, generator))
    x = torch.randn(5, 64, generator=generator).to(torch.bfloat16) * 30
    plain = kernels.logits(x, packed)
    torch.testing.assert_close(kernels.logits(x, packed, 3.0), 3 * torch.tanh(plain / 3))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_embedding_gives_the_rows_that_the_weight_stands_for(
    kernels: CpuKernels,
    dtype: torch.dtype,
    generator: torch.Generator,
    kind: tuple[int, bool],
    shape: tuple[int, int],
) -> None:
    weight = random(shape, kind, dtype, generator)
    token_ids = torch.randint(shape[0], (25,), generator=generator)
    packed = kernels.pack_linear(weight)
    assert torch.equal(kernels.embedding(token_ids, packed), dequantize(weight)[token_ids])
    scaled = (dequantize(weight)[token_ids].float() * 6.5).to(dtype)
    assert torch.equal(kernels.embedding(token_ids, packed, 6.5), scaled)


def test_embedding_reads_gated_weights_too(
    kernels: CpuKernels, generator: torch.Generator, kind: tuple[int, bool]
) -> None:
    weight = random((44, 40), kind, torch.float32, generator)
    packed = kernels.pack_gated_linear(weight)
    assert torch.equal(kernels.embedding(torch.arange(44), packed), dequantize(weight))


def test_all_scales_of_float16_are_read_as_they_are(kernels: CpuKernels) -> None:
    """Subnormal ones too, although arithmetic counts small floats as zero."""
    scales = torch.arange(0x7C00, dtype=torch.int16).view(torch.float16).view(-1, 1)
    values = torch.full((scales.shape[0], 1), 15, dtype=torch.uint8)
    weight = QuantizedWeight(values, scales, -scales, 4, torch.float32)
    packed = kernels.pack_linear(weight)
    expected = dequantize(weight)
    assert torch.equal(kernels.embedding(torch.arange(len(values)), packed), expected)
    product = kernels.linear(torch.ones(1, 1), packed)[0]
    torch.testing.assert_close(product, expected[:, 0], rtol=1e-6, atol=0)


def test_rows_may_be_strided(
    kernels: CpuKernels, dtype: torch.dtype, generator: torch.Generator, kind: tuple[int, bool]
) -> None:
    packed = kernels.pack_linear(random((48, 40), kind, dtype, generator))
    view = torch.randn(9, 120, generator=generator).to(dtype)[:, 40:80]
    assert torch.equal(kernels.linear(view, packed), kernels.linear(view.contiguous(), packed))


def test_no_rows_give_no_rows(kernels: CpuKernels, kind: tuple[int, bool]) -> None:
    weight = random((8, 4), kind, torch.float32, torch.Generator().manual_seed(1))
    assert kernels.linear(torch.ones(0, 4), kernels.pack_linear(weight)).shape == (0, 8)


def test_zeros_and_the_smallest_floats_give_zeros(
    kernels: CpuKernels, generator: torch.Generator, kind: tuple[int, bool]
) -> None:
    packed = kernels.pack_linear(random((40, 64), kind, torch.float32, generator))
    for value in (0.0, 1e-45, 1e-39, 1e-31):
        assert not kernels.linear(torch.full((3, 64), value), packed).any()


def test_a_nan_or_an_infinity_stays_in_its_row(
    kernels: CpuKernels, dtype: torch.dtype, generator: torch.Generator, kind: tuple[int, bool]
) -> None:
    packed = kernels.pack_linear(random((40, 64), kind, dtype, generator))
    x = torch.randn(20, 64, generator=generator).to(dtype)
    clean = kernels.linear(x, packed)
    x[3, 5], x[11, 40] = torch.nan, torch.inf
    out = kernels.linear(x, packed)
    assert bool(out[3].isnan().all())
    assert not bool(out[11].isfinite().any())
    others = [row for row in range(20) if row not in (3, 11)]
    assert torch.equal(out[others], clean[others])


def test_what_does_not_fit_raises(kernels: CpuKernels) -> None:
    weight = quantize(torch.ones(8, 4), 8)
    packed = kernels.pack_linear(weight)
    with pytest.raises(ValueError, match="does not fit a weight"):
        kernels.pack_linear(weight, torch.ones(4))
    with pytest.raises(ValueError, match="float32 and bfloat16, not torch.float16"):
        kernels.pack_linear(weight.to(torch.float16))
    with pytest.raises(ValueError, match="even number of rows"):
        kernels.pack_gated_linear(quantize(torch.ones(7, 4), 4))
    with pytest.raises(ValueError, match="does not fit a weight of 4 columns"):
        kernels.linear(torch.ones(2, 5), packed)
    with pytest.raises(ValueError, match="the weight is not"):
        kernels.linear(torch.ones(2, 4, dtype=torch.bfloat16), packed)
    with pytest.raises(IndexError, match=r"token id 8 is outside of 0 \.\.\. 7"):
        kernels.embedding(torch.tensor([8]), packed)


def test_memory_is_that_of_the_bits(kernels: CpuKernels, kind: tuple[int, bool]) -> None:
    """A group of 32 is its values, its scale and its minimum; the kernels pad to 32 rows and columns."""
    bits, minimums = kind
    weight = random((64, 576), kind, torch.bfloat16, torch.Generator().manual_seed(1))
    packed = kernels.pack_linear(weight)
    assert packed.num_bytes == 64 * 576 * bits // 8 + 64 * 18 * (4 if minimums else 2)
