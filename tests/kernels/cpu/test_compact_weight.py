"""Weights of bfloat16 in less memory: exactly the values that they were packed from."""

from __future__ import annotations

import pytest
import torch

from ramet.kernels.cpu.kernels import CpuKernels
from ramet.kernels.cpu.weights import packed as native
from ramet.kernels.ops import PackedLinear

# A group of 32 x 32 that is compact has 12 bits an element, one that is not has 16.
COMPACT = 12 / 16


def bits(x: torch.Tensor) -> torch.Tensor:
    """To compare NaNs and signs of zero too."""
    return x.view(torch.int16)


def trained_like(shape: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
    return (torch.randn(shape, generator=generator) * 0.05).to(torch.bfloat16)


def any_bits(shape: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
    """Every bfloat16 is as likely, infinities, NaNs and denormals too."""
    values = torch.randint(-(2**15), 2**15, shape, generator=generator)
    return values.to(torch.int16).view(torch.bfloat16)


def of_few_magnitudes(shape: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
    """Seven pairs of exponents and two signs, so with a zero fewer upper bytes than a panel lists."""
    exponents = torch.randint(14, shape, generator=generator)
    signs = torch.randint(2, shape, generator=generator) * 2 - 1
    mantissas = 1 + torch.randint(128, shape, generator=generator) / 128
    values = signs * mantissas * 2.0 ** (exponents - 17.0)
    return values.to(torch.bfloat16)


def memory_of(weight: torch.Tensor, kernels: CpuKernels) -> float:
    """Packed, in units of two bytes an element."""
    return native(kernels.pack_linear(weight)).num_bytes / (2 * weight.numel())


def num_plain_groups(packed: PackedLinear) -> int:
    """Of a compact weight: what it takes beyond its header and groups that are all compact."""
    weight = native(packed)
    num_panels = -(-weight.out_features // 32)
    num_groups = -(-weight.in_features // 32)
    header = -(-(16 + -(-num_groups // 8)) // 64) * 64
    return (weight.num_bytes - num_panels * (header + num_groups * 1536)) // 512


@pytest.fixture
def compacts(kernels: CpuKernels) -> bool:
    """Whether this instruction set has compact weights."""
    return memory_of(torch.ones(256, 256, dtype=torch.bfloat16), kernels) < 1


@pytest.mark.parametrize("make", [trained_like, any_bits, of_few_magnitudes])
@pytest.mark.parametrize(
    "shape", [(64, 64), (96, 5000), (40, 72), (1, 1), (33, 31), (40, 12320)], ids=str
)
def test_every_value_comes_back_bit_for_bit(
    kernels: CpuKernels,
    generator: torch.Generator,
    shape: tuple[int, int],
    make: object,
) -> None:
    assert callable(make)
    weight = make(shape, generator)
    rows = kernels.embedding(torch.arange(shape[0]), kernels.pack_linear(weight))
    assert torch.equal(bits(rows), bits(weight))


def test_all_bit_patterns_come_back_from_a_gated_weight(
    kernels: CpuKernels,
) -> None:
    weight = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16).reshape(256, 256)
    rows = kernels.embedding(torch.arange(256), kernels.pack_gated_linear(weight))
    assert torch.equal(bits(rows), bits(weight))


def test_weights_of_few_magnitudes_take_three_quarters(
    kernels: CpuKernels, generator: torch.Generator, compacts: bool
) -> None:
    """Beside them a panel has one line of 64 bytes."""
    weight = of_few_magnitudes((320, 640), generator)
    header = 64 / (32 * 640 * 2)
    assert memory_of(weight, kernels) == (pytest.approx(COMPACT + header) if compacts else 1)


def test_trained_weights_take_hardly_more(
    kernels: CpuKernels, generator: torch.Generator, compacts: bool
) -> None:
    """One group in ten or twenty has an element near zero whose upper byte is not listed."""
    memory = memory_of(trained_like((512, 1024), generator), kernels)
    assert COMPACT < memory < 0.8 if compacts else memory == 1


def test_weights_of_all_magnitudes_take_no_more_than_before(
    kernels: CpuKernels, generator: torch.Generator
) -> None:
    """A header aside."""
    weight = any_bits((64, 4096), generator)
    assert memory_of(weight, kernels) <= 1 + 64 / (32 * 4096 * 2)


def with_some_plain_groups(weight: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Other values in the second half of each 32 rows, in about a third of the groups of any magnitude."""
    chosen = torch.rand(weight.shape[1] // 32 + 1, generator=generator) < 1 / 3
    where = chosen.repeat_interleave(32)[: weight.shape[1]]
    noise = any_bits((weight.shape[0], weight.shape[1]), generator).nan_to_num(1, 1, 1)
    mixed = torch.where(where, noise, weight)
    for first in range(0, weight.shape[0], 32):
        mixed[first : first + 16] = weight[first : first + 16]
    return mixed


@pytest.mark.parametrize("num_rows", [1, 2, 5, 8, 9, 16, 17, 32, 33, 70])
@pytest.mark.parametrize("columns", [200, 608, 1536, 12320])
def test_a_product_has_the_same_bits_in_either_form(
    kernels: CpuKernels, generator: torch.Generator, compacts: bool, columns: int, num_rows: int
) -> None:
    """That some groups of a panel are plain changes nothing in the outputs beside."""
    weight = of_few_magnitudes((64, columns), generator)
    compact = kernels.pack_linear(weight)
    mixed = kernels.pack_linear(with_some_plain_groups(weight, generator))
    if compacts:
        assert num_plain_groups(compact) == 0
        assert 0 < num_plain_groups(mixed) < 2 * -(-columns // 32)
    x = torch.randn(num_rows, columns, generator=generator).to(torch.bfloat16)
    out, expected = kernels.linear(x, mixed), kernels.linear(x, compact)
    for first in (0, 32):
        same = slice(first, first + 16)
        assert torch.equal(bits(out[:, same].contiguous()), bits(expected[:, same].contiguous()))


@pytest.mark.parametrize("num_rows", [1, 9, 40])
def test_a_gated_product_has_the_bits_of_the_two_ops_in_either_form(
    kernels: CpuKernels, generator: torch.Generator, num_rows: int
) -> None:
    weight = of_few_magnitudes((96, 640), generator)
    x = torch.randn(num_rows, 640, generator=generator).to(torch.bfloat16)
    for each in (weight, with_some_plain_groups(weight, generator).clamp(-1, 1)):
        plain = kernels.linear(x, kernels.pack_linear(each))
        fused = kernels.gated_linear(x, kernels.pack_gated_linear(each), "silu")
        assert torch.equal(bits(fused), bits(kernels.gated_activation(plain, "silu")))
