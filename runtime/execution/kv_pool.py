"""The KV memory: one tensor for all layers, addressed by block id.

It owns the bytes; who owns which block is decided in radix/.
"""

from __future__ import annotations

import mmap
from math import prod

import torch

from ramet.kernels.kv_rows import row_size


class PagedKVPool:
    """Keys and values of every block.

    Layout `[2, num_layers, num_blocks, block_size, num_kv_heads, row_size]`, one layer's keys contiguous.
    A row is a head of one token as `ramet.kernels.kv_rows` says, scale included. How a block holds its rows
    is the kernels' own business; whole blocks are copied as they are.

    Args:
        num_blocks: blocks to hold.
        block_size: tokens per block.
        dtype: of the rows, a float's or int8.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        size = row_size(head_dim, dtype)
        shape = (2, num_layers, num_blocks, block_size, num_kv_heads, size)
        # Zeros, not empty: a masked slot that was never written must not hold NaN, since 0 * NaN is NaN.
        if device.type == "cpu":
            self.data = _lazy_zeros(shape, dtype)
        else:
            self.data = torch.zeros(shape, dtype=dtype, device=device)
        self.num_blocks = num_blocks
        self.block_size = block_size

    def keys(self, layer: int) -> torch.Tensor:
        """Keys of one layer: `[num_blocks, block_size, num_kv_heads, row_size]`, a view."""
        return self.data[0, layer]

    def values(self, layer: int) -> torch.Tensor:
        """Values of one layer: `[num_blocks, block_size, num_kv_heads, row_size]`, a view."""
        return self.data[1, layer]

    def copy_blocks(self, copies: torch.Tensor) -> None:
        """Copy whole blocks in every layer, `copies: [num_copies, 2]` of (source, destination).

        All sources are read before any destination is written.
        """
        if copies.shape[0]:
            self.data[:, :, copies[:, 1]] = self.data[:, :, copies[:, 0]]


def _lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Zeros that take no memory until they are written, in huge pages where the system has them.

    The tensor keeps the mapping alive.
    """
    memory = mmap.mmap(-1, prod(shape) * dtype.itemsize)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
