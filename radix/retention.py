"""Prefixes that somebody will come back to: they are evicted last, and are in nobody's way.

Unlike a pin, retention takes no block out of what `allocate` can give: a retained block counts as
evictable, but its leaf stays out of the eviction queue until all others are gone. It knows no time and
no budget; who retains bounds both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from .handle import PrefixHandle
from .node import RadixNode, Tokens
from .tree import RadixTree


class RetainedPrefixes:
    """The retained prefixes, oldest first, as handles that pin nothing."""

    def __init__(self, tree: RadixTree, block_size: int) -> None:
        self._tree = tree
        self._block_size = block_size
        self._handles: dict[PrefixHandle, None] = {}
        # How many of them each block belongs to.
        self._num_holders: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._handles)

    def __iter__(self) -> Iterator[PrefixHandle]:
        return iter(self._handles)

    def __contains__(self, handle: PrefixHandle) -> bool:
        return handle in self._handles

    @property
    def num_blocks(self) -> int:
        """Blocks of all of them, each counted once."""
        return len(self._num_holders)

    def add(self, token_ids: Tokens, namespace: str) -> PrefixHandle | None:
        """Retain the whole blocks that are cached of a sequence; None if there is not even one."""
        root = self._tree.root(namespace)
        if root is None:
            return None
        path, position = self._tree.descend(root, token_ids, len(token_ids))
        num_blocks = position // self._block_size
        if not num_blocks:
            return None
        node, block_ids = self._tree.cut(root, path, 0, num_blocks)
        handle = PrefixHandle(node, block_ids, num_tokens=num_blocks * self._block_size)
        self._handles[handle] = None
        self._num_holders.update(block_ids)
        _count(node, 1)
        return handle

    def remove(self, handle: PrefixHandle) -> RadixNode:
        """End the retention; returns the node, which may be evictable now. KeyError if there is none."""
        del self._handles[handle]
        for block in handle._block_ids:
            self._num_holders[block] -= 1
            if not self._num_holders[block]:
                del self._num_holders[block]
        _count(handle._node, -1)
        assert handle._node is not None
        return handle._node

    def clear(self) -> None:
        """Forget all of them; the nodes' counts are the caller's to set right."""
        self._handles.clear()
        self._num_holders.clear()


def _count(node: RadixNode | None, change: int) -> None:
    while node is not None:
        node.num_retained += change
        node = node.parent
