"""The one decoder: a model definition that every family is a configuration of.

It owns weights and the order of operations; arithmetic is in `ramet.kernels`, KV memory is handed in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from ramet.kernels.ops import AttentionShape, Kernels, PackedLinear, StepInputs

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
        gate_up: `[2 * intermediate_size, hidden_size]`, gate first; from `pack_gated_linear`.
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
        # For the pool that it was last used with: all its steps are on one, as a rule.
        self._compiled: tuple[PagedKVPool, Callable[[StepInputs], torch.Tensor]] | None = None
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
        config = self.config
        if self._compiled is None or self._compiled[0] is not kv_pool:
            self._compiled = (kv_pool, self.kernels.compile(partial(self._step, kv_pool)))
        plan = self.kernels.plan_attention(
            AttentionShape(
                config.num_heads, config.num_kv_heads, config.head_dim, kv_pool.block_size
            ),
            cu_seqlens=batch.cu_seqlens,
            kv_lens=batch.kv_lens,
            block_tables=batch.block_tables,
        )
        return self._compiled[1](
            StepInputs(batch.input_ids, batch.positions, batch.slot_mapping, batch.logit_rows, plan)
        )

    def _step(self, kv_pool: PagedKVPool, kernels: Kernels, step: StepInputs) -> torch.Tensor:
        """The model itself, in ops of `kernels` alone."""
        config, weights = self.config, self._weights
        layers = weights.layers
        x = kernels.embedding(step.token_ids, weights.embedding, self._embedding_scale)
        h = kernels.rms_norm(x, layers[0].attention_norm, config.rms_norm_eps)
        for i, layer in enumerate(layers):
            last = i + 1 == len(layers)
            heads = self._attention(kernels, i, h, step, kv_pool)
            if last:
                # Rows no longer meet after the last attention: go on with the wanted ones.
                x, heads = (kernels.take_rows(y, step.logit_rows) for y in (x, heads))
            h, x = self._add(
                kernels, heads, layer.output, x, layer.post_attention_norm, layer.mlp_norm
            )
            gated = kernels.gated_linear(h, layer.gate_up, config.activation)
            next_norm = weights.final_norm if last else layers[i + 1].attention_norm
            h, x = self._add(kernels, gated, layer.down, x, layer.post_mlp_norm, next_norm)
        return kernels.logits(h, weights.head, config.logit_softcap)

    def _attention(
        self, kernels: Kernels, i: int, h: torch.Tensor, step: StepInputs, kv_pool: PagedKVPool
    ) -> torch.Tensor:
        """Every head's result, before the output product: `[num_tokens, num_heads * head_dim]`."""
        config, layer = self.config, self._weights.layers[i]
        counts = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        qkv = kernels.linear(h, layer.qkv).view(-1, sum(counts), config.head_dim)
        q, k, v = qkv.split_with_sizes(counts, dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q = kernels.rms_norm(q, layer.q_norm, config.rms_norm_eps)
            k = kernels.rms_norm(k, layer.k_norm, config.rms_norm_eps)
        cos_sin, k_cache, v_cache = self._cos_sin[i], kv_pool.keys(i), kv_pool.values(i)
        if cos_sin is None:
            kernels.store_kv(k, v, k_cache, v_cache, step.slot_mapping)
        else:
            q = kernels.rotary_store_kv(
                q, k, v, step.positions, cos_sin, k_cache, v_cache, step.slot_mapping
            )
        out, _ = kernels.attention(
            q,
            k_cache,
            v_cache,
            step.plan,
            scale=config.attention_scale,
            window=config.layers[i].window,
            softcap=config.attention_softcap,
        )
        return out.flatten(1)

    def _add(
        self,
        kernels: Kernels,
        y: torch.Tensor,
        weight: PackedLinear,
        x: torch.Tensor,
        post_norm: torch.Tensor | None,
        next_norm: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add the product of y to the stream x: the new stream's norm, and the new stream."""
        eps = self.config.rms_norm_eps
        if post_norm is not None:
            update = kernels.rms_norm(kernels.linear(y, weight), post_norm, eps)
            return kernels.add_rms_norm(update, x, next_norm, eps)
        x = kernels.add_linear(y, weight, x)
        return kernels.rms_norm(x, next_norm, eps), x
