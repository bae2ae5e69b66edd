"""One step's attention plan: the tables of a batch, checked and kept alive beside their native tasks."""

from __future__ import annotations

import torch

from ..ops import AttentionShape
from . import _native


class CpuPlan:
    """One step's attention tasks, with the tables that they point into."""

    def __init__(
        self, native: _native.AttentionPlan, shape: AttentionShape, tables: tuple[torch.Tensor, ...]
    ) -> None:
        self.native = native
        self.shape = shape
        self.num_tokens = native.num_tokens
        self._tables = tables


def make_plan(
    engine: _native.Engine,
    shape: AttentionShape,
    *,
    cu_seqlens: torch.Tensor,
    kv_lens: torch.Tensor,
    block_tables: torch.Tensor,
    share_prefixes: bool,
) -> CpuPlan:
    """See `Kernels.plan_attention` and, of `share_prefixes`, `CpuKernels`."""
    for name, tensor, dims in (
        ("cu_seqlens", cu_seqlens, 1),
        ("kv_lens", kv_lens, 1),
        ("block_tables", block_tables, 2),
    ):
        if tensor.dtype != torch.int32 or tensor.dim() != dims:
            raise ValueError(
                f"{name} must be int32 with {dims} dimension(s), not {tensor.dtype} "
                f"{list(tensor.shape)}"
            )
    num_seqs = kv_lens.shape[0]
    if cu_seqlens.shape[0] != num_seqs + 1 or block_tables.shape[0] != num_seqs:
        raise ValueError(
            f"cu_seqlens {list(cu_seqlens.shape)} and block_tables {list(block_tables.shape)} "
            f"must have {num_seqs + 1} and {num_seqs} rows for {num_seqs} kv_lens"
        )
    tables = tuple(tensor.contiguous() for tensor in (cu_seqlens, kv_lens, block_tables))
    native = engine.plan(
        tables[0].data_ptr(),
        tables[1].data_ptr(),
        tables[2].data_ptr(),
        num_seqs,
        block_tables.shape[1],
        shape.num_heads,
        shape.num_kv_heads,
        shape.head_dim,
        shape.block_size,
        share_prefixes,
    )
    return CpuPlan(native, shape, tables)
