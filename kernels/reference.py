"""Every op in readable torch: the oracle that other implementations are tested against.

Right on every device and in every float dtype, and batched: no loop over tokens. It does not try to be
quick beyond that; products run in float32. Quantized weights stay as small as they are: each op expands
the one that it uses, every time, which is slow.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from .composed import ComposedKernels
from .kv_rows import from_rows, to_rows
from .merge import merge_states
from .ops import ACTIVATIONS, AttentionPlan, AttentionShape, PackedLinear
from .plan import TiledPlan
from .quantization import QuantizedWeight, dequantize, take


@dataclass(frozen=True, slots=True)
class DenseLinear:
    """A weight as it came: `[out_features, in_features]`, and `[out_features]` bias or None.

    Raises:
        ValueError: the weight is not a matrix, or the bias does not fit it.
    """

    weight: torch.Tensor | QuantizedWeight
    bias: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if len(self.weight.shape) != 2:
            raise ValueError(f"a weight must be a matrix, not {list(self.weight.shape)}")
        if self.bias is not None and self.bias.shape != self.weight.shape[:1]:
            raise ValueError(
                f"a bias of {list(self.bias.shape)} does not fit a weight of "
                f"{list(self.weight.shape)}"
            )

    @property
    def out_features(self) -> int:
        """Rows of the weight."""
        return int(self.weight.shape[0])

    @property
    def in_features(self) -> int:
        """Columns of the weight."""
        return int(self.weight.shape[1])

    def matrix(self) -> torch.Tensor:
        """The weight; a quantized one is expanded."""
        return self.weight if isinstance(self.weight, torch.Tensor) else dequantize(self.weight)

    def rows(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Some rows of it."""
        if isinstance(self.weight, torch.Tensor):
            return F.embedding(token_ids, self.weight)
        return dequantize(take(self.weight, token_ids))


