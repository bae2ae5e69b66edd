"""Weights of bfloat16 in less memory: exactly the values that they were packed from."""

from __future__ import annotations

import pytest
import torch

from ramet.kernels.cpu.kernels import CpuKernels
from ramet.kernels.cpu.weights import packed as native

# A group that is compact has 12 bits an element, one that is not has 16.
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
    """Eight pairs of exponents and two signs: as many upper bytes as a panel lists."""
    exponents = torch.randint(16, shape, generator=generator)
    signs = torch.randint(2, shape, generator=generator) * 2 - 1
    mantissas = 1 + torch.randint(128, shape, generator=generator) / 128
    values = signs * mantissas * 2.0 ** (exponents - 15.0)
    return values.to(torch.bfloat16)


def memory_of(weight: torch.Tensor, kernels: CpuKernels) -> float:
    """Packed, in units of two bytes an element."""
    return native(kernels.pack_linear(weight)).num_bytes / (2 * weight.numel())


@pytest.fixture
def compacts(kernels: CpuKernels) -> bool:
    """Whether this instruction set has compact weights."""
    return memory_of(torch.ones(256, 256, dtype=torch.bfloat16), kernels) < 1


@pytest.mark.parametrize("make", [trained_like, any_bits, of_few_magnitudes])
@pytest.mark.parametrize("shape", [(64, 64), (96, 5000), (40, 72), (1, 1), (33, 31)], ids=str)
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
    """A group in ten has an element near zero whose upper byte is not listed."""
    memory = memory_of(trained_like((512, 1024), generator), kernels)
    assert COMPACT < memory < 0.8 if compacts else memory == 1


def test_weights_of_all_magnitudes_take_no_more_than_before(
    kernels: CpuKernels, generator: torch.Generator
) -> None:
    """A header aside."""
    weight = any_bits((64, 4096), generator)
    assert memory_of(weight, kernels) <= 1 + 64 * 9 / (32 * 4096 * 2)


@pytest.mark.parametrize("columns", [40, 64, 200, 608, 1536])
def test_a_product_has_the_same_bits_in_either_form(
    kernels: CpuKernels, generator: torch.Generator, columns: int
) -> None:
    """Some groups of a panel, all or none are plain: that changes nothing in the outputs beside."""
    weight = of_few_magnitudes((32, columns), generator) / columns**0.5
    x = torch.randn(70, columns, generator=generator).to(torch.bfloat16)
    for share in (0.02, 0.3, 1.0):
        mixed = weight.clone()
        noise = any_bits((16, columns), generator).nan_to_num(1, 1, 1)
        chosen = torch.rand(columns // 8 + 1, generator=generator) < share
        where = chosen.repeat_interleave(8)[:columns]
        mixed[16:] = torch.where(where, noise, weight[16:])
        for num_rows in (1, 2, 5, 8, 9, 16, 17, 32, 33, 70):
            expected = kernels.linear(x[:num_rows], kernels.pack_linear(weight))
            out = kernels.linear(x[:num_rows], kernels.pack_linear(mixed))
            assert torch.equal(bits(out[:, :16].contiguous()), bits(expected[:, :16].contiguous()))
