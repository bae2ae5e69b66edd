"""Making room: takes leaves out of the tree, in the order of the eviction queue, retained ones last.

It owns the queue; it does not know handles beyond the pins that they leave on nodes.
"""

from __future__ import annotations

from .blocks import BlockAllocator, IntegrityError
from .eviction import EvictionPolicy, EvictionQueue
from .handle import PrefixHandle
from .node import RadixNode
from .retention import RetainedPrefixes
from .tree import RadixTree


class Reclaimer:
    """Frees cached blocks that nobody needs.

    Args:
        tree: to take leaves from.
        allocator: the tree's.
        policy: which leaf goes first.
        block_size: tokens per block.

    Attributes:
        queue: has every evictable leaf of the tree.
        retained: prefixes whose leaves are not in the queue.
        num_evicted_blocks: blocks that `evict` made free so far.
        num_evicted_tokens: tokens that `evict` took out of the tree so far.
        num_retractions: retentions that `evict` ended so far.
    """

    def __init__(
        self,
        tree: RadixTree,
        allocator: BlockAllocator,
        policy: EvictionPolicy,
        block_size: int,
    ) -> None:
        self._tree = tree
        self._allocator = allocator
        self.queue = EvictionQueue(policy)
        self.retained = RetainedPrefixes(tree, block_size)
        self.num_evicted_blocks = 0
        self.num_evicted_tokens = 0
        self.num_retractions = 0

    def evict(self, num_blocks: int) -> None:
        """Evict until `num_blocks` are free; retained prefixes, the oldest first, when nothing else is left.

        Raises:
            IntegrityError: the leaves run out first, though the caller counted enough.
        """
        free_before = self._allocator.num_free
        tokens_before = self._tree.num_tokens
        while (num_missing := num_blocks - self._allocator.num_free) > 0:
            node = self.queue.pop()
            if node is None and self.retained:
                self.end_retention(next(iter(self.retained)))
                self.num_retractions += 1
            elif node is None:
                counted = self._allocator.num_evictable
                raise IntegrityError(f"no leaf to evict, yet {counted} blocks are counted")
            else:
                self._shrink(node, num_missing)
        self.num_evicted_blocks += self._allocator.num_free - free_before
        self.num_evicted_tokens += tokens_before - self._tree.num_tokens

    def end_retention(self, handle: PrefixHandle) -> None:
        """Let a retained prefix be evicted like any other. KeyError if it is not retained."""
        node = self.retained.remove(handle)
        if node.is_evictable:
            self.queue.push(node)

    def clear(self) -> int:
        """Remove every node that is not pinned. Returns how many blocks became free."""
        before = self._allocator.num_free
        for handle in list(self.retained):
            self.end_retention(handle)
        while (node := self.queue.pop()) is not None:
            self._remove(node)
        return self._allocator.num_free - before

    def requeue(self) -> None:
        """Fill the queue anew from the tree, in O(nodes), with nothing retained."""
        self.retained.clear()
        self.queue.clear()
        for node in self._tree.nodes():
            if node.is_evictable:
                self.queue.push(node)

    def check_integrity(self) -> None:
        """Raise IntegrityError unless every evictable leaf has its entry."""
        queued = {id(node) for node in self.queue.nodes()}
        for node in self._tree.nodes():
            if node.is_evictable and id(node) not in queued:
                raise IntegrityError(f"{node!r} can be evicted, yet is not in the queue")
            if node.is_queued != (id(node) in queued):
                raise IntegrityError(f"{node!r} does not know whether it is in the queue")

    def _shrink(self, node: RadixNode, num_wanted: int) -> None:
        """Free `num_wanted` blocks from the end of a leaf, or all that it has."""
        num_kept = len(node.block_ids)
        while num_wanted and num_kept:
            num_kept -= 1
            num_wanted -= self._allocator.frees_with_reference(node.block_ids[num_kept])
        if num_kept:
            self._tree.trim_leaf(node, num_kept)
            self.queue.push(node)
        else:
            self._remove(node)

    def _remove(self, node: RadixNode) -> None:
        parent = self._tree.remove_leaf(node)
        if parent.is_evictable:
            self.queue.push(parent)
        elif parent.parent is None:
            self._tree.prune_root(parent)
