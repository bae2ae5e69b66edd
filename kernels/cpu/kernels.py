"""`CpuKernels`: the ops of `ramet.kernels.ops` in native code, for CPUs.

It owns checks of shapes and dtypes, and the results' memory; arithmetic is in src/. It knows float32 and
bfloat16, weights of 8 and 4 bits, and caches of 8. On one machine, with one instruction set, a row's
bits depend on that row alone, and a query's on its prefix alone: not on what else is in the batch, how a
prompt was chunked, or the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..cores import num_physical_cores
from ..merge import merge_states
from ..ops import AttentionPlan, AttentionShape, Kernels, PackedLinear, StepInputs
from ..quantization import QuantizedWeight
from . import _native
from .arguments import (
    DTYPES,
    Rotation,
    activation_code,
    address,
    cache_code_of,
    check_alike,
    check_caches,
    code_of,
    heads_job,
    int64,
    slots_of,
    unit_stride,
)
from .drawing import draw_rows
from .plan import CpuPlan, make_plan
from .weights import checked_input, pack, packed, plain


class CpuKernels:
    """The `Kernels` protocol in C++.

    Args:
        isa: instruction set, one of `_native.available_isas()`; None is the fastest of this processor.
        num_threads: threads that compute, the caller's included; None is one per physical core.
        share_prefixes: attention reads blocks that sequences of a batch share once for all of them;
            changes no bit.

    Raises:
        ValueError: the processor does not have that instruction set, or num_threads is below 1.
    """

    def __init__(
        self,
        *,
        isa: str | None = None,
        num_threads: int | None = None,
        share_prefixes: bool = True,
    ) -> None:
        self.isa = _native.fastest_isa() if isa is None else isa
        self.num_threads = num_physical_cores() if num_threads is None else num_threads
        if self.num_threads < 1:
            raise ValueError(f"num_threads must be at least 1, not {num_threads}")
        self.share_prefixes = share_prefixes
        self._engine = _native.Engine(self.isa, self.num_threads)
        # Where ops go: the engine runs them at once.
        self._native: _native.OpSink = self._engine

    @property
    def name(self) -> str:
        """Its name in `ops.load`."""
        return "cpu"

    @property
    def row_invariant(self) -> bool:
        """See `Kernels.row_invariant`."""
        return True

    def pack_linear(
        self, weight: torch.Tensor | QuantizedWeight, bias: torch.Tensor | None = None
    ) -> _native.PackedLinear:
        """See `Kernels.pack_linear`; copies the weight."""
        return pack(self._engine, weight, bias, gated=False)

    def pack_gated_linear(
        self, weight: torch.Tensor | QuantizedWeight, bias: torch.Tensor | None = None
    ) -> _native.PackedLinear:
        """See `Kernels.pack_gated_linear`; copies the weight."""
        return pack(self._engine, weight, bias, gated=True)

    def linear(self, x: torch.Tensor, weight: PackedLinear) -> torch.Tensor:
        """See `Kernels.linear`."""
        return self._linear(x, plain(weight), None)

    def add_linear(
        self, x: torch.Tensor, weight: PackedLinear, residual: torch.Tensor
    ) -> torch.Tensor:
        """See `Kernels.add_linear`; one pass."""
        return self._linear(x, plain(weight), residual)

    def gated_linear(self, x: torch.Tensor, weight: PackedLinear, activation: str) -> torch.Tensor:
        """See `Kernels.gated_linear`; one pass."""
        native = packed(weight)
        if not native.gated:
            raise ValueError("the weight was not packed by pack_gated_linear")
        x = checked_input(x, native)
        out = self._new((x.shape[0], native.out_features // 2), x.dtype)
        self._native.linear(
            native,
            x.data_ptr(),
            x.stride(0),
            x.shape[0],
            0,
            0,
            activation_code(activation),
            out.data_ptr(),
        )
        return out

    def _linear(
        self, x: torch.Tensor, native: _native.PackedLinear, residual: torch.Tensor | None
    ) -> torch.Tensor:
        x = checked_input(x, native)
        out = self._new((x.shape[0], native.out_features), x.dtype)
        stride = 0
        if residual is not None:
            if residual.shape != out.shape or residual.dtype != x.dtype:
                raise ValueError(
                    f"residual {list(residual.shape)} {residual.dtype} does not fit the result "
                    f"{list(out.shape)} {x.dtype}"
                )
            residual = residual if residual.stride(-1) == 1 else residual.contiguous()
            stride = residual.stride(0)
        self._native.linear(
            native,
            x.data_ptr(),
            x.stride(0),
            x.shape[0],
            address(residual),
            stride,
            0,
            out.data_ptr(),
        )
        return out

    def logits(
        self, x: torch.Tensor, weight: PackedLinear, softcap: float | None = None
    ) -> torch.Tensor:
        """See `Kernels.logits`; the sums are not rounded."""
        native = plain(weight)
        x = checked_input(x, native)
        out = self._new((x.shape[0], native.out_features), torch.float32)
        self._native.logits(
            native, x.data_ptr(), x.stride(0), x.shape[0], softcap or 0.0, out.data_ptr()
        )
        return out

    def embedding(
        self, token_ids: torch.Tensor, weight: PackedLinear, scale: float | None = None
    ) -> torch.Tensor:
        """See `Kernels.embedding`.

        Raises:
            IndexError: a token id is not a row of the weight.
        """
        native = packed(weight)
        token_ids = int64(token_ids, "token_ids")
        out = self._new((token_ids.shape[0], native.in_features), DTYPES[native.dtype])
        self._native.embedding(
            native,
            token_ids.data_ptr(),
            token_ids.shape[0],
            1.0 if scale is None else scale,
            out.data_ptr(),
        )
        return out

    def take_rows(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """See `Kernels.take_rows`.

        Raises:
            ValueError: x is not `[num_tokens, n]`.
            IndexError: a row is not one of x.
        """
        if x.dim() != 2:
            raise ValueError(f"x must be [num_tokens, n], not {list(x.shape)}")
        x, rows = x.contiguous(), int64(rows, "rows")
        out = self._new((rows.shape[0], x.shape[1]), x.dtype)
        self._native.take_rows(
            x.data_ptr(),
            x.shape[0],
            x.shape[1] * x.itemsize,
            rows.data_ptr(),
            rows.shape[0],
            out.data_ptr(),
        )
        return out

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """See `Kernels.rms_norm`."""
        return self._norm(x, None, weight, eps)[0]

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Kernels.add_rms_norm`."""
        if residual.shape != x.shape or residual.dtype != x.dtype:
            raise ValueError(
                f"residual {list(residual.shape)} {residual.dtype} does not fit x "
                f"{list(x.shape)} {x.dtype}"
            )
        return self._norm(x, residual.contiguous(), weight, eps)

    def _norm(
        self, x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        row_size = x.shape[-1]
        if weight.shape != (row_size,) or weight.dtype != torch.float32:
            raise ValueError(
                f"the norm's weight must be float32 [{row_size}], not {weight.dtype} "
                f"{list(weight.shape)}"
            )
        if x.dim() not in (2, 3) or x.stride(-1) != 1:
            x = x.contiguous()
        weight = self._constant(weight)
        num_inner = x.shape[1] if x.dim() == 3 else 1
        outer, inner = (x.stride(0), x.stride(1)) if x.dim() == 3 else (x.stride(0), 0)
        if x.dim() not in (2, 3):
            outer = row_size
        out = self._new(x.shape, x.dtype)
        total = out if residual is None else self._new(out.shape, out.dtype)
        num_rows = x.numel() // row_size
        self._native.norm(
            code_of(x),
            x.data_ptr(),
            outer,
            inner,
            max(1, num_inner),
            num_rows,
            address(residual),
            0 if residual is None else total.data_ptr(),
            weight.data_ptr(),
            eps,
            row_size,
            out.data_ptr(),
        )
        return out, total

    def gated_activation(self, gate_up: torch.Tensor, activation: str) -> torch.Tensor:
        """See `Kernels.gated_activation`."""
        code = activation_code(activation)
        if gate_up.dim() != 2 or gate_up.shape[1] % 2:
            raise ValueError(f"gate_up must be [num_tokens, 2 * n], not {list(gate_up.shape)}")
        gate_up = gate_up if gate_up.stride(1) == 1 else gate_up.contiguous()
        num_rows, num_columns = gate_up.shape[0], gate_up.shape[1] // 2
        out = self._new((num_rows, num_columns), gate_up.dtype)
        self._native.gate(
            code_of(gate_up),
            gate_up.data_ptr(),
            gate_up.stride(0),
            code,
            num_rows,
            num_columns,
            out.data_ptr(),
        )
        return out

    def rotary_embedding(
        self, q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Kernels.rotary_embedding`."""
        rotation = Rotation(positions, self._constant(cos_sin), q)
        q, k = unit_stride(q), unit_stride(k)
        out_q, out_k = (self._new(x.shape, x.dtype) for x in (q, k))
        self._native.heads(
            [heads_job(q, out_q, rotation=rotation), heads_job(k, out_k, rotation=rotation)],
            q.shape[0],
        )
        return out_q, out_k

    def store_kv(
        self,
        k: torch.Tensor,
        v: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """See `Kernels.store_kv`."""
        check_caches(k_cache, v_cache, k.shape[1:])
        check_alike(k, v)
        slots = slots_of(slot_mapping, k)
        k, v = unit_stride(k), unit_stride(v)
        self._native.heads(
            [
                heads_job(k, k_cache, slots=slots, part="keys"),
                heads_job(v, v_cache, slots=slots, part="values"),
            ],
            k.shape[0],
        )

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
        """See `Kernels.rotary_store_kv`; one pass."""
        check_caches(k_cache, v_cache, k.shape[1:])
        check_alike(k, v)
        rotation = Rotation(positions, self._constant(cos_sin), q)
        slots = slots_of(slot_mapping, k)
        q, k, v = unit_stride(q), unit_stride(k), unit_stride(v)
        out = self._new(q.shape, q.dtype)
        self._native.heads(
            [
                heads_job(q, out, rotation=rotation),
                heads_job(k, k_cache, rotation=rotation, slots=slots, part="keys"),
                heads_job(v, v_cache, slots=slots, part="values"),
            ],
            q.shape[0],
        )
        return out

    def plan_attention(
        self,
        shape: AttentionShape,
        *,
        cu_seqlens: torch.Tensor,
        kv_lens: torch.Tensor,
        block_tables: torch.Tensor,
    ) -> CpuPlan:
        """See `Kernels.plan_attention`; the tables must stay as they are while the plan is used."""
        return make_plan(
            self._engine,
            shape,
            cu_seqlens=cu_seqlens,
            kv_lens=kv_lens,
            block_tables=block_tables,
            share_prefixes=self.share_prefixes,
        )

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
        assert isinstance(plan, CpuPlan)
        shape = plan.shape
        if q.shape != (plan.num_tokens, shape.num_heads, shape.head_dim):
            raise ValueError(
                f"q {list(q.shape)} is not the plan's {plan.num_tokens} rows of {shape}"
            )
        if window is not None and window < 1:
            raise ValueError(f"window must be at least 1, not {window}")
        check_caches(k_cache, v_cache, (shape.num_kv_heads, shape.head_dim))
        if k_cache.shape[1] != shape.block_size:
            raise ValueError(
                f"the cache's blocks are of {k_cache.shape[1]}, not {shape.block_size}"
            )
        q = unit_stride(q)
        out = self._new(q.shape, q.dtype)
        lse = self._new(q.shape[:2], torch.float32)
        self._native.attention(
            plan.native,
            code_of(q),
            q.data_ptr(),
            q.stride(0),
            q.stride(1),
            cache_code_of(k_cache),
            k_cache.shape[0],
            k_cache.data_ptr(),
            v_cache.data_ptr(),
            scale,
            softcap or 0.0,
            window or 0,
            out.data_ptr(),
            lse.data_ptr(),
        )
        return out, lse

    def draw(
        self,
        logits: torch.Tensor,
        temperature: torch.Tensor,
        min_p: torch.Tensor,
        uniform: torch.Tensor,
    ) -> torch.Tensor:
        """See `DrawsTokens.draw`; raises ValueError where a shape or a dtype differs."""
        return draw_rows(self._engine, logits, temperature, min_p, uniform)

    def compile(
        self, forward: Callable[[Kernels, StepInputs], torch.Tensor]
    ) -> Callable[[StepInputs], torch.Tensor]:
        """See `Kernels.compile`; calls it once, and replays its ops without Python."""
        from .program import CpuProgram

        return CpuProgram(self, self._engine, forward)

    def merge_states(
        self, out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Kernels.merge_states`."""
        return merge_states(out_a, lse_a, out_b, lse_b)

    def _new(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor for the result of an op."""
        return torch.empty(shape, dtype=dtype)

    def _constant(self, tensor: torch.Tensor) -> torch.Tensor:
        """A weight or table that an op reads, dense."""
        return tensor.contiguous()
