"""Fused ops as the plain ones that they stand for, for implementations that have no better way.

It owns no arithmetic. What is missing here is what an implementation must bring.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from .ops import Kernels, PackedLinear, StepInputs


class ComposedKernels(Kernels):
    """A base for implementations: every fused op of `Kernels` in terms of the others."""

    def add_linear(
        self, x: torch.Tensor, weight: PackedLinear, residual: torch.Tensor
    ) -> torch.Tensor:
        """See `Kernels.add_linear`."""
        return residual + self.linear(x, weight)

    def gated_linear(self, x: torch.Tensor, weight: PackedLinear, activation: str) -> torch.Tensor:
        """See `Kernels.gated_linear`."""
        return self.gated_activation(self.linear(x, weight), activation)

    def logits(
        self, x: torch.Tensor, weight: PackedLinear, softcap: float | None = None
    ) -> torch.Tensor:
        """See `Kernels.logits`."""
        logits = self.linear(x, weight).float()
        return logits if softcap is None else softcap * torch.tanh(logits / softcap)

    def rotary_store_kv(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        positions: torch.Tensor,
        cos_sin: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> torch.Tensor:
        """See `Kernels.rotary_store_kv`."""
        q, k = self.rotary_embedding(q, k, positions, cos_sin)
        self.store_kv(k, v, k_cache, v_cache, slot_mapping)
        return q

    def compile(
        self, forward: Callable[[Kernels, StepInputs], torch.Tensor]
    ) -> Callable[[StepInputs], torch.Tensor]:
        """See `Kernels.compile`; calls it for every step."""
        return partial(forward, self)
