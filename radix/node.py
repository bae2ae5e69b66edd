"""One node of the radix tree, and the comparison that decides a hit.

It knows its place in the tree; the rules that keep a tree valid are in tree.py.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]


class RadixNode:
    """Tokens `[start, end)` of a path, and the blocks in which their KV lies.

    Attributes:
        namespace: the tree it belongs to.
        parent: None for the root of a tree, which covers no token.
        start: position of its first token in the path.
        end: one past its last token.
        tokens: `[end - start]` int32, its own copy.
        block_ids: blocks start // block_size to ceil(end / block_size) - 1 of the path. Where the
            node starts inside a block, its first block also holds the earlier tokens of that
            block, and stands in for the parent's last one.
        children: by first token.
        num_pins: handles at or below this node.
        num_retained: retained prefixes that end at or below this node.
        last_access: logical time of the last use.
        num_hits: how many acquisitions passed through it.
        is_queued: whether the eviction queue has an entry for it.
        is_alive: False once it left the tree.
    """

    __slots__ = (
        "block_ids",
        "children",
        "end",
        "is_alive",
        "is_queued",
        "last_access",
        "namespace",
        "num_hits",
        "num_pins",
        "num_retained",
        "parent",
        "start",
        "tokens",
    )

    def __init__(
        self,
        namespace: str,
        parent: RadixNode | None,
        start: int,
        tokens: Tokens,
        block_ids: list[int],
    ) -> None:
        self.namespace = namespace
        self.parent = parent
        self.start = start
        self.end = start + len(tokens)
        self.tokens = tokens
        self.block_ids = block_ids
        self.children: dict[int, RadixNode] = {}
        self.num_pins = 0
        self.num_retained = 0
        self.last_access = 0
        self.num_hits = 0
        self.is_queued = False
        self.is_alive = True

    def __repr__(self) -> str:
        return f"RadixNode([{self.start}, {self.end}), blocks={self.block_ids})"

    @property
    def is_evictable(self) -> bool:
        """Whether it is a leaf, not a root, that no handle pins and nobody wants retained."""
        return (
            self.is_alive
            and self.num_pins == 0
            and self.num_retained == 0
            and not self.children
            and self.parent is not None
        )


def common_prefix_length(first: Tokens, second: Tokens) -> int:
    """How many leading tokens agree, for two arrays of one length above zero."""
    differ = first != second
    index = int(differ.argmax())
    return index if differ[index] else len(first)
