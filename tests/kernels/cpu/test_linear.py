from __future__ import annotations

import pytest
import torch

from ramet.kernels.cpu.kernels import CpuKernels
from ramet.kernels.reference import ReferenceKernels

# Whole tiles and panels, and sizes that end inside of every unit: pair, vector, tile, group and panel.
SHAPES = [(32, 32), (96, 64), (1, 1), (17, 33), (100, 72), (63, 31), (160, 129)]
NUM_ROWS = [1, 2, 7, 16, 17, 31, 32, 33, 70]


def assert_near(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    """float32 sums in another order; one rounding to bfloat16, which may fall to the other side."""
    rtol, atol = 1e-5, 1e-5
    if dtype == torch.bfloat16:
        rtol, atol = 8e-3, 8e-3
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)


def weights(
    shape: tuple[int, int], dtype: torch.dtype, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    weight = torch.randn(shape, generator=generator) / shape[1] ** 0.5
    return weight.to(dtype), torch.randn(shape[0], generator=generator).to(dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_linear_is_the_product_plus_bias(
    kernels: CpuKernels,
    reference: ReferenceKernels,
    dtype: torch.dtype,
    generator: torch.Generator,
    shape: tuple[int, int],
) -> None:
    weight, bias = weights(shape, dtype, generator)
    for num_rows in NUM_ROWS:
        x = torch.randn(num_rows, shape[1], generator=generator).to(dtype)
        for b in (None, bias):
            out = kernels.linear(x, kernels.pack_linear(weight, b))
            expected = reference.linear(
                x.float(), reference.pack_linear(weight.float(), None if b is None else b.float())
            )
            assert out.dtype == dtype
            assert_near(out.float(), expected, dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_has_the_same_bits_in_every_batch(
    kernels: CpuKernels, dtype: torch.dtype, generator: torch.Generator, shape: tuple[int, int]
) -> None:
    packed = kernels.pack_linear(*weights(shape, dtype, generator))
    x = torch.randn(70, shape[1], generator=generator).to(dtype)
    whole = kernels.linear(x, packed)
    alone = torch.cat([kernels.linear(row, packed) for row in torch.split(x, 1)])
    assert torch.equal(alone, whole)
    for size in (2, 5, 16, 19, 33, 64):
        assert torch.equal(
            torch.cat([kernels.linear(r, packed) for r in torch.split(x, size)]), whole
        )


def test_many_row_blocks_have_the_bits_of_one_row(
    kernels: CpuKernels, dtype: torch.dtype, generator: torch.Generator
) -> None:
    """Wide enough that neither the rows nor a panel fit a cache: both are cut."""
    packed = kernels.pack_linear(*weights((40, 4096), dtype, generator))
    x = torch.randn(150, 4096, generator=generator).to(dtype)
    whole = kernels.linear(x, packed)
    for size in (2, 6, 7, 16, 31, 32, 33):
        assert torch.equal(kernels.linear(x[:size], packed), whole[:size])
    for row in (0, 95, 96, 97, 149):
        assert torch.equal(kernels.linear(x[row : row + 1], packed)[0], whole[row])


def test_rows_may_be_strided(
    kernels: CpuKernels, dtype: torch.dtype, generator: torch.Generator
) -> None:
    packed = kernels.pack_linear(*weights((48, 40), dtype, generator))
    wide = torch.randn(9, 120, generator=generator).to(dtype)
    view = wide[:, 40:80]
    assert torch.equal(kernels.linear(view, packed), kernels.linear(view.contiguous(), packed))
    columns = wide.t()[:40].t()
    assert torch.equal(kernels.linear(columns, packed), kernels.linear(columns.clone(), packed))


def test_no_rows_give_no_rows(kernels: CpuKernels, dtype: torch.dtype) -> None:
    packed = kernels.pack_linear(torch.ones(8, 4, dtype=dtype))
    assert kernels.linear(torch.ones(0, 4, dtype=dtype), packed).shape == (0, 8)


def test_a_fused_residual_has_the_bits_of_the_sum(
    kernels: CpuKernels, dtype: torch.dtype, generator: torch.Generator
) -> None:
    packed = kernels.pack_linear(*weights((50, 40), dtype, generator))
    x = torch.randn(21, 40, generator=generator).to(dtype)
    residual = torch.randn(21, 50, generator=generator).to(dtype)
    fused = kernels.add_linear(x, packed, residual)
    assert torch.equal(fused, kernels.linear(x, packed) + residual)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("n", [16, 20, 77])
def test_a_fused_activation_has_the_bits_of_the_two_ops(
    kernels: CpuKernels, dtype: torch.dtype, generator: torch.Generator, n: int, activation: str
) -> None:
    weight, bias = weights((2 * n, 40), dtype, generator)
    x = torch.randn(21, 40, generator=generator).to(dtype)
    fused = kernels.gated_linear(x, kernels.pack_gated_linear(weight, bias), activation)
    plain = kernels.linear(x, kernels.pack_linear(weight, bias))
    assert torch.equal(fused, kernels.gated_activation(plain, activation))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_embedding_gives_the_rows_as_they_were(
    kernels: CpuKernels, dtype: torch.dtype, generator: torch.Generator, shape: tuple[int, int]
) -> None:
    weight, _ = weights(shape, dtype, generator)
    token_ids = torch.randint(shape[0], (25,), generator=generator)
    assert torch.equal(kernels.embedding(token_ids, kernels.pack_linear(weight)), weight[token_ids])


def test_embedding_reads_gated_weights_too(
    kernels: CpuKernels, dtype: torch.dtype, generator: torch.Generator
) -> None:
    weight, _ = weights((44, 10), dtype, generator)
    packed = kernels.pack_gated_linear(weight)
    assert torch.equal(kernels.embedding(torch.arange(44), packed), weight)


@pytest.mark.parametrize("token_id", [-1, 8])
def test_embedding_of_an_unknown_token_raises(kernels: CpuKernels, token_id: int) -> None:
    packed = kernels.pack_linear(torch.ones(8, 4))
    with pytest.raises(IndexError, match=rf"token id {token_id} is outside of 0 \.\.\. 7"):
        kernels.embedding(torch.tensor([0, token_id]), packed)


def test_a_nan_stays_in_its_row(
    kernels: CpuKernels, dtype: torch.dtype, generator: torch.Generator
) -> None:
    packed = kernels.pack_linear(*weights((40, 64), dtype, generator))
    x = torch.randn(20, 64, generator=generator).to(dtype)
    clean = kernels.linear(x, packed)
    x[3, 5] = torch.nan
    out = kernels.linear(x, packed)
    assert bool(out[3].isnan().all())
    others = [row for row in range(20) if row != 3]
    assert torch.equal(out[others], clean[others])


def test_what_does_not_fit_raises(kernels: CpuKernels) -> None:
    packed = kernels.pack_linear(torch.ones(8, 4))
    with pytest.raises(ValueError, match="must be a matrix"):
        kernels.pack_linear(torch.ones(8))
    with pytest.raises(ValueError, match="does not fit a weight"):
        kernels.pack_linear(torch.ones(8, 4), torch.ones(4))
    with pytest.raises(ValueError, match="float32 and bfloat16"):
        kernels.pack_linear(torch.ones(8, 4, dtype=torch.float16))
    with pytest.raises(ValueError, match="even number of rows"):
        kernels.pack_gated_linear(torch.ones(7, 4))
    with pytest.raises(ValueError, match="does not fit a weight of 4 columns"):
        kernels.linear(torch.ones(2, 5), packed)
    with pytest.raises(ValueError, match="the weight is not"):
        kernels.linear(torch.ones(2, 4, dtype=torch.bfloat16), packed)
    with pytest.raises(ValueError, match="does not fit the result"):
        kernels.add_linear(torch.ones(2, 4), packed, torch.ones(2, 4))
    with pytest.raises(ValueError, match="not packed by pack_gated_linear"):
        kernels.gated_linear(torch.ones(2, 4), packed, "silu")
    with pytest.raises(ValueError, match="for gated_linear only"):
        kernels.linear(torch.ones(2, 4), kernels.pack_gated_linear(torch.ones(8, 4)))
