"""The cache that a scheduler talks to: match, acquire, allocate, commit, release.

It owns the life of handles, recency, eviction and statistics, over a tree (tree.py) and the
accounting of blocks (blocks.py). It knows neither tensors nor requests.

The life of a sequence: `acquire` pins what is cached, `allocate` gives blocks for the rest, `commit`
hands computed blocks to the tree chunk by chunk, `release` and `free` let go of everything. Between two
lives `retain` keeps a prefix from being evicted before those that nobody is coming back to.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from .audit import find_damage, raise_on_damage
from .blocks import BlockAllocator
from .eviction import EVICTION_POLICIES
from .handle import PrefixHandle
from .node import RadixNode, Tokens
from .reclaim import Reclaimer
from .stats import CacheStats
from .tree import RadixTree


class PrefixCache:
    """Shares the KV blocks of common prefixes among requests.

    Not thread-safe. A hit is decided by comparing tokens.

    Args:
        num_blocks: blocks to manage, ids 0 to num_blocks - 1.
        block_size: tokens per block.
        enabled: False turns it into a plain allocator: nothing matches and nothing is kept.
        eviction_policy: a key of EVICTION_POLICIES, "lru" or "lfu".

    Raises:
        ValueError: a count below one, or an unknown policy.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enabled: bool = True,
        eviction_policy: str = "lru",
    ) -> None:
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, not {block_size}")
        if eviction_policy not in EVICTION_POLICIES:
            known = ", ".join(sorted(EVICTION_POLICIES))
            raise ValueError(f"eviction_policy must be one of {known}, not {eviction_policy!r}")
        self._block_size = block_size
        self._enabled = enabled
        self._allocator = BlockAllocator(num_blocks)
        self._tree = RadixTree(self._allocator, block_size)
        policy = EVICTION_POLICIES[eviction_policy]()
        self._reclaimer = Reclaimer(self._tree, self._allocator, policy, block_size)
        self._handles: set[PrefixHandle] = set()
        self._clock = 0
        self._num_queries = 0
        self._queried_tokens = 0
        self._hit_tokens = 0
        self._inserted_tokens = 0
        self._deduplicated_blocks = 0

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self._block_size

    @property
    def num_blocks(self) -> int:
        """Blocks in all: free + cached + private + quarantined."""
        return self._allocator.num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return self._allocator.num_free

    @property
    def num_cached(self) -> int:
        """Blocks in the tree, whoever else holds them."""
        return self._allocator.num_cached

    @property
    def num_private(self) -> int:
        """Blocks held by requests that are not in the tree."""
        return self._allocator.num_private

    @property
    def num_pinned(self) -> int:
        """Blocks that some handle lists."""
        return self._allocator.num_pinned

    @property
    def num_evictable(self) -> int:
        """Blocks in the tree that neither a handle nor a private hold keeps there."""
        return self._allocator.num_evictable

    @property
    def num_retained(self) -> int:
        """Blocks of retained prefixes, each once; part of the cached ones."""
        return self._reclaimer.retained.num_blocks

    @property
    def num_available(self) -> int:
        """The most blocks that `allocate` can give now: free ones and evictable ones."""
        return self._allocator.num_free + self._allocator.num_evictable

    @property
    def num_quarantined(self) -> int:
        """Blocks that `audit` took out of circulation."""
        return self._allocator.num_quarantined

    @property
    def generation(self) -> int:
        """Changes whenever the result of `match` may have changed."""
        return self._tree.generation

    @property
    def stats(self) -> CacheStats:
        """A snapshot of the counters."""
        return CacheStats(
            num_queries=self._num_queries,
            queried_tokens=self._queried_tokens,
            hit_tokens=self._hit_tokens,
            inserted_tokens=self._inserted_tokens,
            evicted_tokens=self._reclaimer.num_evicted_tokens,
            evicted_blocks=self._reclaimer.num_evicted_blocks,
            deduplicated_blocks=self._deduplicated_blocks,
            num_nodes=self._tree.num_nodes,
            num_tokens=self._tree.num_tokens,
            num_namespaces=self._tree.num_namespaces,
            quarantined_blocks=self._allocator.num_quarantined,
            num_retractions=self._reclaimer.num_retractions,
        )

    def match(self, token_ids: Tokens, namespace: str = "") -> int:
        """Length of the longest cached prefix, in tokens. Changes nothing, recency included.

        Args:
            token_ids: `[num_tokens]` int32.
            namespace: the tree to look in; others are never seen.

        Raises:
            TypeError: token_ids is not a one-dimensional int32 array.
        """
        _check_tokens(token_ids)
        root = self._tree.root(namespace)
        if root is None:
            return 0
        return self._tree.descend(root, token_ids, len(token_ids))[1]

    def acquire(
        self, token_ids: Tokens, namespace: str = "", *, max_tokens: int, count: bool = True
    ) -> PrefixHandle:
        """Pin the whole blocks of the longest cached prefix; point at the partial one after them.

        The hit is `handle.num_tokens + handle.tail_len` tokens. Splits at most one node, and makes
        everything that it matched recent.

        Args:
            token_ids: `[num_tokens]` int32, the whole prompt.
            namespace: the tree to look in.
            max_tokens: most tokens to match, in order that the last one is left to compute.
            count: whether the statistics and the hits of the nodes count this query.

        Raises:
            TypeError: token_ids is not a one-dimensional int32 array.
            ValueError: max_tokens is negative.
        """
        _check_tokens(token_ids)
        if max_tokens < 0:
            raise ValueError(f"max_tokens must be at least 0, not {max_tokens}")
        if count:
            self._num_queries += 1
            self._queried_tokens += len(token_ids)
        if not self._enabled:
            return self._new_handle(None, [], 0)
        root = self._tree.grow_root(namespace)
        path, position = self._tree.descend(root, token_ids, min(max_tokens, len(token_ids)))
        self._clock += 1
        for node in path:
            node.last_access = self._clock
            node.num_hits += count
        if count:
            self._hit_tokens += position
        num_whole, tail_len = divmod(position, self._block_size)
        tail = self._tree.path_blocks(path[-1:], num_whole, num_whole + 1) if tail_len else [None]
        node, ids = self._pin_path(root, path, 0, num_whole)
        return self._new_handle(node, ids, position - tail_len, tail[0], tail_len)

    def allocate(self, num_blocks: int) -> list[int] | None:
        """Give blocks to the caller alone, evicting what is needed.

        Returns:
            The block ids, or None, with nothing evicted, if fewer than `num_blocks` are available.

        Raises:
            ValueError: num_blocks is negative.
        """
        if num_blocks < 0:
            raise ValueError(f"num_blocks must be at least 0, not {num_blocks}")
        if num_blocks > self.num_available:
            return None
        if num_blocks > self._allocator.num_free:
            self._reclaimer.evict(num_blocks)
        return self._allocator.take(num_blocks)

    def free(self, block_ids: Iterable[int]) -> None:
        """Give up private holds. A block that is in the tree as well stays there, evictable.

        Raises:
            ValueError: an id is out of range, repeated, or not privately held; nothing is freed.
        """
        ids = list(block_ids)
        self._check_private(ids)
        self._allocator.drop_private(ids)

    def commit(
        self,
        handle: PrefixHandle,
        token_ids: Tokens,
        block_table: list[int],
        *,
        num_tokens: int,
    ) -> PrefixHandle:
        """Put computed tokens in the tree, the partial last block included, and pin them.

        Consumes `handle` and returns one that pins `num_tokens` rounded down to whole blocks. The
        tree is entered at the handle's node. Where it already has a whole block, the entry of
        `block_table` is replaced in place and the caller's block given back. The caller's private
        hold ends on whole blocks and stays on the partial one, whose further slots are the caller's
        to write; the slots that the tree knows must not be written again.

        Args:
            handle: the sequence's live handle.
            token_ids: `[>= num_tokens]` int32; it starts with the tokens of the handle.
            block_table: the sequence's blocks: the handle's own, then privately held ones.
            num_tokens: how many tokens have their KV in the blocks.

        Raises:
            TypeError: token_ids is not a one-dimensional int32 array.
            ValueError: the handle was released; num_tokens is below the handle's, or beyond the
                tokens or the blocks given; a block is not privately held. Nothing has changed.
        """
        _check_tokens(token_ids)
        self._check_commit(handle, token_ids, block_table, num_tokens)
        node = handle._node
        first, last = handle.num_tokens // self._block_size, num_tokens // self._block_size
        fresh = block_table[first : -(-num_tokens // self._block_size)]
        self._check_private(fresh)
        self._handles.remove(handle)
        if node is None or not node.is_alive or self._has_quarantined(fresh):
            return self._new_handle(node, handle._block_ids, handle.num_tokens)
        tokens_before = self._tree.num_tokens
        path, leaf = self._tree.insert(node, token_ids[:num_tokens], fresh)
        self._inserted_tokens += self._tree.num_tokens - tokens_before
        self._clock += 1
        for touched in path:
            touched.last_access = self._clock
        self._count_pins(node, -1)
        node, ids = self._pin_path(node, path, first, last)
        self._hand_over(block_table, first, fresh[: last - first], ids)
        if leaf is not None and leaf.is_evictable:
            self._reclaimer.queue.push(leaf)
        self._reclaimer.queue.note_dead(self._tree.merge_upwards(node))
        handle._block_ids.extend(ids)
        return self._new_handle(node, handle._block_ids, last * self._block_size)

    def release(self, handle: PrefixHandle) -> None:
        """Give up a handle: its blocks stay in the tree, evictable once nobody else holds them.

        Raises:
            ValueError: the handle was released or committed before.
        """
        if handle not in self._handles:
            raise ValueError("the handle was released or committed before")
        self._handles.remove(handle)
        self._allocator.unpin(handle._block_ids)
        node = handle._node
        if node is None or not node.is_alive:
            return
        self._clock += 1
        self._count_pins(node, -1)
        if node.is_evictable:
            self._reclaimer.queue.push(node)
        elif node.parent is None:
            self._tree.prune_root(node)

    def retain(
        self, token_ids: Tokens, namespace: str = "", *, max_blocks: int
    ) -> PrefixHandle | None:
        """Evict what is cached of a sequence last, until `end_retention`.

        It stays available to `allocate`, which takes it, the prefix retained longest ago first, when
        nothing else is left. Only whole blocks are retained.

        Args:
            token_ids: `[num_tokens]` int32.
            namespace: the tree to look in.
            max_blocks: most blocks to retain, from the start.

        Returns:
            A handle, which pins nothing and is good for `end_retention` alone; None if not even one
            block is cached.

        Raises:
            TypeError: token_ids is not a one-dimensional int32 array.
        """
        _check_tokens(token_ids)
        most = min(len(token_ids), max_blocks * self._block_size)
        return self._reclaimer.retained.add(token_ids[:most], namespace)

    def end_retention(self, handle: PrefixHandle) -> bool:
        """Let a retained prefix be evicted in its turn; False if it is not retained any more."""
        if handle not in self._reclaimer.retained:
            return False
        self._reclaimer.end_retention(handle)
        return True

    def reset(self) -> int:
        """Drop everything that no handle pins, retained or not. Returns how many blocks became free."""
        return self._reclaimer.clear()

    def check_integrity(self) -> None:
        """Recount everything, in time linear in nodes and blocks.

        Raises:
            IntegrityError: the tree, the handles and the accounting contradict each other.
        """
        retained = self._reclaimer.retained
        raise_on_damage(self._tree, self._allocator, self._handles, retained, self._block_size)
        self._reclaimer.check_integrity()

    def audit(self) -> int:
        """Recount everything and, instead of raising, go on without what cannot be trusted.

        Blocks whose accounting is wrong are never handed out again. A namespace in which one of
        them lies is forgotten: its handles keep their blocks, and nothing matches there until
        it is computed again. The rest of the accounting is set right, and nothing is retained any
        more. O(nodes + blocks).

        Returns:
            How many blocks were quarantined now; 0 if all is well.
        """
        retained = self._reclaimer.retained
        damage = find_damage(self._tree, self._allocator, self._handles, retained, self._block_size)
        if not damage:
            return 0
        for namespace in damage.namespaces:
            self._tree.forget(namespace)
        for node in damage.lost_nodes:
            node.is_alive = False
        self._tree.recount(self._handle_nodes())
        self._allocator.repair(
            damage.blocks,
            (node.block_ids for node in self._tree.nodes()),
            (handle._block_ids for handle in self._handles),
        )
        self._reclaimer.requeue()
        return len(damage.blocks)

    def _pin_path(
        self, above: RadixNode, path: list[RadixNode], first: int, last: int
    ) -> tuple[RadixNode, list[int]]:
        """Pin blocks `first` to `last - 1` of a path and the node that ends where they end.

        Returns:
            That node (`above` if the path has none), and the block ids.
        """
        node, ids = self._tree.cut(above, path, first, last)
        self._count_pins(node, 1)
        self._allocator.pin(ids)
        return node, ids

    def _count_pins(self, node: RadixNode, change: int) -> None:
        """Add to the pins of a node and its ancestors, and make them recent."""
        current: RadixNode | None = node
        while current is not None:
            current.num_pins += change
            current.last_access = self._clock
            current = current.parent

    def _hand_over(
        self, block_table: list[int], first: int, given: list[int], kept: list[int]
    ) -> None:
        """End the private holds on committed blocks; where the tree kept another, refer to that."""
        if given != kept:
            self._deduplicated_blocks += sum(a != b for a, b in zip(given, kept, strict=True))
            block_table[first : first + len(kept)] = kept
        self._allocator.drop_private(given)

    def _new_handle(
        self,
        node: RadixNode | None,
        block_ids: list[int],
        num_tokens: int,
        tail_block: int | None = None,
        tail_len: int = 0,
    ) -> PrefixHandle:
        handle = PrefixHandle(
            node, block_ids, num_tokens=num_tokens, tail_block=tail_block, tail_len=tail_len
        )
        self._handles.add(handle)
        return handle

    def _handle_nodes(self) -> list[RadixNode]:
        return [handle._node for handle in self._handles if handle._node is not None]

    def _has_quarantined(self, ids: list[int]) -> bool:
        return bool(self._allocator.num_quarantined) and any(
            map(self._allocator.is_quarantined, ids)
        )

    def _check_private(self, ids: list[int]) -> None:
        for block in ids:
            if not self._allocator.is_private(block):
                raise ValueError(f"block {block} is not privately held")
        if len(set(ids)) != len(ids):
            raise ValueError("a block is named twice")

    def _check_commit(
        self, handle: PrefixHandle, token_ids: Tokens, block_table: list[int], num_tokens: int
    ) -> None:
        if handle not in self._handles:
            raise ValueError("the handle was released or committed before")
        capacity = min(len(token_ids), len(block_table) * self._block_size)
        if not handle.num_tokens <= num_tokens <= capacity:
            raise ValueError(
                f"num_tokens must be between the handle's {handle.num_tokens} and the {capacity} "
                f"that tokens and blocks allow, not {num_tokens}"
            )
        pinned = handle._block_ids
        if pinned and block_table[len(pinned) - 1] != pinned[-1]:
            raise ValueError("block_table does not start with the blocks of the handle")


def _check_tokens(token_ids: Tokens) -> None:
    # Another dtype would be converted silently, and a hit must mean that the tokens are the same.
    if not isinstance(token_ids, np.ndarray) or token_ids.dtype != np.int32 or token_ids.ndim != 1:
        raise TypeError("token_ids must be a one-dimensional int32 array")
