"""A recorded forward gives the bits of its ops run one by one, whatever the step."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from ramet.kernels.cpu.kernels import CpuKernels
from ramet.kernels.kv_rows import row_size
from ramet.kernels.ops import AttentionShape, Kernels, StepInputs
from ramet.kernels.quantization import QuantizedWeight, quantize

SHAPE = AttentionShape(num_heads=4, num_kv_heads=2, head_dim=24, block_size=4)
HIDDEN, WIDTH, VOCAB, NUM_BLOCKS = 40, 56, 70, 64


class Model:
    """Two layers that use every op: one with rotation, one with norms of heads and of results."""

    def __init__(
        self,
        kernels: CpuKernels,
        dtype: torch.dtype,
        bits: int | None = None,
        cache_dtype: torch.dtype | None = None,
    ) -> None:
        self.bits = bits
        self.cache_dtype = dtype if cache_dtype is None else cache_dtype
        self.generator = torch.Generator().manual_seed(11)
        self.kernels, self.dtype = kernels, dtype
        size = (SHAPE.num_heads + 2 * SHAPE.num_kv_heads) * SHAPE.head_dim
        q_size = SHAPE.num_heads * SHAPE.head_dim
        self.embedding = kernels.pack_linear(self.weight(VOCAB, HIDDEN))
        self.qkv = kernels.pack_linear(self.weight(size, HIDDEN), self.randn(size))
        self.output = kernels.pack_linear(self.weight(HIDDEN, q_size))
        self.gate_up = kernels.pack_gated_linear(self.weight(2 * WIDTH, HIDDEN))
        self.gate_up_apart = kernels.pack_linear(self.weight(2 * WIDTH, HIDDEN))
        self.down = kernels.pack_linear(self.weight(HIDDEN, WIDTH))
        # Strided, so that what is read is a copy, which only the recording keeps.
        self.norm = torch.rand(2 * HIDDEN, generator=self.generator)[::2]
        self.head_norm = torch.rand(SHAPE.head_dim, generator=self.generator) + 0.5
        self.cos_sin = torch.randn(32, 16, generator=self.generator)
        self.reset()

    def randn(self, *shape: int) -> torch.Tensor:
        wide = torch.randn(shape, generator=self.generator) / math.sqrt(shape[-1])
        return wide.to(self.dtype)

    def weight(self, *shape: int) -> torch.Tensor | QuantizedWeight:
        dense = self.randn(*shape)
        return dense if self.bits is None else quantize(dense, self.bits)

    def reset(self) -> None:
        width = row_size(SHAPE.head_dim, self.cache_dtype)
        size = (4, NUM_BLOCKS, SHAPE.block_size, SHAPE.num_kv_heads, width)
        self.caches = torch.zeros(size, dtype=self.cache_dtype)

    def attention(
        self, kernels: Kernels, step: StepInputs, h: torch.Tensor, layer: int
    ) -> torch.Tensor:
        counts = (SHAPE.num_heads, SHAPE.num_kv_heads, SHAPE.num_kv_heads)
        qkv = kernels.linear(h, self.qkv).view(-1, sum(counts), SHAPE.head_dim)
        q, k, v = qkv.split_with_sizes(counts, dim=1)
        k_cache, v_cache = self.caches[2 * layer], self.caches[2 * layer + 1]
        if layer == 0:
            q = kernels.rotary_store_kv(
                q, k, v, step.positions, self.cos_sin, k_cache, v_cache, step.slot_mapping
            )
        else:
            q, k = (kernels.rms_norm(x, self.head_norm, 1e-6) for x in (q, k))
            q, k = kernels.rotary_embedding(q, k, step.positions, self.cos_sin)
            kernels.store_kv(k, v, k_cache, v_cache, step.slot_mapping)
        out, _ = kernels.attention(
            q,
            k_cache,
            v_cache,
            step.plan,
            scale=0.2,
            window=5 if layer else None,
            softcap=2.0 if layer else None,
        )
        return out.flatten(1)

    def forward(self, kernels: Kernels, step: StepInputs) -> torch.Tensor:
        x = kernels.embedding(step.token_ids, self.embedding, 6.25)
        h = kernels.rms_norm(x, self.norm, 1e-5)
        x = kernels.add_linear(self.attention(kernels, step, h, 0), self.output, x)
        gated = kernels.gated_linear(
            kernels.rms_norm(x, self.norm, 1e-5), self.gate_up, "gelu_tanh"
        )
        update = kernels.linear(gated, self.down)
        h, x = kernels.add_rms_norm(update, x, self.norm, 1e-5)
        heads = self.attention(kernels, step, h, 1)
        x, heads = (kernels.take_rows(y, step.logit_rows) for y in (x, heads))
        x = kernels.add_linear(heads, self.output, x)
        # A norm that two products read.
        h = kernels.rms_norm(x, self.norm, 1e-5)
        gated = kernels.gated_activation(kernels.linear(h, self.gate_up_apart), "silu")
        update = kernels.add_linear(
            kernels.gated_linear(h, self.gate_up, "silu"),
            self.down,
            kernels.linear(gated, self.down),
        )
        h, _ = kernels.add_rms_norm(update, x, self.norm, 1e-5)
        return kernels.logits(h, self.embedding, 3.0)

    def steps(self) -> list[StepInputs]:
        """Chunks and decodes of two sequences; one step wants no rows, one wants all."""
        lens, steps = [0, 0], []
        tables = torch.randperm(NUM_BLOCKS, generator=self.generator)[:16].view(2, 8).int()
        for counts, rows in (
            ([5, 0], []),
            ([1, 17], [5, 0, 17]),
            ([1, 1], [0, 1]),
            ([0, 1], [0]),
            ([9, 2], range(11)),
        ):
            slots, positions = [], []
            for seq, count in enumerate(counts):
                for position in range(lens[seq], lens[seq] + count):
                    positions.append(position)
                    slots.append(int(tables[seq, position // 4]) * 4 + position % 4)
                lens[seq] += count
            plan = self.kernels.plan_attention(
                SHAPE,
                cu_seqlens=torch.tensor([0, counts[0], sum(counts)], dtype=torch.int32),
                kv_lens=torch.tensor(lens, dtype=torch.int32),
                block_tables=tables,
            )
            steps.append(
                StepInputs(
                    torch.randint(VOCAB, (sum(counts),), generator=self.generator),
                    torch.tensor(positions),
                    torch.tensor(slots),
                    torch.tensor(list(rows), dtype=torch.int64),
                    plan,
                )
            )
        return steps


@pytest.mark.parametrize("bits", [None, 8, 4])
@pytest.mark.parametrize("cache_dtype", [None, torch.int8], ids=["", "i8kv"])
def test_replay_has_the_bits_of_op_by_op(
    kernels: CpuKernels, dtype: torch.dtype, bits: int | None, cache_dtype: torch.dtype | None
) -> None:
    model = Model(kernels, dtype, bits, cache_dtype)
    steps = model.steps()
    expected = [model.forward(kernels, step) for step in steps]
    caches = model.caches.clone()
    assert bool(caches.any())
    model.caches.zero_()
    program = kernels.compile(model.forward)
    results = [program(step) for step in steps]
    for result, wanted in zip(results, expected, strict=True):
        assert result.dtype == torch.float32
        assert torch.equal(result, wanted)
    assert torch.equal(model.caches, caches)


def test_the_forward_runs_once_in_all() -> None:
    kernels = CpuKernels(num_threads=1)
    model, calls = Model(kernels, torch.float32), []

    def forward(given: Kernels, step: StepInputs) -> torch.Tensor:
        calls.append(given)
        return model.forward(given, step)

    program = kernels.compile(forward)
    assert not calls
    for step in model.steps():
        program(step)
    assert len(calls) == 1


def test_a_result_is_the_callers_to_keep() -> None:
    kernels = CpuKernels(num_threads=1)
    model = Model(kernels, torch.float32)
    program, step = kernels.compile(model.forward), model.steps()[0]
    step = StepInputs(
        step.token_ids, step.positions, step.slot_mapping, torch.tensor([1, 4]), step.plan
    )
    first = program(step)
    copy = first.clone()
    second = program(step)
    assert first.data_ptr() != second.data_ptr()
    second.fill_(0)
    assert torch.equal(first, copy)


def test_callers_of_one_program_do_not_meet() -> None:
    kernels = CpuKernels(num_threads=2)
    model = Model(kernels, torch.float32)
    steps = [
        StepInputs(
            step.token_ids,
            step.positions,
            step.slot_mapping,
            torch.arange(step.plan.num_tokens),
            step.plan,
        )
        for step in model.steps()
    ]
    program = kernels.compile(model.forward)
    for step in steps:
        program(step)
    # The caches hold all now, and a step writes again what is there.
    expected = [program(step) for step in steps]
    with ThreadPoolExecutor(3) as callers:
        order = [i % len(steps) for i in range(60)]
        results = list(callers.map(lambda i: program(steps[i]), order))
    for i, result in zip(order, results, strict=True):
        assert torch.equal(result, expected[i])


@pytest.mark.parametrize(
    "stray",
    [lambda x: x * 2, lambda x: x.t().contiguous().t().clone(), lambda x: torch.zeros_like(x)],
    ids=["arithmetic", "copy", "new"],
)
def test_what_is_no_op_and_no_view_is_refused(
    stray: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    kernels = CpuKernels(num_threads=1)
    model = Model(kernels, torch.float32)

    def forward(given: Kernels, step: StepInputs) -> torch.Tensor:
        x = given.embedding(step.token_ids, model.embedding)
        return given.logits(stray(x), model.embedding)

    with pytest.raises(ValueError, match="no op of it made"):
        kernels.compile(forward)(model.steps()[0])


def test_a_step_that_does_not_fit_raises_and_the_next_one_runs() -> None:
    kernels = CpuKernels(num_threads=1)
    model = Model(kernels, torch.float32)
    program, step = kernels.compile(model.forward), model.steps()[0]
    rows, good = torch.tensor([0]), step.token_ids
    expected = program(StepInputs(good, step.positions, step.slot_mapping, rows, step.plan))

    def run(ids: torch.Tensor, rows: torch.Tensor = rows) -> torch.Tensor:
        return program(StepInputs(ids, step.positions, step.slot_mapping, rows, step.plan))

    with pytest.raises(ValueError, match=r"\[4, 5, 5\] token ids, positions and slots do not fit"):
        run(good[1:])
    with pytest.raises(ValueError, match="token_ids must be int64"):
        run(good.int())
    with pytest.raises(IndexError, match=r"token id 70 is outside of 0 \.\.\. 69"):
        run(torch.full((5,), VOCAB))
    with pytest.raises(IndexError, match=r"row 5 is outside of 0 \.\.\. 4"):
        run(good, torch.tensor([5]))
    other = kernels.plan_attention(
        AttentionShape(4, 4, 24, 4),
        cu_seqlens=torch.tensor([0, 5], dtype=torch.int32),
        kv_lens=torch.tensor([5], dtype=torch.int32),
        block_tables=torch.zeros(1, 2, dtype=torch.int32),
    )
    with pytest.raises(ValueError, match="do not fit a plan of 5 rows"):
        program(StepInputs(good, step.positions, step.slot_mapping, rows, other))
    assert torch.equal(run(good), expected)


def test_a_forward_must_return_float32_rows() -> None:
    kernels = CpuKernels(num_threads=1)
    model = Model(kernels, torch.bfloat16)

    def forward(given: Kernels, step: StepInputs) -> torch.Tensor:
        return given.embedding(step.token_ids, model.embedding)

    with pytest.raises(ValueError, match="dense float32 rows, not torch.bfloat16"):
        kernels.compile(forward)(model.steps()[0])
