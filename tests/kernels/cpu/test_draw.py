from __future__ import annotations

import pytest
import torch

from ramet.kernels.cpu.kernels import CpuKernels

# Less than a vector, ends inside of a vector and of a block of sums, and many blocks.
VOCABULARIES = [1, 5, 512, 1000, 49_157]


def rows(num_rows: int, vocab_size: int, generator: torch.Generator) -> torch.Tensor:
    return 3.0 * torch.randn(num_rows, vocab_size, generator=generator)


def draw(
    kernels: CpuKernels,
    logits: torch.Tensor,
    uniform: torch.Tensor,
    temperature: float = 0.8,
    min_p: float = 0.0,
) -> torch.Tensor:
    n = logits.shape[0]
    return kernels.draw(logits, torch.full((n,), temperature), torch.full((n,), min_p), uniform)


@pytest.mark.parametrize("vocab_size", VOCABULARIES)
@pytest.mark.parametrize("min_p", [0.0, 0.05])
def test_the_token_is_where_the_cumulative_weight_passes_the_number(
    kernels: CpuKernels, generator: torch.Generator, vocab_size: int, min_p: float
) -> None:
    logits = rows(24, vocab_size, generator)
    uniform = torch.rand(24, dtype=torch.float64, generator=generator)
    ids = draw(kernels, logits, uniform, 0.8, min_p)
    weights = torch.softmax(logits.double() / 0.8, dim=-1)
    floor = weights.amax(dim=-1, keepdim=True) * min_p
    # What lies at the floor may fall to either side of it.
    assert bool((weights.gather(1, ids[:, None]) >= floor * (1 - 1e-5)).all())
    weights = torch.where(weights >= floor, weights, 0.0)
    upper = weights.cumsum(dim=-1).gather(1, ids[:, None]).squeeze(1)
    lower = upper - weights.gather(1, ids[:, None]).squeeze(1)
    target = uniform * weights.sum(dim=-1)
    assert bool((lower <= target + 1e-5).all())
    assert bool((upper >= target - 1e-5).all())


def test_a_row_draws_the_same_token_in_every_batch(
    kernels: CpuKernels, generator: torch.Generator
) -> None:
    logits = rows(40, 3001, generator)
    uniform = torch.rand(40, dtype=torch.float64, generator=generator)
    whole = draw(kernels, logits, uniform)
    alone = [draw(kernels, logits[i : i + 1], uniform[i : i + 1]) for i in range(40)]
    assert torch.equal(torch.cat(alone), whole)
    wide = torch.cat([logits, logits], dim=1)[:, :3001]
    assert torch.equal(draw(kernels, wide, uniform), whole)


def test_the_ends_of_the_range_are_the_first_and_the_last_possible_token(
    kernels: CpuKernels, generator: torch.Generator
) -> None:
    logits = rows(1, 2000, generator).repeat(2, 1)
    logits[:, :700] = -torch.inf
    logits[:, 1900:] = -torch.inf
    largest = 1.0 - 2.0**-53
    ids = draw(kernels, logits, torch.tensor([0.0, largest], dtype=torch.float64), 50.0)
    assert ids.tolist() == [700, 1899]


@pytest.mark.parametrize("temperature", [1e-38, 1e-6, 1e6])
def test_extreme_temperatures_draw_the_likeliest_or_any(
    kernels: CpuKernels, generator: torch.Generator, temperature: float
) -> None:
    logits = rows(8, 600, generator)
    uniform = torch.rand(8, dtype=torch.float64, generator=generator)
    ids = draw(kernels, logits, uniform, temperature)
    expected = logits.argmax(dim=-1) if temperature < 1 else (uniform * 600).long()
    assert torch.equal(ids, expected)


def test_rows_without_any_weight_draw_an_id_in_range(kernels: CpuKernels) -> None:
    logits = torch.zeros(3, 900)
    logits[0] = torch.nan
    logits[1] = -torch.inf
    logits[2, 7] = torch.inf
    ids = draw(kernels, logits, torch.full((3,), 0.5, dtype=torch.float64))
    assert bool(((ids >= 0) & (ids < 900)).all())


def test_no_rows_draw_nothing(kernels: CpuKernels) -> None:
    assert draw(kernels, torch.zeros(0, 9), torch.zeros(0, dtype=torch.float64)).shape == (0,)


def test_what_does_not_fit_raises(kernels: CpuKernels) -> None:
    logits, column, uniform = torch.zeros(2, 9), torch.ones(2), torch.zeros(2, dtype=torch.float64)
    with pytest.raises(ValueError, match="logits must be float32"):
        kernels.draw(logits.double(), column, column, uniform)
    with pytest.raises(ValueError, match="temperature must be"):
        kernels.draw(logits, column[:1], column, uniform)
    with pytest.raises(ValueError, match="uniform must be"):
        kernels.draw(logits, column, column, column)
