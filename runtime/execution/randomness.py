"""Random numbers that depend on a seed and a position, and on nothing else.

There is no state: a request draws the same numbers alone or in a batch, and again after a preemption.
Source: Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators" (SplitMix64).
"""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

MASK = 2**64 - 1

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FACTOR_1 = np.uint64(0xBF58476D1CE4E5B9)
_FACTOR_2 = np.uint64(0x94D049BB133111EB)


def uniform(seeds: NDArray[np.uint64], indices: NDArray[np.uint64]) -> NDArray[np.float64]:
    """One number in [0, 1) for each pair, a multiple of 2**-53: `[n]` float64."""
    return (_hash(seeds, indices) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def derive_seed(seed: int, index: int) -> int:
    """The seed of one of a request's samples, 0 to 2**64 - 1.

    Args:
        seed: the request's; any integer, of which the low 64 bits count.
        index: which sample, from 0. Sample 0 has the request's own seed.
    """
    if index == 0:
        return seed & MASK
    # Complemented, so that no sample's seed is one of the numbers that the request itself draws.
    seeds = np.array([~seed & MASK], dtype=np.uint64)
    return int(_hash(seeds, np.array([index], dtype=np.uint64))[0])


def _hash(seeds: NDArray[np.uint64], indices: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The numbers at the given places of SplitMix64 streams whose starts are the seeds, mixed.

    The seeds are mixed first: streams of unmixed seeds that differ by a multiple of the increment
    are the same stream, shifted.
    """
    return _mix(_mix(seeds + _GAMMA) + (indices + np.uint64(1)) * _GAMMA)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * _FACTOR_1
    values = (values ^ (values >> np.uint64(27))) * _FACTOR_2
    return cast(NDArray[np.uint64], values ^ (values >> np.uint64(31)))
