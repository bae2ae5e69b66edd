"""Merging attention over two sets of keys, in torch: what every implementation does the same way."""

from __future__ import annotations

import torch


def merge_states(
    out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `ops.Kernels.merge_states`."""
    top = torch.maximum(lse_a, lse_b)
    # Both sets empty: any finite reference makes both weights exp(-inf) = 0.
    top = top.masked_fill(top == -torch.inf, 0.0)
    weight_a, weight_b = torch.exp(lse_a - top), torch.exp(lse_b - top)
    total = weight_a + weight_b
    mixed = weight_a.unsqueeze(-1) * out_a.float() + weight_b.unsqueeze(-1) * out_b.float()
    # Where a set is not empty the larger weight is 1, so the clamp only spares 0 / 0.
    out = mixed / total.clamp(min=1.0).unsqueeze(-1)
    return out.to(out_a.dtype), top + total.log()
