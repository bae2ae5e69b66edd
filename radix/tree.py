"""Radix trees over tokens whose values are blocks, one tree per namespace.

It owns the nodes and their references to blocks; it does not know handles, recency or requests.

Nodes may start and end inside a block. The rule of the shared tail keeps that from costing memory:
an inner node that ends inside a block holds, as its last block, the first block of one of its
children, so that no path ever holds a block more than its tokens need.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from .blocks import BlockAllocator
from .node import RadixNode, Tokens, common_prefix_length

# Copying a parent this short costs less than the extra step it would add to every later walk.
_MERGE_ALWAYS_BELOW = 1024


class RadixTree:
    """Token prefixes to blocks. Every method leaves the allocator's references right.

    Args:
        allocator: counts the references.
        block_size: tokens per block.
    """

    def __init__(self, allocator: BlockAllocator, block_size: int) -> None:
        self._allocator = allocator
        self._block_size = block_size
        self._roots: dict[str, RadixNode] = {}
        self.num_nodes = 0
        self.num_tokens = 0
        # Changes whenever the result of a match may change.
        self.generation = 0

    @property
    def num_namespaces(self) -> int:
        """Trees with a node or a handle."""
        return len(self._roots)

    def root(self, namespace: str) -> RadixNode | None:
        """The root of a namespace, None if nothing is cached there."""
        return self._roots.get(namespace)

    def roots(self) -> list[RadixNode]:
        """The roots of all namespaces."""
        return list(self._roots.values())

    def grow_root(self, namespace: str) -> RadixNode:
        """The root of a namespace, made if there is none."""
        root = self._roots.get(namespace)
        if root is None:
            root = RadixNode(namespace, None, 0, np.empty(0, dtype=np.int32), [])
            self._roots[namespace] = root
        return root

    def prune_root(self, root: RadixNode) -> None:
        """Forget a root without children or handles: namespaces come from clients, without end."""
        if not root.children and not root.num_pins and self._roots.get(root.namespace) is root:
            del self._roots[root.namespace]
            root.is_alive = False

    def descend(
        self, node: RadixNode, token_ids: Tokens, limit: int
    ) -> tuple[list[RadixNode], int]:
        """Follow `token_ids[node.end:limit]` down from a node. Changes nothing.

        Returns:
            The nodes below it that match, the last one possibly in part, and the position up to
            which the tokens agree.
        """
        path: list[RadixNode] = []
        position = node.end
        while position < limit:
            child = node.children.get(token_ids.item(position))
            if child is None:
                break
            path.append(child)
            stop = child.end
            if stop <= limit:
                edge = child.tokens
            else:
                stop = limit
                edge = child.tokens[: limit - position]
            common = common_prefix_length(edge, token_ids[position:stop])
            position += common
            if position < child.end:
                break
            node = child
        return path, position

    def insert(
        self, node: RadixNode, token_ids: Tokens, block_ids: list[int]
    ) -> tuple[list[RadixNode], RadixNode | None]:
        """Make the tree hold a whole sequence of which a node covers the start.

        Args:
            node: ends at the start of a block.
            token_ids: `[num_tokens]` int32, the sequence from position 0.
            block_ids: its blocks from the node's end on. Those whose tokens the tree has already
                are left out.

        Returns:
            The nodes below `node` that hold it, and the leaf that was made or extended, if any.
        """
        path, position = self.descend(node, token_ids, len(token_ids))
        if position == len(token_ids):
            return path, None
        last = path[-1] if path else node
        if position < last.end:
            last = path[-1] = self.split(last, position)
        tokens = token_ids[position:]
        blocks = block_ids[(position - node.end) // self._block_size :]
        if last.is_evictable:
            self.extend_leaf(last, tokens, blocks)
            return path, last
        path.append(self.add_child(last, tokens, blocks))
        return path, path[-1]

    def split(self, node: RadixNode, position: int) -> RadixNode:
        """Cut a node in two at a position inside it; the lower part stays the same object.

        Returns:
            The new upper part, which takes over pins, retention and recency of the lower.
        """
        assert node.parent is not None and node.start < position < node.end
        size = self._block_size
        length, num_whole = position - node.start, position // size - node.start // size
        is_inside = position % size != 0
        upper = RadixNode(
            node.namespace,
            node.parent,
            node.start,
            node.tokens[:length].copy(),
            node.block_ids[: num_whole + is_inside],
        )
        upper.num_pins = node.num_pins
        upper.num_retained = node.num_retained
        upper.last_access = node.last_access
        upper.num_hits = node.num_hits
        node.parent.children[upper.tokens.item(0)] = upper
        node.parent = upper
        node.start = position
        node.tokens = node.tokens[length:].copy()
        node.block_ids = node.block_ids[num_whole:]
        upper.children[node.tokens.item(0)] = node
        if is_inside:
            self._allocator.add_references(node.block_ids[:1])
        self.num_nodes += 1
        return upper

    def cut(
        self, above: RadixNode, path: list[RadixNode], first: int, last: int
    ) -> tuple[RadixNode, list[int]]:
        """Make a node end where block `last - 1` of a path ends, and shorten the path to it.

        Returns:
            That node, split off if need be (`above` if nothing of the path is left), and the ids of blocks
            `first` to `last - 1`.
        """
        end = last * self._block_size
        while path and path[-1].start >= end:
            path.pop()
        node = path[-1] if path else above
        if end < node.end:
            node = path[-1] = self.split(node, end)
        return node, self.path_blocks(path, first, last)

    def add_child(self, node: RadixNode, tokens: Tokens, block_ids: list[int]) -> RadixNode:
        """Hang `tokens`, whose KV lies in `block_ids`, below a node.

        Where the node ends inside a block, it has children already (a leaf like that cannot be
        pinned, so it is extended instead), and `block_ids` starts with another copy of that block.
        """
        assert node.children or node.end % self._block_size == 0
        child = RadixNode(node.namespace, node, node.end, tokens.copy(), list(block_ids))
        self._allocator.add_references(block_ids)
        node.children[child.tokens.item(0)] = child
        self.num_nodes += 1
        self.num_tokens += len(tokens)
        self.generation += 1
        return child

    def extend_leaf(self, node: RadixNode, tokens: Tokens, block_ids: list[int]) -> None:
        """Append to a leaf in place.

        Where the leaf ends inside a block, the first of `block_ids` takes that block's place.
        """
        assert not node.children and node.parent is not None
        fresh = block_ids
        if node.end % self._block_size:
            self._replace_tail(node, block_ids[0])
            fresh = block_ids[1:]
        self._allocator.add_references(fresh)
        node.block_ids.extend(fresh)
        node.tokens = np.concatenate((node.tokens, tokens))
        node.end += len(tokens)
        self.num_tokens += len(tokens)
        self.generation += 1

    def remove_leaf(self, node: RadixNode) -> RadixNode:
        """Take a leaf out of the tree. Returns its parent."""
        parent = node.parent
        assert parent is not None and not node.children
        del parent.children[node.tokens.item(0)]
        if (
            parent.end % self._block_size
            and parent.children
            and parent.block_ids[-1] == node.block_ids[0]
        ):
            sibling = next(iter(parent.children.values()))
            self._replace_tail(parent, sibling.block_ids[0])
        self._allocator.drop_references(node.block_ids)
        node.is_alive = False
        self.num_nodes -= 1
        self.num_tokens -= len(node.tokens)
        self.generation += 1
        return parent

    def trim_leaf(self, node: RadixNode, num_blocks: int) -> None:
        """Keep only the first `num_blocks` (at least one) of a leaf's blocks."""
        assert not node.children and 0 < num_blocks < len(node.block_ids)
        end = (node.start // self._block_size + num_blocks) * self._block_size
        self.num_tokens -= node.end - end
        self._allocator.drop_references(reversed(node.block_ids[num_blocks:]))
        node.tokens = node.tokens[: end - node.start].copy()
        node.block_ids = node.block_ids[:num_blocks]
        node.end = end
        self.generation += 1

    def merge_upwards(self, node: RadixNode) -> int:
        """Join a node with ancestors that lead to nothing else and at which nothing held ends.

        A parent is copied only if it is short or no longer than the node, so that a sequence that
        grows by many commits stays a path of O(log) nodes and each token is copied O(log) times.

        Returns:
            How many of the nodes that were absorbed still have an entry in the eviction queue.
        """
        num_queued = 0
        parent = node.parent
        while (
            parent is not None
            and parent.parent is not None
            and len(parent.children) == 1
            and parent.num_pins == node.num_pins
            and parent.num_retained == node.num_retained
            and len(parent.tokens) <= max(_MERGE_ALWAYS_BELOW, len(node.tokens))
        ):
            above = parent.block_ids
            if parent.end % self._block_size:
                self._allocator.drop_references(above[-1:])
                above = above[:-1]
            node.tokens = np.concatenate((parent.tokens, node.tokens))
            node.block_ids = above + node.block_ids
            node.start = parent.start
            node.num_hits = max(node.num_hits, parent.num_hits)
            node.last_access = max(node.last_access, parent.last_access)
            node.parent = parent.parent
            node.parent.children[node.tokens.item(0)] = node
            parent.is_alive = False
            num_queued += parent.is_queued
            self.num_nodes -= 1
            parent = node.parent
        return num_queued

    def path_blocks(self, path: list[RadixNode], first: int, last: int) -> list[int]:
        """Blocks `first` to `last - 1` of a sequence that runs through connected nodes."""
        if not path or first >= last:
            return []
        offset = path[0].start // self._block_size
        ids: list[int] = []
        for node in path:
            # A child's first block stands in for the last one of a parent that ends inside it.
            del ids[node.start // self._block_size - offset :]
            ids += node.block_ids
        return ids[first - offset : last - offset]

    def nodes(self) -> Iterator[RadixNode]:
        """All nodes but the roots, parents first."""
        stack = [child for root in self._roots.values() for child in root.children.values()]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def forget(self, namespace: str) -> None:
        """Drop a namespace as it is; the counts are wrong until `recount`, references included."""
        self._roots.pop(namespace, None)
        self.generation += 1

    def recount(self, pinned: Iterable[RadixNode]) -> None:
        """Set the totals and the nodes' pins right; `pinned` has the node of every handle.

        Nothing is retained afterwards.
        """
        self.num_nodes = self.num_tokens = 0
        for root in self._roots.values():
            root.num_pins = root.num_retained = 0
        for node in self.nodes():
            node.num_pins = node.num_retained = 0
            self.num_nodes += 1
            self.num_tokens += len(node.tokens)
        for node in pinned:
            current: RadixNode | None = node if node.is_alive else None
            while current is not None:
                current.num_pins += 1
                current = current.parent

    def _replace_tail(self, node: RadixNode, block: int) -> None:
        """Make `block` the last one of a node that ends inside it, and of those that share it."""
        old = node.block_ids[-1]
        current: RadixNode | None = node
        while current is not None and current.block_ids and current.block_ids[-1] == old != block:
            current.block_ids[-1] = block
            self._allocator.add_references((block,))
            self._allocator.drop_references((old,))
            # Only a node that starts inside the same block can share it with its parent.
            is_shared = len(current.block_ids) == 1 and current.start % self._block_size
            current = current.parent if is_shared else None
