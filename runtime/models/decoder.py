"""The one decoder: a model definition that every family is a configuration of.

It owns weights and the order of operations; arithmetic is in `ramet.kernels`, KV memory is handed in.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ramet.kernels.ops import AttentionPlan, AttentionShape, Kernels, PackedLinear

from ..execution.batch import ForwardBatch
from ..execution.kv_pool import PagedKVPool
from .config import ModelConfig
from .rope import RopeConfig, cos_sin_table


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One layer. Norm weights are float32 with any offset added; None where the family has no such norm.

    Attributes:
        attention_norm: `[hidden_size]`, before attention.
        qkv: `[(num_heads + 2 * num_kv_heads) * head_dim, hidden_size]`, queries, keys, values.
        q_norm, k_norm: `[head_dim]`.
        output: `[hidden_size, num_heads * head_dim]`.
        post_attention_norm: `[hidden_size]`, after attention, before the sum.
        mlp_norm: `[hidden_size]`, before the MLP.
        gate_up: `[2 * intermediate_size, hidden_size]`, gate first.
        down: `[hidden_size, intermediate_size]`.
        post_mlp_norm: `[hidden_size]`, after the MLP, before the sum.
    """

    attention_norm: torch.Tensor
    qkv: PackedLinear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    output: PackedLinear
    post_attention_norm: torch.Tensor | None
    mlp_norm: torch.Tensor
    gate_up: PackedLinear
    down: PackedLinear
    post_mlp_norm: torch.Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderWeights:
    """All weights; `head` is `embedding` itself where they are tied."""

    embedding: PackedLinear
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor
    head: PackedLinear


class Decoder:
    """A decoder with its weights, ready to run.

    Args:
        config: what the model is.
        weights: packed by the same `kernels`.
        kernels: who computes.
        dtype: of weights and activations.
        device: of weights and activations.
        max_positions: positions that the rope tables cover; the longest sequence it will see.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: DecoderWeights,
        *,
        kernels: Kernels,
        dtype: torch.dtype,
        device: torch.device,
        max_positions: int,
    ) -> None:
        self.config = config
        self.kernels = kernels
        self.dtype = dtype
        self.device = device
        self.max_positions = max_positions
        self._weights = weights
        tables: dict[RopeConfig, torch.Tensor] = {}
        for rope in {layer.rope for layer in config.layers}:
            if rope is not None:
                tables[rope] = cos_sin_table(rope, max_positions).to(device)
        self._cos_sin = [tables[layer.rope] if layer.rope else None for layer in config.layers]
        # Rounded to the model's dtype, as it was in training.
        self._embedding_scale = (
            float(torch.tensor(config.hidden_size**0.5).to(dtype))
            if config.family.scaled_embedding
            else None
        )

    def forward(self, batch: ForwardBatch, kv_pool: PagedKVPool) -> torch.Tensor:
        """Logits of `batch.logit_rows`: `[num_logit_rows, vocab_size]` float32.

        Writes the KV of every token to `batch.slot_mapping` in every layer of the pool.
        `batch.block_copies` is the caller's to carry out first.
        """
        config, kernels, layers = self.config, self.kernels, self._weights.layers
        plan = kernels.plan_attention(
            AttentionShape(
                config.num_heads, config.num_kv_heads, config.head_dim, kv_pool.block_size
            ),
            cu_seqlens=batch.cu_seqlens,
            kv_lens=batch.kv_lens,
            block_tables=batch.block_tables,
        )
        x = self._embed(batch.input_ids)
        h = self._norm(x, layers[0].attention_norm)
        for i, layer in enumerate(layers):
            update = self._attention(i, h, batch, kv_pool, plan)
            if i + 1 == len(layers):
                # Rows no longer meet after the last attention: go on with the wanted ones.
                x, update = x[batch.logit_rows], update[batch.logit_rows]
            h, x = self._add_norm(update, x, layer.post_attention_norm, layer.mlp_norm)
            update = self._mlp(layer, h)
            last = i + 1 == len(layers)
            next_norm = self._weights.final_norm if last else layers[i + 1].attention_norm
            h, x = self._add_norm(update, x, layer.post_mlp_norm, next_norm)
        return self._logits(h)

    def _embed(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.kernels.embedding(input_ids, self._weights.embedding)
        return x if self._embedding_scale is None else x * self._embedding_scale

    def _attention(
        self,
        i: int,
        h: torch.Tensor,
        batch: ForwardBatch,
        kv_pool: PagedKVPool,
        plan: AttentionPlan,
    ) -> torch.Tensor:
        config, kernels, layer = self.config, self.kernels, self._weights.layers[i]
        heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        qkv = kernels.linear(h, layer.qkv).view(-1, sum(heads), config.head_dim)
        q, k, v = qkv.split_with_sizes(heads, dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._norm(q, layer.q_norm), self._norm(k, layer.k_norm)
        cos_sin = self._cos_sin[i]
        if cos_sin is not None:
            q, k = kernels.rotary_embedding(q, k, batch.positions, cos_sin)
        k_cache, v_cache = kv_pool.keys(i), kv_pool.values(i)
        kernels.store_kv(k, v, k_cache, v_cache, batch.slot_mapping)
        out, _ = kernels.attention(
            q,
            k_cache,
            v_cache,
            plan,
            scale=config.attention_scale,
            window=config.layers[i].window,
            softcap=config.attention_softcap,
        )
        return kernels.linear(out.flatten(1), layer.output)

    def _mlp(self, layer: LayerWeights, h: torch.Tensor) -> torch.Tensor:
        gate_up = self.kernels.linear(h, layer.gate_up)
        return self.kernels.linear(
            self.kernels.gated_activation(gate_up, self.config.activation), layer.down
        )

    def _logits(self, h: torch.Tensor) -> torch.Tensor:
        logits = self.kernels.linear(h, self._weights.head).float()
        softcap = self.config.logit_softcap
        return logits if softcap is None else softcap * torch.tanh(logits / softcap)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self.kernels.rms_norm(x, weight, self.config.rms_norm_eps)

    def _add_norm(
        self,
        update: torch.Tensor,
        x: torch.Tensor,
        post_norm: torch.Tensor | None,
        next_norm: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if post_norm is not None:
            update = self._norm(update, post_norm)
        return self.kernels.add_rms_norm(update, x, next_norm, self.config.rms_norm_eps)
