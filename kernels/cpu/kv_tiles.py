"""Where the rows of a cache lie in the tiles that the native kernels keep (drawn in kernels/README.md).

They write and read tiles themselves; this says the same in torch, for whoever wants a cache made of rows.
"""

from __future__ import annotations

import torch

from ..kv_rows import SCALE_BYTES

_TILE = 16
_WORD_BYTES = 4
_MAX_HEAD_DIM = 1024


def in_tiles(head_dim: int, block_size: int) -> bool:
    """Whether a cache of such blocks is in tiles; others are rows in the order of its dimensions."""
    return head_dim % 32 == 0 and head_dim <= _MAX_HEAD_DIM and block_size % _TILE == 0


def to_tiles(rows: torch.Tensor, part: str) -> torch.Tensor:
    """A cache of `rows: [num_blocks, block_size, num_kv_heads, row_size]`, in tiles where it is to be.

    Args:
        part: "keys" or "values".
    """
    num_blocks, block_size, num_heads, row_size = rows.shape
    head_dim = row_size - (SCALE_BYTES if rows.dtype == torch.int8 else 0)
    if not in_tiles(head_dim, block_size):
        return rows.clone()
    per_word = _WORD_BYTES // rows.dtype.itemsize
    tiles = rows.view(num_blocks, -1, _TILE, num_heads, row_size).permute(0, 3, 1, 2, 4)
    if part == "keys":
        words = tiles.reshape(*tiles.shape[:-1], -1, per_word)
        turned = words.transpose(-3, -2).flatten(-3)
    else:
        heads, scales = tiles[..., :head_dim], tiles[..., head_dim:]
        words = heads.reshape(*tiles.shape[:3], -1, per_word, head_dim).transpose(-2, -1)
        turned = torch.cat((words.flatten(-3), scales.flatten(-2)), dim=-1)
    return turned.reshape(rows.shape)