class ReferenceKernels(ComposedKernels):
    """The `Kernels` protocol in plain torch."""

    @property
    def name(self) -> str:
        """Its name in `ops.load`."""
        return "reference"

    @property
    def row_invariant(self) -> bool:
        """See `Kernels.row_invariant`."""
        return False

    def pack_linear(
        self, weight: torch.Tensor | QuantizedWeight, bias: torch.Tensor | None = None
    ) -> DenseLinear:
        """Keep the tensors as they are."""
        return DenseLinear(weight, bias)

    def pack_gated_linear(
        self, weight: torch.Tensor | QuantizedWeight, bias: torch.Tensor | None = None
    ) -> DenseLinear:
        """Keep the tensors as they are."""
        if weight.shape[0] % 2:
            raise ValueError(f"a gated weight has an even number of rows, not {weight.shape[0]}")
        return self.pack_linear(weight, bias)

    def linear(self, x: torch.Tensor, weight: PackedLinear) -> torch.Tensor:
        """See `Kernels.linear`."""
        dense = _dense(weight)
        return F.linear(x, dense.matrix(), dense.bias)

    def embedding(
        self, token_ids: torch.Tensor, weight: PackedLinear, scale: float | None = None
    ) -> torch.Tensor:
        """See `Kernels.embedding`."""
        rows = _dense(weight).rows(token_ids)
        return rows if scale is None else rows * scale

    def take_rows(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """See `Kernels.take_rows`."""
        return x[rows]

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """See `Kernels.rms_norm`."""
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        return (wide * scale * weight.float()).to(x.dtype)

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Kernels.add_rms_norm`."""
        total = residual + x
        return self.rms_norm(total, weight, eps), total

    def gated_activation(self, gate_up: torch.Tensor, activation: str) -> torch.Tensor:
        """See `Kernels.gated_activation`."""
        gate, up = gate_up.chunk(2, dim=-1)
        if activation == "silu":
            return F.silu(gate) * up
        if activation == "gelu_tanh":
            return F.gelu(gate, approximate="tanh") * up
        raise ValueError(f"unknown activation {activation!r}; known are {', '.join(ACTIVATIONS)}")

    def rotary_embedding(
        self, q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Kernels.rotary_embedding`."""
        cos, sin = cos_sin[positions].unsqueeze(1).chunk(2, dim=-1)
        return _rotate(q, cos, sin), _rotate(k, cos, sin)

    def store_kv(
        self,
        k: torch.Tensor,
        v: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """See `Kernels.store_kv`."""
        for heads, cache in ((k, k_cache), (v, v_cache)):
            rows = to_rows(heads, cache.dtype)
            cache.view(-1, *cache.shape[2:]).index_copy_(0, slot_mapping, rows)

    def plan_attention(
        self,
        shape: AttentionShape,
        *,
        cu_seqlens: torch.Tensor,
        kv_lens: torch.Tensor,
        block_tables: torch.Tensor,
    ) -> TiledPlan:
        """See `Kernels.plan_attention`."""
        return TiledPlan(shape, cu_seqlens, kv_lens, block_tables)

    def attention(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        plan: AttentionPlan,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Kernels.attention`."""
        assert isinstance(plan, TiledPlan)
        if q.shape != (plan.num_tokens, plan.shape.num_heads, plan.shape.head_dim):
            raise ValueError(
                f"q {list(q.shape)} is not the plan's {plan.num_tokens} rows of {plan.shape}"
            )
        out = torch.empty_like(q)
        lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
        for group in plan.groups(window):
            keys, values = (_read(cache, group.block_ids) for cache in (k_cache, v_cache))
            for tile in group.tiles:
                kv_positions = group.kv_positions[:, None, tile.slots]
                hidden = kv_positions > tile.positions[:, :, None]
                if window is not None:
                    hidden |= kv_positions <= tile.positions[:, :, None] - window
                tile_out, tile_lse = self.masked_attention(
                    q[tile.rows],
                    keys[:, tile.slots],
                    values[:, tile.slots],
                    hidden,
                    scale,
                    softcap,
                )
                out[tile.rows] = tile_out
                lse[tile.rows] = tile_lse
        return out, lse

    def masked_attention(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        hidden: torch.Tensor,
        scale: float,
        softcap: float | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Attention of one tile, by its definition, with the heads of a KV head as extra rows.

        Args:
            q: `[batch, num_rows, num_heads, head_dim]`.
            k, v: `[batch, num_slots, num_kv_heads, head_dim]`.
            hidden: `[batch, num_rows, num_slots]` bool; every row sees at least one slot.
            scale, softcap: as in `attention`.

        Returns:
            (out, lse) of q's shape in q's dtype, and `[batch, num_rows, num_heads]` float32.
        """
        batch, num_rows, num_heads, head_dim = q.shape
        num_kv_heads = k.shape[2]
        groups = (batch, num_rows, num_kv_heads, num_heads // num_kv_heads, head_dim)
        grouped = q.float().reshape(groups)
        scores = torch.einsum("bnhgd,bshd->bhgns", grouped, k.float()) * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        scores = scores.masked_fill(hidden[:, None, None], -torch.inf)
        lse = scores.logsumexp(-1)
        weights = torch.exp(scores - lse.unsqueeze(-1))
        out = torch.einsum("bhgns,bshd->bnhgd", weights, v.float())
        return out.flatten(2, 3).to(q.dtype), lse.flatten(1, 2).transpose(1, 2)

    def merge_states(
        self, out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Kernels.merge_states`."""
        return merge_states(out_a, lse_a, out_b, lse_b)


def _dense(weight: PackedLinear) -> DenseLinear:
    assert isinstance(weight, DenseLinear)
    return weight


def _read(cache: torch.Tensor, block_ids: torch.Tensor) -> torch.Tensor:
    """Blocks side by side: `[group_size, num_slots, num_kv_heads, head_dim]`, of int8 in float32."""
    blocks = cache.index_select(0, block_ids.flatten())
    rows = blocks.view(block_ids.shape[0], -1, *cache.shape[2:])
    return from_rows(rows)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    rotary_dim = 2 * cos.shape[-1]
    first, second = x[..., :rotary_dim].float().chunk(2, dim=-1)
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return torch.cat((rotated.to(x.dtype), x[..., rotary_dim:]), dim=-1)
