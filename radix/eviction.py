"""Which leaf goes first: eviction policies, and the queue that finds the victim in O(log n).

It does not know what evicting means; prefix_cache.py does that.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Protocol

from .node import RadixNode

EvictionKey = tuple[int, int]


class EvictionPolicy(Protocol):
    """Orders leaves for eviction: the smallest key goes first."""

    def key(self, node: RadixNode) -> EvictionKey:
        """The node's rank. It may grow while the node lives, and must never shrink."""
        ...


class LeastRecentlyUsed:
    """The leaf whose last use is longest ago goes first."""

    def key(self, node: RadixNode) -> EvictionKey:
        """Time of the last use."""
        return (node.last_access, 0)


class LeastFrequentlyUsed:
    """The leaf with the fewest hits goes first; among equals the one used longest ago."""

    def key(self, node: RadixNode) -> EvictionKey:
        """Number of hits, then time of the last use."""
        return (node.num_hits, node.last_access)


EVICTION_POLICIES: dict[str, type[LeastRecentlyUsed] | type[LeastFrequentlyUsed]] = {
    "lru": LeastRecentlyUsed,
    "lfu": LeastFrequentlyUsed,
}


class EvictionQueue:
    """Evictable leaves, smallest key first, in a heap that is never searched.

    A node has at most one entry, under the key it had when it was pushed. Using a node does not
    touch the heap: a popped entry whose key has grown is pushed again, and one whose node left the
    tree, was pinned or got children is dropped. Keys only grow, so the first entry that is popped
    with its present key is the minimum. Each use causes at most one extra push: amortised O(log n).
    """

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._heap: list[tuple[EvictionKey, int, RadixNode]] = []
        self._num_pushes = 0
        self._num_dead = 0

    def __len__(self) -> int:
        """Entries, those of nodes that are no longer evictable included."""
        return len(self._heap)

    def push(self, node: RadixNode) -> None:
        """Add an evictable leaf; nothing happens if it has an entry already."""
        if node.is_queued:
            return
        node.is_queued = True
        # The running number keeps equal keys from comparing nodes.
        self._num_pushes += 1
        heapq.heappush(self._heap, (self._policy.key(node), self._num_pushes, node))

    def pop(self) -> RadixNode | None:
        """Remove and return the evictable leaf with the smallest key; None if there is none."""
        while self._heap:
            key, _, node = heapq.heappop(self._heap)
            node.is_queued = False
            if not node.is_evictable:
                self._num_dead -= not node.is_alive
                continue
            if self._policy.key(node) != key:
                self.push(node)
                continue
            return node
        return None

    def note_dead(self, num_nodes: int) -> None:
        """Learn that so many nodes with an entry left the tree by another way than `pop`.

        Once they are most of the heap they are thrown out, at a constant cost for each.
        """
        self._num_dead += num_nodes
        if 2 * self._num_dead > len(self._heap) + 64:
            self._heap = [entry for entry in self._heap if entry[2].is_alive]
            heapq.heapify(self._heap)
            self._num_dead = 0

    def nodes(self) -> Iterator[RadixNode]:
        """The nodes that have an entry, in no order."""
        return (node for _, _, node in self._heap)

    def clear(self) -> None:
        """Forget every entry."""
        for _, _, node in self._heap:
            node.is_queued = False
        self._heap.clear()
        self._num_dead = 0
