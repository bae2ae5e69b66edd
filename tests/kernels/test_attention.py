"""The contract of attention, for every implementation, against one query at a time in float64."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from ramet.kernels import ops
from ramet.kernels import plan as plan_module
from ramet.kernels.kv_rows import from_rows, to_rows

# Outputs are averages of values of size about 1 to 3; bfloat16 kernels round the weights as well.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
# Products of the inputs are exact in float32, so that only sums and the soft cap round.
LSE_TOLERANCE = 5e-4

# (new tokens, tokens of KV) per sequence.
BATCHES = {
    "one decode": [(1, 37)],
    "first token": [(1, 1)],
    "whole prompt": [(45, 45)],
    "chunk after a prefix": [(19, 60)],
    "two tokens": [(2, 17)],
    "decodes of many lengths": [(1, length) for length in (3, 100, 16, 17, 1, 64, 33, 2)],
    "mixed": [(1, 50), (23, 23), (1, 9), (7, 71), (1, 16), (1, 90), (16, 32)],
}


@dataclass(frozen=True)
class Case:
    """Random tensors of one step, with the blocks of all sequences shuffled together."""

    shape: ops.AttentionShape
    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    cu_seqlens: torch.Tensor
    kv_lens: torch.Tensor
    block_tables: torch.Tensor

    def run(
        self, kernels: ops.Kernels, window: int | None = None, softcap: float | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        plan = kernels.plan_attention(
            self.shape,
            cu_seqlens=self.cu_seqlens,
            kv_lens=self.kv_lens,
            block_tables=self.block_tables,
        )
        assert plan.num_tokens == self.q.shape[0]
        return kernels.attention(
            self.q,
            self.k_cache,
            self.v_cache,
            plan,
            scale=self.shape.head_dim**-0.5,
            window=window,
            softcap=softcap,
        )

    def expect(
        self, window: int | None = None, softcap: float | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out = torch.zeros(self.q.shape, dtype=torch.float64)
        lse = torch.zeros(self.q.shape[:2], dtype=torch.float64)
        repeats = self.shape.num_heads // self.shape.num_kv_heads
        for seq, kv_len in enumerate(self.kv_lens.tolist()):
            begin, end = self.cu_seqlens[seq : seq + 2].tolist()
            for row in range(begin, end):
                position = kv_len - end + row
                low = 0 if window is None else max(0, position - window + 1)
                slots = [self.slot(seq, seen) for seen in range(low, position + 1)]
                keys, values = (
                    from_rows(flat(cache)[slots]).double().repeat_interleave(repeats, 1)
                    for cache in (self.k_cache, self.v_cache)
                )
                scores = torch.einsum("hd,shd->hs", self.q[row].double(), keys)
                scores = scores * self.shape.head_dim**-0.5
                if softcap is not None:
                    scores = softcap * torch.tanh(scores / softcap)
                lse[row] = scores.logsumexp(-1)
                out[row] = torch.einsum("hs,shd->hd", scores.softmax(-1), values)
        return out, lse

    def slot(self, seq: int, position: int) -> int:
        size = self.shape.block_size
        return int(self.block_tables[seq, position // size]) * size + position % size


def flat(cache: torch.Tensor) -> torch.Tensor:
    return cache.view(-1, *cache.shape[2:])


def make_case(
    lengths: list[tuple[int, int]],
    *,
    heads: tuple[int, int] = (6, 2),
    head_dim: int = 16,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    cache_dtype: torch.dtype | None = None,
) -> Case:
    rng = torch.Generator().manual_seed(1)
    num_blocks = [-(-kv_len // block_size) for _, kv_len in lengths]
    tables = torch.zeros(len(lengths), max(num_blocks), dtype=torch.int32)
    shuffled = (
        torch.randperm(sum(num_blocks) + 2, generator=rng).int().split_with_sizes([*num_blocks, 2])
    )
    for seq, ids in enumerate(shuffled[:-1]):
        tables[seq, : len(ids)] = ids
    cache_shape = (sum(num_blocks) + 2, block_size, heads[1], head_dim)
    new = torch.tensor([0] + [count for count, _ in lengths])
    return Case(
        shape=ops.AttentionShape(*heads, head_dim, block_size),
        q=torch.randn(int(new.sum()), heads[0], head_dim, generator=rng).to(dtype),
        k_cache=to_rows(torch.randn(cache_shape, generator=rng), cache_dtype or dtype),
        v_cache=to_rows(torch.randn(cache_shape, generator=rng), cache_dtype or dtype),
        cu_seqlens=new.cumsum(0).int(),
        kv_lens=torch.tensor([kv_len for _, kv_len in lengths]).int(),
        block_tables=tables,
    )


def check(
    kernels: ops.Kernels,
    case: Case,
    window: int | None = None,
    softcap: float | None = None,
    lse_tolerance: float = LSE_TOLERANCE,
) -> None:
    out, lse = case.run(kernels, window, softcap)
    expected_out, expected_lse = case.expect(window, softcap)
    assert out.dtype == case.q.dtype and lse.dtype == torch.float32
    tolerance = TOLERANCE[case.q.dtype]
    torch.testing.assert_close(out.double(), expected_out, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(lse.double(), expected_lse, atol=lse_tolerance, rtol=lse_tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("block_size", [1, 16])
@pytest.mark.parametrize("batch", BATCHES)
def test_every_kind_of_batch(
    kernels: ops.Kernels, batch: str, block_size: int, dtype: torch.dtype
) -> None:
    check(kernels, make_case(BATCHES[batch], block_size=block_size, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("cache_dtype", [torch.int8, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [16, 96])
def test_caches_of_another_dtype(
    kernels: ops.Kernels, head_dim: int, cache_dtype: torch.dtype, dtype: torch.dtype
) -> None:
    case = make_case(BATCHES["mixed"], head_dim=head_dim, dtype=dtype, cache_dtype=cache_dtype)
    # An implementation may round what it reads to the queries' dtype.
    tolerance = max(LSE_TOLERANCE, TOLERANCE[dtype])
    check(kernels, case, lse_tolerance=tolerance)
    check(kernels, case, window=20, softcap=5.0, lse_tolerance=tolerance)


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("window", [1, 5, 16, 40, 1000])
@pytest.mark.parametrize("block_size", [1, 16])
def test_windows_and_soft_caps(
    kernels: ops.Kernels, block_size: int, window: int, softcap: float | None
) -> None:
    check(kernels, make_case(BATCHES["mixed"], block_size=block_size), window, softcap)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("heads", [(4, 4), (9, 3), (8, 1)])
@pytest.mark.parametrize("head_dim", [16, 64, 96, 256])
def test_heads_and_head_sizes(
    kernels: ops.Kernels, head_dim: int, heads: tuple[int, int], dtype: torch.dtype
) -> None:
    lengths = [(1, 21), (5, 18), (1, 3)]
    check(kernels, make_case(lengths, heads=heads, head_dim=head_dim, block_size=8, dtype=dtype))


def test_soft_cap_in_bfloat16(kernels: ops.Kernels) -> None:
    check(kernels, make_case(BATCHES["mixed"], dtype=torch.bfloat16), window=20, softcap=5.0)


@pytest.mark.parametrize("window", [None, 11])
def test_small_tiles_change_nothing(
    kernels: ops.Kernels, monkeypatch: pytest.MonkeyPatch, window: int | None
) -> None:
    monkeypatch.setattr(plan_module, "_MAX_SCORES", 500)
    monkeypatch.setattr(plan_module, "_MIN_TILE_ROWS", 3)
    monkeypatch.setattr(plan_module, "_MAX_GATHERED", 64 * 32)
    check(kernels, make_case(BATCHES["mixed"], block_size=4), window)


def test_one_plan_serves_layers_with_and_without_windows(kernels: ops.Kernels) -> None:
    case = make_case(BATCHES["mixed"])
    plan = kernels.plan_attention(
        case.shape,
        cu_seqlens=case.cu_seqlens,
        kv_lens=case.kv_lens,
        block_tables=case.block_tables,
    )
    for window in (7, None, 7, 30):
        out, _ = kernels.attention(
            case.q, case.k_cache, case.v_cache, plan, scale=0.25, window=window
        )
        torch.testing.assert_close(out.double(), case.expect(window)[0], atol=1e-5, rtol=1e-5)


def test_queries_may_be_a_view_into_a_wider_product(kernels: ops.Kernels) -> None:
    case = make_case(BATCHES["mixed"])
    wide = torch.cat((case.q, case.q), dim=1)
    view = Case(**{**vars(case), "q": wide[:, : case.shape.num_heads]})
    assert not view.q.is_contiguous()
    torch.testing.assert_close(view.run(kernels)[0], case.run(kernels)[0])


def test_the_kv_of_other_sequences_is_never_read(kernels: ops.Kernels) -> None:
    case = make_case(BATCHES["decodes of many lengths"], block_size=4)
    clean, _ = case.run(kernels)
    poisoned_seq = 1
    for position in range(int(case.kv_lens[poisoned_seq])):
        flat(case.k_cache)[case.slot(poisoned_seq, position)] = torch.nan
        flat(case.v_cache)[case.slot(poisoned_seq, position)] = torch.nan
    # Entries past the end of a row may name any block.
    for seq, kv_len in enumerate(case.kv_lens.tolist()):
        case.block_tables[seq, -(-kv_len // 4) :] = case.block_tables[poisoned_seq, 0]
    out, lse = case.run(kernels)
    assert out[poisoned_seq].isnan().all()
    others = [seq for seq in range(len(case.kv_lens)) if seq != poisoned_seq]
    torch.testing.assert_close(out[others], clean[others])
    assert lse[others].isfinite().all()


def test_sequences_that_share_blocks_read_the_same_kv(kernels: ops.Kernels) -> None:
    case = make_case([(1, 40), (1, 44), (3, 37)], block_size=8)
    case.block_tables[1:, :4] = case.block_tables[0, :4]
    check(kernels, case)


def test_a_sequence_without_new_tokens_is_skipped(kernels: ops.Kernels) -> None:
    check(kernels, make_case([(1, 20), (0, 12), (4, 9)]))


def test_queries_that_do_not_fit_the_plan_raise(kernels: ops.Kernels) -> None:
    case = make_case([(3, 8)])
    plan = kernels.plan_attention(
        case.shape,
        cu_seqlens=case.cu_seqlens,
        kv_lens=case.kv_lens,
        block_tables=case.block_tables,
    )
    for q in (case.q[:2], case.q[:, :3]):
        with pytest.raises(ValueError, match="is not the plan's 3 rows"):
            kernels.attention(q, case.k_cache, case.v_cache, plan, scale=1.0)


def test_a_window_below_one_raises(kernels: ops.Kernels) -> None:
    with pytest.raises(ValueError, match="window must be at least 1, not 0"):
        make_case([(1, 4)]).run(kernels, window=0)


def halves(case: Case, kernels: ops.Kernels) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The last token's attention over the first two blocks, and over the others."""
    parts = []
    for columns, kv_len in ((slice(0, 2), 16), (slice(2, None), int(case.kv_lens[0]) - 16)):
        part = Case(
            **{
                **vars(case),
                "kv_lens": torch.tensor([kv_len]).int(),
                "block_tables": case.block_tables[:, columns],
            }
        )
        parts.append(part.run(kernels))
    return parts


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_merge_states_equals_attention_over_the_union(
    kernels: ops.Kernels, dtype: torch.dtype
) -> None:
    case = make_case([(1, 43)], block_size=8, dtype=dtype)
    (out_a, lse_a), (out_b, lse_b) = halves(case, kernels)
    out, lse = kernels.merge_states(out_a, lse_a, out_b, lse_b)
    expected_out, expected_lse = case.expect()
    assert out.dtype == dtype
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(out.double(), expected_out, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(lse.double(), expected_lse, atol=LSE_TOLERANCE, rtol=LSE_TOLERANCE)


def test_merge_states_with_an_empty_set_changes_nothing(kernels: ops.Kernels) -> None:
    out, lse = make_case([(3, 30)]).run(kernels)
    nothing, never = torch.zeros_like(out), torch.full_like(lse, -torch.inf)
    for merged in (
        kernels.merge_states(out, lse, nothing, never),
        kernels.merge_states(nothing, never, out, lse),
    ):
        torch.testing.assert_close(merged[0], out)
        torch.testing.assert_close(merged[1], lse)
    empty_out, empty_lse = kernels.merge_states(nothing, never, nothing, never)
    assert not empty_out.any() and bool((empty_lse == -torch.inf).all())


def test_merge_states_survives_scores_that_overflow_exp(kernels: ops.Kernels) -> None:
    out_a, out_b = torch.ones(1, 1, 4), torch.zeros(1, 1, 4)
    out, lse = kernels.merge_states(
        out_a, torch.tensor([[1000.0]]), out_b, torch.tensor([[1000.0]])
    )
    torch.testing.assert_close(out, torch.full((1, 1, 4), 0.5))
    torch.testing.assert_close(lse, torch.tensor([[1000.6931]]))
