"""A pinned prefix, as the holder sees it."""

from __future__ import annotations

from .node import RadixNode


class PrefixHandle:
    """The right to read a cached prefix until it is released or committed.

    Made by `PrefixCache.acquire` and `PrefixCache.commit`, never by hand. All of it is read-only.
    """

    __slots__ = ("_block_ids", "_node", "_num_tokens", "_tail_block", "_tail_len")

    def __init__(
        self,
        node: RadixNode | None,
        block_ids: list[int],
        *,
        num_tokens: int,
        tail_block: int | None = None,
        tail_len: int = 0,
    ) -> None:
        self._node = node
        self._block_ids = block_ids
        self._num_tokens = num_tokens
        self._tail_block = tail_block
        self._tail_len = tail_len

    def __repr__(self) -> str:
        return f"PrefixHandle(num_tokens={self._num_tokens}, tail_len={self._tail_len})"

    @property
    def num_tokens(self) -> int:
        """Pinned tokens, a multiple of the block size."""
        return self._num_tokens

    @property
    def block_ids(self) -> list[int]:
        """The pinned blocks in order, num_tokens // block_size of them; a new list each time."""
        return list(self._block_ids)

    @property
    def tail_block(self) -> int | None:
        """A block whose first `tail_len` slots continue the prefix, or None.

        It is not pinned: copy it into a block of your own (`allocate`, which may even return the
        same id) before anything else is written, that is, at the start of the step in which the
        handle was acquired.
        """
        return self._tail_block

    @property
    def tail_len(self) -> int:
        """Valid slots of `tail_block`, fewer than the block size; 0 on a committed handle."""
        return self._tail_len
