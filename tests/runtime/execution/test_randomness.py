"""Counter-based numbers: what they depend on, and that they look uniform."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ramet.runtime.execution.randomness import MASK, derive_seed, uniform


def numbers(seed: int, count: int, start: int = 0) -> NDArray[np.float64]:
    indices = np.arange(start, start + count, dtype=np.uint64)
    return uniform(np.full(count, seed & MASK, dtype=np.uint64), indices)


def test_a_number_depends_on_its_seed_and_index_only() -> None:
    together = uniform(np.array([5, 9, 5], np.uint64), np.array([0, 3, 7], np.uint64))
    assert together.tolist() == [numbers(5, 1)[0], numbers(9, 1, 3)[0], numbers(5, 1, 7)[0]]


def test_numbers_are_those_of_the_published_generator() -> None:
    """SplitMix64 from state 0 starts with 0xE220A8397B1DCDAF (Vigna's reference code)."""

    def mix(value: int) -> int:
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
        return value ^ (value >> 31)

    gamma = 0x9E3779B97F4A7C15
    assert mix(gamma) == 0xE220A8397B1DCDAF
    for seed in (0, 1, MASK, 123456789):
        start = mix((seed + gamma) & MASK)
        expected = [(mix((start + (i + 1) * gamma) & MASK) >> 11) * 2.0**-53 for i in range(5)]
        assert numbers(seed, 5).tolist() == expected


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1, 2**63])
def test_numbers_of_one_seed_are_uniform(seed: int) -> None:
    """Chi-square over 100 bins, 99 degrees of freedom: above 160 with probability 1e-4."""
    drawn = numbers(seed, 100_000)
    assert drawn.min() >= 0.0 and drawn.max() < 1.0
    counts = np.bincount((drawn * 100).astype(int), minlength=100)
    assert ((counts - 1000.0) ** 2 / 1000.0).sum() < 160


def test_first_numbers_of_neighbouring_seeds_are_uniform_and_uncorrelated() -> None:
    """Correlation of 100,000 pairs: beyond 0.013 with probability 4e-5."""
    seeds = np.arange(100_001, dtype=np.uint64)
    first = uniform(seeds, np.zeros_like(seeds))
    counts = np.bincount((first * 100).astype(int), minlength=100)
    assert ((counts - 1000.01) ** 2 / 1000.01).sum() < 160
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 0.013


def test_streams_of_related_seeds_share_no_number() -> None:
    gamma = 0x9E3779B97F4A7C15
    streams = [numbers(seed, 1000) for seed in (0, gamma, 2 * gamma, derive_seed(0, 1))]
    assert len(set(np.concatenate(streams).tolist())) == 4000


def test_sample_zero_has_the_seed_of_the_request() -> None:
    assert derive_seed(7, 0) == 7
    assert derive_seed(-1, 0) == 2**64 - 1
    assert derive_seed(2**64 + 3, 0) == 3


def test_derived_seeds_are_valid_distinct_and_stable() -> None:
    derived = {derive_seed(seed, index) for seed in (-5, 0, 1, 2**64 - 1) for index in range(500)}
    assert len(derived) == 2000
    assert all(0 <= seed <= MASK for seed in derived)
    assert derive_seed(-5, 3) == derive_seed(-5 & MASK, 3) == derive_seed(-5, 3)
