from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest
from numpy.typing import NDArray

from ramet.radix import PrefixCache

Serve = Callable[..., list[int]]


@pytest.fixture
def tokens() -> Callable[[Iterable[int]], NDArray[np.int32]]:
    """Makes the int32 array that the cache wants from any ints."""
    return lambda ids: np.array(list(ids), dtype=np.int32)


@pytest.fixture
def serve() -> Serve:
    """Runs a whole request through a cache and returns its block table."""

    def run(cache: PrefixCache, ids: Iterable[int], namespace: str = "") -> list[int]:
        prompt = np.array(list(ids), dtype=np.int32)
        handle = cache.acquire(prompt, namespace, max_tokens=len(prompt))
        table = handle.block_ids
        blocks = cache.allocate(-(-len(prompt) // cache.block_size) - len(table))
        assert blocks is not None
        table += blocks
        handle = cache.commit(handle, prompt, table, num_tokens=len(prompt))
        cache.release(handle)
        cache.free(table[handle.num_tokens // cache.block_size :])
        cache.check_integrity()
        return table

    return run
