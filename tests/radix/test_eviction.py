from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from ramet.radix import PrefixCache
from ramet.radix.eviction import EvictionQueue, LeastRecentlyUsed
from ramet.radix.node import RadixNode

Tokens = Callable[[Iterable[int]], NDArray[np.int32]]
Serve = Callable[..., list[int]]

A, B, C = [1] * 8, [2] * 8, [3] * 8


def make_room(cache: PrefixCache, num_blocks: int) -> None:
    blocks = cache.allocate(cache.num_free + num_blocks)
    assert blocks is not None
    cache.free(blocks)
    cache.check_integrity()


def lengths(cache: PrefixCache, tokens: Tokens) -> list[int]:
    return [cache.match(tokens(prompt)) for prompt in (A, B, C)]


def test_least_recently_used_leaf_goes_first(tokens: Tokens, serve: Serve) -> None:
    cache = PrefixCache(6, 4)
    for prompt in (A, B, C, A):
        serve(cache, prompt)
    make_room(cache, 2)
    assert lengths(cache, tokens) == [8, 0, 8]
    make_room(cache, 2)
    assert lengths(cache, tokens) == [8, 0, 0]


def test_acquiring_part_of_a_leaf_makes_it_recent(tokens: Tokens, serve: Serve) -> None:
    cache = PrefixCache(6, 4)
    for prompt in (A, B, C):
        serve(cache, prompt)
    cache.release(cache.acquire(tokens(A), max_tokens=3))
    make_room(cache, 2)
    assert lengths(cache, tokens) == [8, 0, 8]


def test_least_frequently_used_leaf_goes_first(tokens: Tokens, serve: Serve) -> None:
    cache = PrefixCache(6, 4, eviction_policy="lfu")
    for prompt in (A, A, A, B, C, B):
        serve(cache, prompt)
    make_room(cache, 2)
    assert lengths(cache, tokens) == [8, 8, 0]
    make_room(cache, 2)
    assert lengths(cache, tokens) == [8, 0, 0]


def test_a_leaf_is_trimmed_from_its_end(tokens: Tokens, serve: Serve) -> None:
    cache = PrefixCache(8, 4)
    serve(cache, range(30))
    for num_left in (28, 24, 20):
        make_room(cache, 1)
        assert cache.match(tokens(range(30))) == num_left
    assert cache.stats.num_nodes == 1
    assert (cache.stats.evicted_blocks, cache.stats.evicted_tokens) == (3, 10)


def test_parent_follows_its_last_child(tokens: Tokens, serve: Serve) -> None:
    cache = PrefixCache(8, 4)
    serve(cache, [*range(8), 90, 91, 92, 93])
    serve(cache, [*range(8), 80, 81, 82, 83])
    make_room(cache, 2)
    assert cache.match(tokens(range(8))) == 8
    assert cache.stats.num_nodes == 1
    make_room(cache, 1)
    assert cache.match(tokens(range(8))) == 4


def test_pinned_prefixes_outlive_any_pressure(tokens: Tokens, serve: Serve) -> None:
    cache = PrefixCache(6, 4)
    serve(cache, A)
    handle = cache.acquire(tokens(A), max_tokens=8)
    serve(cache, B)
    make_room(cache, cache.num_evictable)
    assert lengths(cache, tokens) == [8, 0, 0]
    cache.release(handle)
    make_room(cache, 1)
    assert lengths(cache, tokens) == [4, 0, 0]


def queue_of(*ages: int) -> tuple[EvictionQueue, list[RadixNode]]:
    root = RadixNode("", None, 0, np.empty(0, np.int32), [])
    queue = EvictionQueue(LeastRecentlyUsed())
    nodes = []
    for age in ages:
        node = RadixNode("", root, 0, np.array([age], np.int32), [age])
        node.last_access = age
        queue.push(node)
        nodes.append(node)
    return queue, nodes


def test_queue_holds_one_entry_per_node_however_often_it_is_used() -> None:
    queue, nodes = queue_of(1, 2, 3)
    for now in range(10, 60):
        nodes[0].last_access = now
        queue.push(nodes[0])
    assert len(queue) == 3
    assert [queue.pop() for _ in range(4)] == [nodes[1], nodes[2], nodes[0], None]


def test_queue_skips_what_cannot_be_evicted() -> None:
    queue, nodes = queue_of(1, 2, 3, 4)
    nodes[0].is_alive = False
    nodes[1].num_pins = 1
    nodes[2].children[0] = nodes[3]
    assert [queue.pop(), queue.pop()] == [nodes[3], None]
    nodes[1].num_pins = 0
    queue.push(nodes[1])
    assert queue.pop() is nodes[1]


def test_dead_entries_do_not_pile_up() -> None:
    queue, nodes = queue_of(*range(1000))
    for node in nodes[:900]:
        node.is_alive = False
        queue.note_dead(1)
    assert len(queue) < 300
    assert queue.pop() is nodes[900]
