"""Rows of a KV cache: one head of one token each, as floats or in 8 bits.

    float32, bfloat16, float16    the head itself, rounded: head_dim elements
    int8                          head_dim values from -127 to 127, then the bytes of one float32: the scale
                                  by which each value is multiplied when it is read

A row depends on its own head alone, whatever else is stored with it, and a copy of a block is a copy of all
that belongs to its rows. How a block holds them, and how fast they are stored and read, is each
implementation's own business.
"""

from __future__ import annotations

import torch

SCALE_BYTES = 4

_STEPS = 127
# Below this a head counts as zero: the inverse of its scale would not be finite.
_TINY = 1e-30


MAX_INT8_HEAD_DIM = 1024
"""Longest head that the native kernels write as a row of int8."""


def row_bytes(head_dim: int, dtype: torch.dtype) -> int:
    """Bytes of a row of a cache of that dtype."""
    return row_size(head_dim, dtype) * dtype.itemsize


def row_size(head_dim: int, dtype: torch.dtype) -> int:
    """Elements of a row, the last dimension of a cache of that dtype."""
    return head_dim + SCALE_BYTES if dtype == torch.int8 else head_dim


def to_rows(heads: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`heads: [..., head_dim]` of any float dtype as rows `[..., row_size]` of a cache's dtype.

    In int8 the scale is the largest magnitude over 127, and a value is the nearest integer, ties to even.
    A head with something infinite or NaN in it reads as no finite numbers.
    """
    if dtype != torch.int8:
        return heads.to(dtype)
    wide = heads.float()
    top = wide.abs().amax(-1, keepdim=True)
    inverse = torch.where(top > _TINY, top.new_tensor(_STEPS) / top, 0.0)
    values = (wide * inverse).round().nan_to_num(0.0).to(torch.int8)
    scale = top / _STEPS
    return torch.cat((values, scale.view(torch.int8)), dim=-1)


def from_rows(rows: torch.Tensor) -> torch.Tensor:
    """The heads `[..., head_dim]` that rows `[..., row_size]` stand for, those of int8 in float32."""
    if rows.dtype != torch.int8:
        return rows
    values, scale = rows.split_with_sizes((rows.shape[-1] - SCALE_BYTES, SCALE_BYTES), dim=-1)
    return values.float() * scale.contiguous().view(torch.float32)
