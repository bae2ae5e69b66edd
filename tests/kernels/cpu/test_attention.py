from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from ramet.kernels.cpu.kernels import CpuKernels
from ramet.kernels.cpu.kv_tiles import to_tiles
from ramet.kernels.cpu.plan import CpuPlan
from ramet.kernels.kv_rows import from_rows, to_rows
from ramet.kernels.ops import AttentionShape
from ramet.kernels.reference import ReferenceKernels

OPTIONS: list[dict[str, float | int]] = [
    {},
    {"window": 1},
    {"window": 70},
    {"softcap": 3.0},
    {"window": 200, "softcap": 20.0},
]
SHAPE = AttentionShape(num_heads=6, num_kv_heads=2, head_dim=32, block_size=16)


@pytest.fixture(params=[None, torch.int8], ids=["", "i8kv"])
def cache_dtype(request: pytest.FixtureRequest) -> torch.dtype | None:
    """Of the caches; None is that of the queries."""
    value = request.param
    assert value is None or isinstance(value, torch.dtype)
    return value


@dataclass(frozen=True, slots=True)
class Step:
    """Sequences in a paged cache of shuffled blocks, with the queries of their last positions.

    The caches are rows; the native kernels get them as they keep them.
    """

    shape: AttentionShape
    num_queries: tuple[int, ...]
    kv_lens: tuple[int, ...]
    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    block_tables: torch.Tensor

    def rows(self, seq: int) -> slice:
        start = sum(self.num_queries[:seq])
        return slice(start, start + self.num_queries[seq])

    def part(self, seqs: list[int], num_queries: list[int], skipped: list[int]) -> Step:
        """Of each sequence, `num_queries` queries after its first `skipped` ones."""
        rows = [
            self.q[self.rows(seq)][skip : skip + count]
            for seq, count, skip in zip(seqs, num_queries, skipped, strict=True)
        ]
        kv_lens = [
            self.kv_lens[seq] - self.num_queries[seq] + skip + count
            for seq, count, skip in zip(seqs, num_queries, skipped, strict=True)
        ]
        return Step(
            self.shape,
            tuple(num_queries),
            tuple(kv_lens),
            torch.cat(rows),
            self.k_cache,
            self.v_cache,
            self.block_tables[seqs],
        )

    def run(
        self, kernels: CpuKernels | ReferenceKernels, **options: float | int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        starts = torch.tensor((0, *self.num_queries)).cumsum(0).to(torch.int32)
        plan = kernels.plan_attention(
            self.shape,
            cu_seqlens=starts,
            kv_lens=torch.tensor(self.kv_lens, dtype=torch.int32),
            block_tables=self.block_tables,
        )
        window, softcap = options.get("window"), options.get("softcap")
        k_cache, v_cache = self.k_cache, self.v_cache
        if isinstance(kernels, CpuKernels):
            k_cache, v_cache = to_tiles(k_cache, "keys"), to_tiles(v_cache, "values")
        return kernels.attention(
            self.q,
            k_cache,
            v_cache,
            plan,
            scale=self.shape.head_dim**-0.5,
            window=None if window is None else int(window),
            softcap=softcap,
        )


def make_step(
    generator: torch.Generator,
    dtype: torch.dtype,
    num_queries: tuple[int, ...],
    kv_lens: tuple[int, ...],
    shape: AttentionShape = SHAPE,
    cache_dtype: torch.dtype | None = None,
) -> Step:
    counts = [-(-kv_len // shape.block_size) for kv_len in kv_lens]
    ids = torch.randperm(sum(counts) + 2, generator=generator).to(torch.int32)
    # Past a sequence's end the table is rubbish, which must not be read.
    tables = torch.full((len(kv_lens), max(counts) + 1), 1 << 30, dtype=torch.int32)
    for seq, count in enumerate(counts):
        tables[seq, :count], ids = ids[:count], ids[count:]
    cache_shape = (2, sum(counts) + 2, shape.block_size, shape.num_kv_heads, shape.head_dim)
    caches = to_rows(torch.randn(cache_shape, generator=generator), cache_dtype or dtype)
    q = torch.randn(sum(num_queries), shape.num_heads, shape.head_dim, generator=generator)
    return Step(shape, num_queries, kv_lens, q.to(dtype), caches[0], caches[1], tables)


def assert_near(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    """bfloat16: the weights of the values are rounded to 8 bits, then the result is."""
    rtol, atol = 2e-5, 2e-5
    if dtype == torch.bfloat16:
        rtol, atol = 1e-2, 1e-2
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)


def check(
    kernels: CpuKernels, reference: ReferenceKernels, step: Step, **options: float | int
) -> None:
    out, lse = step.run(kernels, **options)
    wide = replace(
        step,
        q=step.q.float(),
        k_cache=from_rows(step.k_cache).float(),
        v_cache=from_rows(step.v_cache).float(),
        block_tables=step.block_tables.where(step.block_tables < 1 << 30, 0),
    )
    expected, expected_lse = wide.run(reference, **options)
    assert out.dtype == step.q.dtype
    assert_near(out.float(), expected, step.q.dtype)
    torch.testing.assert_close(lse, expected_lse, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_ragged_batches_match_the_reference(
    kernels: CpuKernels,
    reference: ReferenceKernels,
    dtype: torch.dtype,
    generator: torch.Generator,
    options: dict[str, float | int],
    cache_dtype: torch.dtype | None,
) -> None:
    step = make_step(
        generator, dtype, (1, 40, 131, 1, 5), (300, 300, 131, 1, 257), cache_dtype=cache_dtype
    )
    check(kernels, reference, step, **options)


@pytest.mark.parametrize("block_size", [1, 3, 16, 32, 48, 100])
@pytest.mark.parametrize("head_dim", [16, 32])
def test_every_block_size_matches_the_reference(
    kernels: CpuKernels,
    reference: ReferenceKernels,
    dtype: torch.dtype,
    generator: torch.Generator,
    head_dim: int,
    block_size: int,
    cache_dtype: torch.dtype | None,
) -> None:
    step = make_step(
        generator,
        dtype,
        (3, 1),
        (150, 33),
        AttentionShape(4, 2, head_dim, block_size),
        cache_dtype=cache_dtype,
    )
    check(kernels, reference, step)


@pytest.mark.parametrize(
    "heads", [(1, 1), (3, 3), (9, 3), (8, 1), (14, 2), (64, 1)], ids=lambda heads: f"{heads}"
)
@pytest.mark.parametrize("head_dim", [8, 40, 64, 80, 128])
def test_every_shape_of_heads_matches_the_reference(
    kernels: CpuKernels,
    reference: ReferenceKernels,
    dtype: torch.dtype,
    generator: torch.Generator,
    heads: tuple[int, int],
    head_dim: int,
    cache_dtype: torch.dtype | None,
) -> None:
    step = make_step(
        generator,
        dtype,
        (6, 1),
        (140, 20),
        AttentionShape(*heads, head_dim, 16),
        cache_dtype=cache_dtype,
    )
    check(kernels, reference, step)


def test_cache_and_queries_may_differ_in_dtype(
    kernels: CpuKernels, reference: ReferenceKernels, dtype: torch.dtype, generator: torch.Generator
) -> None:
    other = torch.bfloat16 if dtype == torch.float32 else torch.float32
    step = make_step(generator, dtype, (30, 1), (150, 140), cache_dtype=other)
    check(kernels, reference, step)


def test_what_lies_in_8_bits_past_the_end_does_not_matter(
    kernels: CpuKernels, dtype: torch.dtype, generator: torch.Generator
) -> None:
    step = make_step(generator, dtype, (4, 1), (140, 35), cache_dtype=torch.int8)
    expected, _ = step.run(kernels)
    nan = to_rows(torch.full((32,), torch.nan), torch.int8)
    for seq, kv_len in enumerate(step.kv_lens):
        last_block = int(step.block_tables[seq, kv_len // 16])
        step.k_cache[last_block, kv_len % 16 :] = nan
        step.v_cache[last_block, kv_len % 16 :] = nan
    assert torch.equal(step.run(kernels)[0], expected)


def test_a_short_sequence_after_one_that_is_nan_is_as_if_alone(
    kernels: CpuKernels, dtype: torch.dtype, generator: torch.Generator
) -> None:
    # What one task leaves in memory that another takes, uninitialised, must not matter.
    short = make_step(generator, dtype, (1,), (5,), cache_dtype=torch.int8)
    expected, _ = short.run(kernels)
    long = make_step(generator, dtype, (1,) * 8, (128,) * 8, cache_dtype=torch.int8)
    nan = to_rows(torch.full((32,), torch.nan), torch.int8)
    long.k_cache[:], long.v_cache[:] = nan, nan
    assert long.run(kernels)[0].isnan().all()
    assert torch.equal(short.run(kernels)[0], expected)
    assert expected.isfinite().all()


def test_queries_may_be_a_view(
    kernels: CpuKernels,
    dtype: torch.dtype,
    generator: torch.Generator,
    cache_dtype: torch.dtype | None,
) -> None:
    step = make_step(generator, dtype, (30, 1), (150, 140), cache_dtype=cache_dtype)
    wide = torch.randn(31, 10, 40, generator=generator).to(dtype)
    view = wide[:, 2:8, 4:36]
    with_view = replace(step, q=view).run(kernels)
    with_copy = replace(step, q=view.contiguous()).run(kernels)
    assert torch.equal(with_view[0], with_copy[0])
    assert torch.equal(with_view[1], with_copy[1])


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_query_has_the_same_bits_alone_batched_and_in_chunks(
    kernels: CpuKernels,
    dtype: torch.dtype,
    generator: torch.Generator,
    options: dict[str, float | int],
    cache_dtype: torch.dtype | None,
) -> None:
    step = make_step(
        generator, dtype, (1, 200, 131, 1, 5), (600, 300, 131, 1, 257), cache_dtype=cache_dtype
    )
    out, lse = step.run(kernels, **options)
    for seq, count in enumerate(step.num_queries):
        rows = step.rows(seq)
        for size in {count, 64, 7} if count > 1 else {1}:
            for skip in range(0, count, size):
                taken = min(size, count - skip)
                part_out, part_lse = step.part([seq], [taken], [skip]).run(kernels, **options)
                assert torch.equal(part_out, out[rows][skip : skip + taken])
                assert torch.equal(part_lse, lse[rows][skip : skip + taken])
        for skip in range(0, count, 13):
            part_out, _ = step.part([seq], [1], [skip]).run(kernels, **options)
            assert torch.equal(part_out[0], out[rows][skip])


def test_the_number_of_threads_does_not_change_a_bit(
    kernels: CpuKernels,
    dtype: torch.dtype,
    generator: torch.Generator,
    cache_dtype: torch.dtype | None,
) -> None:
    """One long sequence among short ones: with several threads it is cut, with one it is not."""
    step = make_step(generator, dtype, (1, 1, 3, 30), (2000, 20, 900, 500), cache_dtype=cache_dtype)
    expected = step.run(CpuKernels(isa=kernels.isa, num_threads=1))
    for num_threads in (2, 3, 8):
        out = step.run(CpuKernels(isa=kernels.isa, num_threads=num_threads))
        assert torch.equal(out[0], expected[0])
        assert torch.equal(out[1], expected[1])


def test_what_lies_in_other_blocks_and_past_the_end_does_not_matter(
    kernels: CpuKernels, dtype: torch.dtype, generator: torch.Generator
) -> None:
    step = make_step(generator, dtype, (4, 1), (140, 35))
    expected, _ = step.run(kernels)
    used = torch.zeros(step.k_cache.shape[:2], dtype=torch.bool)
    for seq, kv_len in enumerate(step.kv_lens):
        for position in range(kv_len):
            used[step.block_tables[seq, position // 16], position % 16] = True
    step.k_cache[~used] = torch.nan
    step.v_cache[~used] = torch.nan
    assert torch.equal(step.run(kernels)[0], expected)


def test_very_unequal_scores_stay_finite(
    kernels: CpuKernels,
    reference: ReferenceKernels,
    dtype: torch.dtype,
    generator: torch.Generator,
    cache_dtype: torch.dtype | None,
) -> None:
    step = make_step(generator, dtype, (3,), (300,), cache_dtype=cache_dtype)
    step.q.mul_(40)
    out, lse = step.run(kernels)
    assert bool(out.isfinite().all())
    assert bool(lse.isfinite().all())
    check(kernels, reference, step)


def test_results_over_two_sets_of_keys_merge_to_the_union(
    kernels: CpuKernels, reference: ReferenceKernels, generator: torch.Generator
) -> None:
    out_a, out_b = torch.randn(2, 5, 3, 8, generator=generator)
    lse_a, lse_b = torch.randn(2, 5, 3, generator=generator)
    lse_a[0] = -torch.inf
    lse_a[1], lse_b[1] = -torch.inf, -torch.inf
    merged = kernels.merge_states(out_a, lse_a, out_b, lse_b)
    for ours, expected in zip(
        merged, reference.merge_states(out_a, lse_a, out_b, lse_b), strict=True
    ):
        torch.testing.assert_close(ours, expected)


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def plan_of(
    kernels: CpuKernels, cu: torch.Tensor, lens: torch.Tensor, table: torch.Tensor
) -> CpuPlan:
    shape = AttentionShape(num_heads=2, num_kv_heads=1, head_dim=8, block_size=4)
    return kernels.plan_attention(shape, cu_seqlens=cu, kv_lens=lens, block_tables=table)


def test_tables_that_do_not_fit_raise(kernels: CpuKernels) -> None:
    table = torch.zeros(1, 2, dtype=torch.int32)
    with pytest.raises(ValueError, match="cu_seqlens must be int32"):
        plan_of(kernels, torch.tensor([0, 1]), int32(4), table)
    with pytest.raises(ValueError, match="must have 2 and 1 rows"):
        plan_of(kernels, int32(0, 1, 2), int32(4), table)
    with pytest.raises(ValueError, match="must start at 0"):
        plan_of(kernels, int32(1, 2), int32(4), table)
    with pytest.raises(ValueError, match="never fall"):
        plan_of(kernels, int32(0, -1), int32(4), table)
    with pytest.raises(ValueError, match="more queries than KV"):
        plan_of(kernels, int32(0, 5), int32(4), table)
    with pytest.raises(ValueError, match="blocks of 4 cannot hold 9 tokens"):
        plan_of(kernels, int32(0, 1), int32(9), table)
    with pytest.raises(ValueError, match="negative"):
        plan_of(kernels, int32(0, 1), int32(4), table - 1)


def test_queries_and_caches_that_do_not_fit_the_plan_raise(kernels: CpuKernels) -> None:
    plan = plan_of(kernels, int32(0, 1), int32(5), int32(1, 3)[None])
    q, cache = torch.ones(1, 2, 8), torch.ones(4, 4, 1, 8)
    with pytest.raises(ValueError, match="is not the plan's"):
        kernels.attention(q[:, :1], cache, cache, plan, scale=1.0)
    with pytest.raises(ValueError, match="window must be at least 1"):
        kernels.attention(q, cache, cache, plan, scale=1.0, window=0)
    with pytest.raises(ValueError, match="the cache's blocks are of 3"):
        kernels.attention(q, cache[:, :3].clone(), cache[:, :3].clone(), plan, scale=1.0)
    with pytest.raises(ValueError, match="block 3 is outside of a cache of 3 blocks"):
        kernels.attention(q, cache[:3], cache[:3], plan, scale=1.0)


@dataclass(frozen=True, slots=True)
class Branch:
    """A sequence that has the first `shared` positions' blocks of an earlier one of the batch."""

    parent: int | None
    shared: int
    kv_len: int
    num_queries: int


TREES = {
    "one prompt": tuple(
        Branch(None if i == 0 else 0, 640, 650 + i, 1 + 2 * (i == 3)) for i in range(9)
    ),
    "levels": (
        Branch(None, 0, 900, 1),
        Branch(0, 520, 700, 1),
        Branch(0, 520, 521, 1),
        Branch(1, 660, 800, 1),
        Branch(1, 660, 661, 100),
        Branch(None, 0, 300, 300),
        Branch(5, 256, 290, 20),
        Branch(5, 256, 256, 1),
        Branch(0, 100, 140, 1),
        Branch(None, 0, 40, 1),
    ),
    "many": tuple(Branch(None if i == 0 else 0, 256, 300 + i, 1) for i in range(70)),
}


def make_tree(
    generator: torch.Generator,
    dtype: torch.dtype,
    block_size: int,
    branches: tuple[Branch, ...],
    cache_dtype: torch.dtype | None = None,
) -> Step:
    """Only whole blocks are shared; the order of the sequences is not that of the tree."""
    shape = AttentionShape(num_heads=6, num_kv_heads=2, head_dim=32, block_size=block_size)
    counts = [-(-branch.kv_len // block_size) for branch in branches]
    tables = torch.full((len(branches), max(counts)), 1 << 30, dtype=torch.int32)
    ids = torch.randperm(sum(counts), generator=generator).to(torch.int32)
    for seq, (branch, count) in enumerate(zip(branches, counts, strict=True)):
        tables[seq, :count], ids = ids[:count], ids[count:]
        if branch.parent is not None:
            num_shared = branch.shared // block_size
            tables[seq, :num_shared] = tables[branch.parent, :num_shared]
    order = torch.randperm(len(branches), generator=generator)
    heads = torch.randn(2, sum(counts), block_size, 2, 32, generator=generator)
    caches = to_rows(heads, cache_dtype or dtype)
    num_queries = tuple(branches[seq].num_queries for seq in order.tolist())
    q = torch.randn(sum(num_queries), 6, 32, generator=generator).to(dtype)
    kv_lens = tuple(branches[seq].kv_len for seq in order.tolist())
    return Step(shape, num_queries, kv_lens, q, caches[0], caches[1], tables[order])


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("block_size", [1, 16, 100])
@pytest.mark.parametrize("branches", TREES.values(), ids=TREES.keys())
def test_reading_shared_blocks_once_does_not_change_a_bit(
    kernels: CpuKernels,
    dtype: torch.dtype,
    generator: torch.Generator,
    branches: tuple[Branch, ...],
    block_size: int,
    options: dict[str, float | int],
    cache_dtype: torch.dtype | None,
) -> None:
    step = make_tree(generator, dtype, block_size, branches, cache_dtype)
    apart = CpuKernels(isa=kernels.isa, num_threads=2, share_prefixes=False)
    expected, expected_lse = step.run(apart, **options)
    for num_threads in (1, 2):
        together = CpuKernels(isa=kernels.isa, num_threads=num_threads)
        out, lse = step.run(together, **options)
        assert torch.equal(out, expected)
        assert torch.equal(lse, expected_lse)


def test_a_batch_that_shares_blocks_matches_the_reference(
    kernels: CpuKernels,
    reference: ReferenceKernels,
    dtype: torch.dtype,
    generator: torch.Generator,
    cache_dtype: torch.dtype | None,
) -> None:
    step = make_tree(generator, dtype, 16, TREES["levels"], cache_dtype)
    check(kernels, reference, step)
