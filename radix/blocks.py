"""Who holds which block: counters per block id, and the list of the free ones.

It does not know tokens, nodes or bytes. A block can be held in three ways at once:

    tree references   nodes of the radix tree whose KV lies in it
    pins              handles that list it
    one private hold  the request that `take` gave it to

A block without holder is free, one with tree references is cached, any other is private.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

# Below so many ids a plain loop beats numpy's fixed cost per call.
_VECTOR_THRESHOLD = 24


class IntegrityError(RuntimeError):
    """The accounting of blocks or the shape of the tree contradicts itself."""


class BlockAllocator:
    """Counts holders of `num_blocks` blocks and hands out the free ones.

    Every method is O(len(ids)); the totals are kept as they change. A quarantined block is never
    handed out again; it counts as quarantined and as nothing else.

    Args:
        num_blocks: blocks in all, ids 0 to num_blocks - 1.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be at least 1, not {num_blocks}")
        self.num_blocks = num_blocks
        # Arrays for fast single items, numpy views of the same memory for long lists.
        self._tree_refs = array("i", [0]) * num_blocks
        self._pins = array("i", [0]) * num_blocks
        self._private = array("b", [0]) * num_blocks
        self._tree_refs_view = np.frombuffer(self._tree_refs, dtype=np.int32)
        self._pins_view = np.frombuffer(self._pins, dtype=np.int32)
        self._private_view = np.frombuffer(self._private, dtype=np.int8)
        # A stack: the block freed last is the one whose memory is still in a cache.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._quarantined: set[int] = set()
        self.num_cached = 0
        self.num_pinned = 0
        self.num_evictable = 0
        self._num_outside = 0

    @property
    def num_free(self) -> int:
        """Blocks without holder."""
        return len(self._free)

    @property
    def num_private(self) -> int:
        """Blocks held by requests and not in the tree, the quarantined ones excepted."""
        return self._num_outside - len(self._quarantined)

    @property
    def num_quarantined(self) -> int:
        """Blocks taken out of circulation."""
        return len(self._quarantined)

    def take(self, num_blocks: int) -> list[int]:
        """Hand out free blocks, privately held. Raises IntegrityError if there are too few."""
        if num_blocks == 0:
            return []
        if num_blocks > len(self._free):
            raise IntegrityError(f"{num_blocks} blocks asked for, {len(self._free)} are free")
        ids = self._free[: -num_blocks - 1 : -1]
        del self._free[-num_blocks:]
        for block in ids:
            self._private[block] = 1
        self._num_outside += num_blocks
        return ids

    def is_private(self, block: int) -> bool:
        """Whether somebody holds the block privately. Raises ValueError for an id out of range."""
        if not 0 <= block < self.num_blocks:
            raise ValueError(f"block {block} is not one of {self.num_blocks} blocks")
        return self._private[block] != 0

    def is_quarantined(self, block: int) -> bool:
        """Whether the block is out of circulation."""
        return block in self._quarantined

    def frees_with_reference(self, block: int) -> bool:
        """Whether dropping one tree reference would free the block."""
        return self._tree_refs[block] == 1 and not self._private[block] and not self._pins[block]

    def drop_private(self, ids: Iterable[int]) -> None:
        """End private holds; a block that nobody else holds becomes free."""
        private, refs, pins, free = self._private, self._tree_refs, self._pins, self._free
        for block in ids:
            if block in self._quarantined:
                continue
            if not private[block]:
                raise IntegrityError(f"block {block} is not privately held")
            private[block] = 0
            if pins[block]:
                continue
            if refs[block]:
                self.num_evictable += 1
            else:
                self._num_outside -= 1
                free.append(block)

    def add_references(self, ids: Iterable[int]) -> None:
        """Count one more node for each block. Raises IntegrityError for a block nobody holds."""
        refs = self._tree_refs
        for block in ids:
            if not refs[block]:
                if not self._private[block] and not self._pins[block]:
                    raise IntegrityError(f"block {block} enters the tree, yet nobody holds it")
                self.num_cached += 1
                self._num_outside -= 1
            refs[block] += 1

    def drop_references(self, ids: Iterable[int]) -> None:
        """Count one node less for each block; a block that nobody else holds becomes free."""
        refs = self._tree_refs
        for block in ids:
            if refs[block] <= 0:
                raise IntegrityError(f"block {block} leaves the tree, yet is not in it")
            refs[block] -= 1
            if refs[block]:
                continue
            self.num_cached -= 1
            if self._private[block] or self._pins[block]:
                self._num_outside += 1
            else:
                self.num_evictable -= 1
                self._free.append(block)

    def pin(self, ids: Sequence[int]) -> None:
        """Count one more handle for each block; the ids are distinct and in the tree."""
        if len(ids) >= _VECTOR_THRESHOLD:
            self._pin_many(np.array(ids, dtype=np.intp))
            return
        refs, pins = self._tree_refs, self._pins
        for block in ids:
            if not refs[block]:
                raise IntegrityError(f"block {block} is pinned, yet is not in the tree")
            if not pins[block]:
                self.num_pinned += 1
                self.num_evictable -= not self._private[block]
            pins[block] += 1

    def _pin_many(self, ids: NDArray[np.intp]) -> None:
        if not self._tree_refs_view[ids].all():
            raise IntegrityError("a block is pinned that is not in the tree")
        before = self._pins_view[ids]
        self._pins_view[ids] = before + 1
        fresh = ids[before == 0]
        self.num_pinned += len(fresh)
        self.num_evictable -= len(fresh) - int(self._private_view[fresh].sum())

    def unpin(self, ids: Sequence[int]) -> None:
        """Count one handle less for each block; a block that nobody else holds becomes free."""
        if len(ids) >= _VECTOR_THRESHOLD:
            self._unpin_many(np.array(ids, dtype=np.intp))
            return
        refs, pins = self._tree_refs, self._pins
        for block in ids:
            if pins[block] <= 0:
                raise IntegrityError(f"block {block} is unpinned, yet is not pinned")
            pins[block] -= 1
            if pins[block]:
                continue
            self.num_pinned -= 1
            if self._private[block]:
                continue
            if refs[block]:
                self.num_evictable += 1
            else:
                self._free_unpinned(block)

    def _unpin_many(self, ids: NDArray[np.intp]) -> None:
        after = self._pins_view[ids] - 1
        if (after < 0).any():
            raise IntegrityError("a block is unpinned that is not pinned")
        self._pins_view[ids] = after
        released = ids[after == 0]
        self.num_pinned -= len(released)
        unheld = released[self._private_view[released] == 0]
        in_tree = self._tree_refs_view[unheld] != 0
        self.num_evictable += int(in_tree.sum())
        if not in_tree.all():
            for block in unheld[~in_tree].tolist():
                self._free_unpinned(block)

    def _free_unpinned(self, block: int) -> None:
        # Nothing but the handle held it: its tree was given up by an audit in the meantime.
        self._num_outside -= 1
        self._free.append(block)

    def find_problems(
        self, tree_refs: Mapping[int, int], pins: Mapping[int, int]
    ) -> Iterator[tuple[int, str]]:
        """Compare with a recount of tree references and pins; yield (block id or -1, sentence)."""
        for block in tree_refs.keys() | pins.keys():
            if not 0 <= block < self.num_blocks:
                yield block, f"block {block} is not one of {self.num_blocks} blocks"
        free = Counter(self._free)
        for block in range(self.num_blocks):
            recorded = (self._tree_refs[block], self._pins[block])
            counted = (tree_refs.get(block, 0), pins.get(block, 0))
            if recorded != counted:
                yield (
                    block,
                    f"block {block} has (references, pins) {recorded}, counted are {counted}",
                )
            is_held = any(recorded) or any(counted) or self._private[block] != 0
            if free[block] != (not is_held):
                yield block, f"block {block} is {free[block]} times free, held is {is_held}"
            if block in self._quarantined and not self._private[block]:
                yield block, f"block {block} is quarantined, yet not kept"
        recorded_totals = (self.num_cached, self.num_pinned, self.num_evictable, self._num_outside)
        if recorded_totals != (totals := self._count_totals()):
            yield (
                -1,
                "(cached, pinned, evictable, private) blocks are counted as "
                f"{recorded_totals}, there are {totals}",
            )

    def repair(
        self,
        suspects: Iterable[int],
        referenced: Iterable[Sequence[int]],
        pinned: Iterable[Sequence[int]],
    ) -> None:
        """Quarantine blocks and count anew.

        Args:
            suspects: ids to take out of circulation.
            referenced: the blocks of every node.
            pinned: the blocks of every handle.
        """
        self._quarantined.update(suspects)
        self._tree_refs_view[:] = 0
        self._pins_view[:] = 0
        for ids in referenced:
            for block in ids:
                self._tree_refs[block] += 1
        for ids in pinned:
            for block in ids:
                self._pins[block] += 1
        for block in self._quarantined:
            self._private[block] = 1
        held = (self._tree_refs_view != 0) | (self._pins_view != 0) | (self._private_view != 0)
        self._free = np.flatnonzero(~held)[::-1].tolist()
        totals = self._count_totals()
        self.num_cached, self.num_pinned, self.num_evictable, self._num_outside = totals

    def _count_totals(self) -> tuple[int, int, int, int]:
        """Cached, pinned, evictable blocks, and blocks that are held outside the tree only."""
        is_cached, is_pinned = self._tree_refs_view > 0, self._pins_view > 0
        is_private = self._private_view != 0
        return (
            int(is_cached.sum()),
            int(is_pinned.sum()),
            int((is_cached & ~is_pinned & ~is_private).sum()),
            int((~is_cached & (is_pinned | is_private)).sum()),
        )
