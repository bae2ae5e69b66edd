"""The reference with torch's fused attention for CPUs in place of its products and softmax.

That operator streams the keys, so no matrix of scores is made, and computes bfloat16 natively. It has no
soft cap: tiles with one take the path of the reference.
"""

from __future__ import annotations

import torch

from .reference import ReferenceKernels


class SdpaKernels(ReferenceKernels):
    """`ReferenceKernels` with fused attention; CPU only."""

    @property
    def name(self) -> str:
        """Its name in `ops.load`."""
        return "sdpa"

    def masked_attention(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        hidden: torch.Tensor,
        scale: float,
        softcap: float | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `ReferenceKernels.masked_attention`."""
        if softcap is not None:
            return super().masked_attention(q, k, v, hidden, scale, softcap)
        batch, num_rows, num_heads, head_dim = q.shape
        num_kv_heads = k.shape[2]
        heads = q.transpose(1, 2)
        if num_rows == 1:
            # The query heads of one KV head as rows of one product, so that its keys are read once.
            heads = q.reshape(batch, num_kv_heads, num_heads // num_kv_heads, head_dim)
        bias = torch.zeros(hidden.shape, dtype=q.dtype).masked_fill_(hidden, -torch.inf)
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            heads,
            k.transpose(1, 2).to(q.dtype),
            v.transpose(1, 2).to(q.dtype),
            attn_mask=bias[:, None],
            scale=scale,
        )
        if num_rows == 1:
            return out.reshape(q.shape), lse.reshape(batch, 1, num_heads)
        return out.transpose(1, 2), lse.transpose(1, 2)
