from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest
from numpy.typing import NDArray

from ramet.radix import PrefixCache
from ramet.radix.blocks import BlockAllocator
from ramet.radix.node import RadixNode, common_prefix_length
from ramet.radix.tree import RadixTree

Tokens = Callable[[Iterable[int]], NDArray[np.int32]]
Serve = Callable[..., list[int]]


def only_child(node: RadixNode) -> RadixNode:
    (child,) = node.children.values()
    return child


def root_of(cache: PrefixCache) -> RadixNode:
    root = cache._tree.root("")
    assert root is not None
    return root


@pytest.mark.parametrize("length", [1, 2, 7, 64])
def test_common_prefix_ends_at_the_first_difference(length: int) -> None:
    first = np.arange(length, dtype=np.int32)
    assert common_prefix_length(first, first.copy()) == length
    for index in range(length):
        second = first.copy()
        second[index] = -1
        assert common_prefix_length(first, second) == index


def node_ending_at(cache: PrefixCache, end: int) -> RadixNode:
    (node,) = (node for node in cache._tree.nodes() if node.end == end)
    return node


def test_branches_inside_a_block_share_it_with_the_parent(serve: Serve) -> None:
    cache = PrefixCache(16, 4)
    first = serve(cache, [0, 1, 2, 3, 4, 5, 6, 7])
    second = serve(cache, [0, 1, 2, 3, 4, 5, 60, 70])
    parent = node_ending_at(cache, 6)
    assert len(parent.children) == 2
    assert parent.block_ids[-1] in (first[1], second[1])
    assert cache.num_cached == 3


def test_parent_adopts_a_siblings_block_when_its_own_goes(tokens: Tokens, serve: Serve) -> None:
    cache = PrefixCache(16, 4)
    serve(cache, [0, 1, 2, 3, 4, 5, 6, 7])
    kept = serve(cache, [0, 1, 2, 3, 4, 5, 60, 70])
    # The first prompt's leaf is the older one, and the parent refers to its block.
    parent = node_ending_at(cache, 6)
    assert parent.block_ids[-1] != kept[1]
    blocks = cache.allocate(cache.num_free + 1)
    assert blocks is not None
    assert parent.block_ids[-1] == kept[1]
    assert cache.num_cached == 2
    assert cache.match(tokens([0, 1, 2, 3, 4, 5, 6, 7])) == 6
    cache.check_integrity()


def test_last_child_leaves_its_block_to_the_parent(tokens: Tokens, serve: Serve) -> None:
    cache = PrefixCache(16, 4)
    serve(cache, [0, 1, 2, 3, 4, 5, 6, 7])
    serve(cache, [0, 1, 2, 3, 4, 5, 60, 70, 80])
    queue, tree = cache._reclaimer.queue, cache._tree
    parent = node_ending_at(cache, 6)
    while parent.children:
        leaf = queue.pop()
        assert leaf is not None
        above = tree.remove_leaf(leaf)
        if above.is_evictable:
            queue.push(above)
    assert (len(parent.block_ids), cache.num_cached) == (1, 2)
    assert cache.match(tokens(range(9))) == 6


def test_chain_inside_one_block_follows_its_tail(tokens: Tokens, serve: Serve) -> None:
    cache = PrefixCache(16, 8)
    serve(cache, [0, 1, 2])
    serve(cache, [0, 1, 20])
    serve(cache, [0, 10, 11])
    # Three levels in one block; now the first leaf grows in another block.
    table = serve(cache, range(12))
    node = only_child(root_of(cache))
    cached = {block for node in cache._tree.nodes() for block in node.block_ids}
    assert len(cached) == cache.num_cached == 4
    assert node.end == 1
    assert table[0] in cached
    assert cache.match(tokens(range(12))) == 12


def test_splitting_inside_a_block_costs_no_block() -> None:
    allocator = BlockAllocator(4)
    tree = RadixTree(allocator, 4)
    blocks = allocator.take(3)
    leaf = tree.add_child(tree.grow_root(""), np.arange(10, dtype=np.int32), blocks)
    upper = tree.split(leaf, 6)
    assert (upper.tokens.tolist(), upper.block_ids) == (list(range(6)), blocks[:2])
    assert (leaf.tokens.tolist(), leaf.block_ids) == (list(range(6, 10)), blocks[1:])
    assert leaf.parent is upper
    assert allocator.num_cached == 3
    lowest = tree.split(upper, 4)
    assert (lowest.block_ids, upper.block_ids) == (blocks[:1], blocks[1:2])
    path, position = tree.descend(tree.grow_root(""), np.arange(9, dtype=np.int32), 9)
    assert position == 9
    assert tree.path_blocks(path, 0, 3) == blocks
    assert tree.path_blocks(path[1:], 1, 2) == blocks[1:2]


def test_merging_restores_what_splitting_cut() -> None:
    allocator = BlockAllocator(4)
    tree = RadixTree(allocator, 4)
    blocks = allocator.take(3)
    leaf = tree.add_child(tree.grow_root(""), np.arange(10, dtype=np.int32), blocks)
    for position in (8, 7, 5, 4):
        tree.split(leaf if position == 8 else only_child(tree.grow_root("")), position)
    assert tree.num_nodes == 5
    assert tree.merge_upwards(leaf) == 0
    assert tree.num_nodes == 1
    assert (leaf.start, leaf.tokens.tolist(), leaf.block_ids) == (0, list(range(10)), blocks)
    allocator.drop_private(blocks)
    tree.remove_leaf(leaf)
    assert allocator.num_free == 4


def test_handle_node_ends_exactly_at_the_handle(tokens: Tokens, serve: Serve) -> None:
    cache = PrefixCache(16, 4)
    serve(cache, range(16))
    handles = [cache.acquire(tokens(range(16)), max_tokens=length) for length in range(17)]
    for handle in handles:
        assert handle._node is not None
        assert handle._node.end == handle.num_tokens
    # Later splits above do not move the nodes of earlier handles.
    cache.check_integrity()
    for handle in handles:
        cache.release(handle)
    assert all(node.num_pins == 0 for node in cache._tree.nodes())
