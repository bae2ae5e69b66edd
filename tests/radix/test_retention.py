"""Retained prefixes: evicted last, in nobody's way, and gone when they are given up."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from ramet.radix import PrefixCache

Serve = Callable[..., list[int]]


def tokens(first: int, size: int) -> NDArray[np.int32]:
    return np.arange(first, first + size, dtype=np.int32)


def take_all_but(cache: PrefixCache, num_blocks: int) -> list[int]:
    blocks = cache.allocate(cache.num_available - num_blocks)
    assert blocks is not None
    return blocks


def test_what_is_retained_is_evicted_last(serve: Serve) -> None:
    cache = PrefixCache(8, 4)
    serve(cache, tokens(0, 16))
    kept = cache.retain(tokens(0, 16), max_blocks=8)
    serve(cache, tokens(100, 16))  # more recent, and goes all the same
    assert kept is not None and cache.num_retained == 4
    assert cache.num_available == 8, "nobody waits for what is retained"
    take_all_but(cache, 4)
    assert cache.match(tokens(0, 16)) == 16 and cache.match(tokens(100, 16)) == 0
    assert cache.stats.num_retractions == 0
    assert cache.allocate(1) is not None
    assert cache.stats.num_retractions == 1 and cache.num_retained == 0
    assert cache.match(tokens(0, 16)) == 12
    cache.check_integrity()


def test_the_prefix_retained_longest_ago_is_given_up_first(serve: Serve) -> None:
    cache = PrefixCache(9, 4)
    for first in (0, 100, 200):
        serve(cache, tokens(first, 12))
        cache.retain(tokens(first, 12), max_blocks=3)
    take_all_but(cache, 6)
    assert [cache.match(tokens(first, 12)) for first in (0, 100, 200)] == [0, 12, 12]


def test_its_end_puts_it_back_in_line(serve: Serve) -> None:
    cache = PrefixCache(8, 4)
    serve(cache, tokens(0, 16))
    handle = cache.retain(tokens(0, 16), max_blocks=8)
    serve(cache, tokens(100, 16))
    assert handle is not None and cache.end_retention(handle)
    assert not cache.end_retention(handle)
    take_all_but(cache, 4)
    assert cache.match(tokens(0, 16)) == 0 and cache.match(tokens(100, 16)) == 16


def test_blocks_of_two_retained_prefixes_count_once(serve: Serve) -> None:
    cache = PrefixCache(16, 4)
    for tail in (50, 60):
        ids = np.concatenate([tokens(0, 8), tokens(tail, 4)])
        serve(cache, ids)
        cache.retain(ids, max_blocks=8)
    assert cache.num_retained == 4
    cache.check_integrity()


def test_only_whole_blocks_that_are_cached_are_retained_and_only_so_many(serve: Serve) -> None:
    cache = PrefixCache(16, 4)
    serve(cache, tokens(0, 14))
    assert cache.retain(tokens(0, 3), max_blocks=8) is None
    assert cache.retain(tokens(100, 8), max_blocks=8) is None
    assert cache.retain(tokens(0, 14), "other", max_blocks=8) is None
    assert cache.retain(tokens(0, 14), max_blocks=0) is None
    whole = cache.retain(tokens(0, 14), max_blocks=8)
    start = cache.retain(tokens(0, 14), max_blocks=2)
    assert whole is not None and whole.num_tokens == 12
    assert start is not None and start.num_tokens == 8
    cache.check_integrity()


def test_a_retained_prefix_is_carried_on_like_any_other(serve: Serve) -> None:
    cache = PrefixCache(16, 4)
    serve(cache, tokens(0, 10))
    handle = cache.retain(tokens(0, 10), max_blocks=8)
    serve(cache, tokens(0, 24))
    assert cache.num_retained == 2 and cache.match(tokens(0, 24)) == 24
    take_all_but(cache, 2)
    assert handle is not None and cache.match(tokens(0, 24)) == 8
    cache.check_integrity()


def test_a_reset_forgets_what_is_retained(serve: Serve) -> None:
    cache = PrefixCache(8, 4)
    serve(cache, tokens(0, 16))
    handle = cache.retain(tokens(0, 16), max_blocks=8)
    assert cache.reset() == 4 and cache.num_retained == 0
    assert handle is not None and not cache.end_retention(handle)
    assert cache.stats.num_retractions == 0


def test_after_damage_nothing_is_retained(serve: Serve) -> None:
    cache = PrefixCache(8, 4)
    for first, namespace in ((0, ""), (0, "x")):
        serve(cache, tokens(first, 8), namespace)
        cache.retain(tokens(first, 8), namespace, max_blocks=8)
    cache._allocator._tree_refs[0] += 1
    assert cache.audit() == 1
    cache.check_integrity()
    assert cache.num_retained == 0
    take_all_but(cache, 0)


def test_the_check_counts_retained_prefixes(serve: Serve) -> None:
    cache = PrefixCache(8, 4)
    serve(cache, tokens(0, 8))
    handle = cache.retain(tokens(0, 8), max_blocks=8)
    assert handle is not None and handle._node is not None
    handle._node.num_retained += 1
    with pytest.raises(RuntimeError, match="counts 2 retentions, there are 1"):
        cache.check_integrity()
