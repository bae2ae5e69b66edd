"""The public surface of kernels/: what every implementation provides, and which one to use.

A model is written once, as a function of a `Kernels` and a `StepInputs`, and handed to `compile`; a step
calls `plan_attention` once and then what `compile` returned. Implementations are objects handed in by
constructor, never globals, so two of them can be compared in one process.

    composed    fused ops as the plain ones that they stand for            kernels/composed.py
    reference   readable torch, every device, the oracle of the tests      kernels/reference.py
    sdpa        the same, with torch's fused CPU attention                 kernels/sdpa.py
    cpu         C++ for CPUs: float32 and bfloat16, exact in any batch     kernels/cpu/kernels.py

Dims: num_tokens packed rows of all sequences, num_seqs sequences, num_slots = num_blocks * block_size.
KV tensors are `[num_blocks, block_size, num_kv_heads, row_size]`; rows are as `kv_rows` says, head_dim
elements of a float dtype or head_dim + 4 of int8. How a block holds its rows is the implementation's own
business: it is zeros at first, written by `store_kv`, read by `attention`, and may be copied whole.
Inputs are never written to, except the caches of `store_kv`; results are new tensors. A fused op rounds
where the ops it stands for do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Protocol, runtime_checkable

import torch

from .quantization import QuantizedWeight

logger = logging.getLogger(__name__)

NAMES = ("reference", "sdpa", "cpu")
ACTIVATIONS = ("silu", "gelu_tanh")


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What is the same for every step of a model: head counts, head size and block size.

    Raises:
        ValueError: a field is below one, or num_kv_heads does not divide num_heads.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int

    def __post_init__(self) -> None:
        if min(self.num_heads, self.num_kv_heads, self.head_dim, self.block_size) < 1:
            raise ValueError(f"every field must be at least 1: {self}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_kv_heads ({self.num_kv_heads}) must divide num_heads ({self.num_heads})"
            )


class PackedLinear(Protocol):
    """A weight in the layout that one implementation streams; opaque to everybody else."""

    @property
    def out_features(self) -> int:
        """Rows of the weight."""

    @property
    def in_features(self) -> int:
        """Columns of the weight."""


class AttentionPlan(Protocol):
    """What one implementation prepared for one step; opaque to everybody else."""

    @property
    def num_tokens(self) -> int:
        """Query rows that the plan covers."""


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What a model sees of one step, beside its weights and caches.

    Attributes:
        token_ids, positions, slot_mapping: `[num_tokens]` int64.
        logit_rows: `[num_logit_rows]` int64, the rows whose results are wanted.
        plan: of the step's attention.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    logit_rows: torch.Tensor
    plan: AttentionPlan


@runtime_checkable
class DrawsTokens(Protocol):
    """What kernels may have besides `Kernels`: a quicker draw than torch makes."""

    def draw(
        self,
        logits: torch.Tensor,
        temperature: torch.Tensor,
        min_p: torch.Tensor,
        uniform: torch.Tensor,
    ) -> torch.Tensor:
        """One token of each row: softmax at its temperature, then the inverse of the cumulative sum.

        `logits: [n, vocab_size]` float32; `temperature: [n]` float32, above 0; `min_p: [n]` float32,
        below which times the likeliest nothing is drawn; `uniform: [n]` float64 in [0, 1). The result
        is `[n]` int64. A row's token depends on that row alone.
        """


class Kernels(Protocol):
    """One implementation of every op. All tensors are on the implementation's device."""

    @property
    def name(self) -> str:
        """One of `NAMES`."""

    @property
    def row_invariant(self) -> bool:
        """Whether a row's bits depend on that row and its prefix alone, whatever else is computed."""

    def pack_linear(
        self, weight: torch.Tensor | QuantizedWeight, bias: torch.Tensor | None = None
    ) -> PackedLinear:
        """Prepare a weight `[out_features, in_features]` for all ops but `gated_linear`.

        May keep the tensors or copy them; the caller gives them up. `bias: [out_features]`. A
        quantized weight stays quantized, and an op on it may round its input: `cpu` takes each
        token's columns as 8 bits a value and one scale per group of 32.

        Raises:
            ValueError: the weight is not a matrix, or the bias does not fit it.
        """

    def pack_gated_linear(
        self, weight: torch.Tensor | QuantizedWeight, bias: torch.Tensor | None = None
    ) -> PackedLinear:
        """Prepare a weight `[2 * n, in_features]`, the gate's rows first, for `gated_linear` alone.

        Raises:
            ValueError: as `pack_linear`, or the number of rows is odd.
        """

    def linear(self, x: torch.Tensor, weight: PackedLinear) -> torch.Tensor:
        """`x: [num_tokens, in_features]` times the weight, plus bias: `[num_tokens, out_features]`."""

    def add_linear(
        self, x: torch.Tensor, weight: PackedLinear, residual: torch.Tensor
    ) -> torch.Tensor:
        """`residual + linear(x, weight)`; `residual: [num_tokens, out_features]`."""

    def gated_linear(self, x: torch.Tensor, weight: PackedLinear, activation: str) -> torch.Tensor:
        """`gated_activation(linear(x, weight), activation)`: `[num_tokens, n]`.

        Raises:
            ValueError: `activation` is not one of `ACTIVATIONS`.
        """

    def logits(
        self, x: torch.Tensor, weight: PackedLinear, softcap: float | None = None
    ) -> torch.Tensor:
        """`linear(x, weight)` as float32; with `softcap` c, y becomes c * tanh(y / c)."""

    def embedding(
        self, token_ids: torch.Tensor, weight: PackedLinear, scale: float | None = None
    ) -> torch.Tensor:
        """Rows of the weight: `token_ids: [num_tokens]` int64 to `[num_tokens, in_features]`.

        With `scale` they are multiplied in float32 and rounded. It takes a packed weight so that a
        tied output head and the embedding are one copy.
        """

    def take_rows(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """`x[rows]` for `x: [num_tokens, n]` and `rows: [num_rows]` int64."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """RMSNorm over the last dimension of x, in float32, rounded to x's dtype at the end.

        `weight: [x.shape[-1]]` float32. Source: Zhang and Sennrich 2019, equation 4.
        """

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`residual + x` in their dtype, and its RMSNorm.

        Returns:
            (normed, total), both of x's shape and dtype.
        """

    def gated_activation(self, gate_up: torch.Tensor, activation: str) -> torch.Tensor:
        """`activation(gate) * up` for `gate_up: [num_tokens, 2 * n]` (gate first): `[num_tokens, n]`.

        Raises:
            ValueError: `activation` is not one of `ACTIVATIONS`.
        """

    def rotary_embedding(
        self, q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotate the first rotary_dim dims of every head, pairing dim i with i + rotary_dim / 2.

        `q: [num_tokens, num_heads, head_dim]`, `k: [num_tokens, num_kv_heads, head_dim]`,
        `positions: [num_tokens]` int64, `cos_sin: [max_positions, rotary_dim]` float32, the
        rotary_dim / 2 cosines of a position before its sines. Computed in float32, rounded at the
        end. Source: Su et al. 2021, section 3.4.2, in the half-split layout of GPT-NeoX.
        """

    def store_kv(
        self,
        k: torch.Tensor,
        v: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Write `k, v: [num_tokens, num_kv_heads, head_dim]` to the slots `[num_tokens]` int64.

        Slots of one call are distinct. The caches are changed in place and keep their dtype; what is
        stored of a head depends on that head alone, in int8 too.
        """

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
        """`rotary_embedding` of q and k, then `store_kv` of that k and v; returns the rotated q."""

    def plan_attention(
        self,
        shape: AttentionShape,
        *,
        cu_seqlens: torch.Tensor,
        kv_lens: torch.Tensor,
        block_tables: torch.Tensor,
    ) -> AttentionPlan:
        """Prepare one step's attention; valid for every layer of that step.

        `cu_seqlens: [num_seqs + 1]` int32, `kv_lens: [num_seqs]` int32 (this step's tokens included,
        so a sequence's queries are its last positions), `block_tables: [num_seqs, max_num_blocks]`
        int32. Equal ids in the leading columns of several rows are KV that these sequences share;
        an implementation may read such a run once. Entries past a sequence's end are not read.

        Raises:
            ValueError: shapes or dtypes differ from these, a sequence has more queries than KV, or
                its row of the table is too short.
        """

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
        """Causal attention of `q: [num_tokens, num_heads, head_dim]` over the paged KV.

        A query at position p sees positions max(0, p - window + 1) … p. With `softcap` c, scores
        become c * tanh(score / c) (Gemma 2 report, section 2). Query head h reads KV head
        h // (num_heads / num_kv_heads). Softmax and its sums are float32. Rows of int8 are read as their
        values times their scale, rounded to q's dtype or not.

        Returns:
            (out, lse): `[num_tokens, num_heads, head_dim]` in q's dtype, and `[num_tokens, num_heads]`
            float32, the natural log of the sum of exponentials of the scores, for `merge_states`.

        Raises:
            ValueError: q does not have the rows and heads of the plan.
        """

    def merge_states(
        self, out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Attention over the union of two disjoint sets of keys, from the results over each.

        Shapes as `attention` returns them. An empty set has lse -inf; the union of two empty sets is
        zeros with lse -inf. Source: Ye et al. 2024 (Cascade inference), the merge operator.
        """

    def compile(
        self, forward: Callable[[Kernels, StepInputs], torch.Tensor]
    ) -> Callable[[StepInputs], torch.Tensor]:
        """The quickest way to run `forward` again and again, with the same bits.

        `forward` may be called once for every step, or once in all to see which ops it runs. So it
        must run the same ops for any step, on tensors of the step and their views alone; its other
        tensors (weights, tables, caches) must stay where they are.
        """


def load(name: str, device: torch.device, *, num_threads: int | None = None) -> Kernels:
    """The implementation of that name.

    Args:
        name: one of `NAMES`; "cpu:ISA" forces an instruction set of the native kernels; "auto" is the
            quickest one that the device can run.
        device: what the tensors are on.
        num_threads: threads of the native kernels; None is one per physical core.

    Raises:
        ValueError: no such implementation, it does not run on the device, or it was not built.
    """
    from .reference import ReferenceKernels
    from .sdpa import SdpaKernels

    if name == "auto":
        name = _quickest(device)
    name, _, isa = name.partition(":")
    if name not in NAMES or (isa and name != "cpu"):
        raise ValueError(f"unknown kernels {name!r}; known are auto, {', '.join(NAMES)}, cpu:ISA")
    if name == "reference":
        return ReferenceKernels()
    if device.type != "cpu":
        raise ValueError(f"kernels {name!r} run on cpu, not on {device}")
    if name == "sdpa":
        return SdpaKernels()
    if not is_built():
        raise ValueError(
            "kernels 'cpu' were not built; install again with a C++17 compiler present"
        )
    from .cpu.kernels import CpuKernels

    return CpuKernels(isa=isa or None, num_threads=num_threads)


def is_built() -> bool:
    """Whether the native CPU kernels are here: they are optional, since they need a compiler."""
    return find_spec(".cpu._native", __package__) is not None


def _quickest(device: torch.device) -> str:
    if device.type != "cpu":
        return "reference"
    if is_built():
        return "cpu"
    logger.warning(
        "The native CPU kernels were not built, so torch computes, several times slower. "
        "Install ramet again where a C++17 compiler is present."
    )
    return "sdpa"
