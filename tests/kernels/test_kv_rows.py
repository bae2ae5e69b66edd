"""What a row of a cache holds, and how near it is to what was stored."""

from __future__ import annotations

import pytest
import torch

from ramet.kernels.kv_rows import from_rows, row_bytes, row_size, to_rows


def test_a_row_of_8_bits_has_a_value_for_each_dim_and_one_scale() -> None:
    assert [row_size(64, dtype) for dtype in (torch.float32, torch.int8)] == [64, 68]
    assert row_bytes(64, torch.float32) == 256
    assert row_bytes(64, torch.bfloat16) == row_bytes(64, torch.float16) == 128
    assert row_bytes(64, torch.int8) == 68


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_of_floats_are_the_heads_rounded(rng: torch.Generator, dtype: torch.dtype) -> None:
    heads = torch.randn(5, 2, 24, generator=rng)
    rows = to_rows(heads, dtype)
    assert torch.equal(rows, heads.to(dtype))
    assert torch.equal(from_rows(rows), rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4])
def test_8_bits_are_off_by_half_a_step_at_most(
    rng: torch.Generator, dtype: torch.dtype, size: float
) -> None:
    heads = (torch.randn(50, 3, 40, generator=rng) * size).to(dtype)
    rows = to_rows(heads, torch.int8)
    assert rows.dtype == torch.int8 and rows.shape == (50, 3, 44)
    read = from_rows(rows)
    assert read.dtype == torch.float32 and read.shape == heads.shape
    top = heads.float().abs().amax(-1, keepdim=True)
    assert bool(((read - heads.float()).abs() <= top / 127 * 0.50001).all())
    # The largest magnitude itself is kept to a rounding.
    torch.testing.assert_close(read.abs().amax(-1, keepdim=True), top, rtol=1e-6, atol=0.0)
    assert bool((rows[..., :40].abs().amax(-1) == 127).all())


def test_a_row_depends_on_its_own_head_alone(rng: torch.Generator) -> None:
    heads = torch.randn(9, 2, 16, generator=rng)
    rows = to_rows(heads, torch.int8)
    for token in range(9):
        assert torch.equal(to_rows(heads[token, 1], torch.int8), rows[token, 1])


def test_storing_what_was_read_changes_nothing(rng: torch.Generator) -> None:
    rows = to_rows(torch.randn(9, 2, 16, generator=rng), torch.int8)
    assert torch.equal(to_rows(from_rows(rows), torch.int8)[..., :16], rows[..., :16])


def test_heads_of_nothing_read_as_zeros() -> None:
    heads = torch.stack((torch.zeros(8), torch.full((8,), -1e-38)))
    assert from_rows(to_rows(heads, torch.int8)).tolist() == [[0.0] * 8] * 2
    assert from_rows(torch.zeros(3, 12, dtype=torch.int8)).tolist() == [[0.0] * 8] * 3


@pytest.mark.parametrize("stray", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_is_not_hidden(stray: float) -> None:
    heads = torch.ones(2, 8)
    heads[1, 3] = stray
    read = from_rows(to_rows(heads, torch.int8))
    assert read[0].tolist() == [1.0] * 8
    assert not read[1].isfinite().any()
