"""How a step is cut: every row once, everything visible gathered, nothing much beside it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.kernels.ops import AttentionShape
from ramet.kernels.plan import TiledPlan

SHAPE = AttentionShape(num_heads=8, num_kv_heads=2, head_dim=16, block_size=16)


def make_plan(lengths: list[tuple[int, int]], shape: AttentionShape = SHAPE) -> TiledPlan:
    """A plan in which block b of sequence s has the id 10,000 * s + b."""
    counts = torch.tensor([0] + [count for count, _ in lengths])
    kv_lens = torch.tensor([kv_len for _, kv_len in lengths])
    columns = -(-int(kv_lens.max()) // shape.block_size)
    tables = torch.arange(len(lengths))[:, None] * 10_000 + torch.arange(columns)
    return TiledPlan(shape, counts.cumsum(0).int(), kv_lens.int(), tables.int())


@given(
    lengths=st.lists(
        st.tuples(st.integers(0, 200), st.integers(0, 3000)).map(
            lambda pair: (pair[0], max(1, pair[0] + pair[1]))
        ),
        min_size=1,
        max_size=20,
    ),
    window=st.none() | st.integers(1, 500),
    block_size=st.sampled_from([1, 16]),
)
@settings(max_examples=40, deadline=None)
def test_every_row_sees_all_of_its_window_in_blocks_of_its_own(
    lengths: list[tuple[int, int]], window: int | None, block_size: int
) -> None:
    plan = make_plan(lengths, AttentionShape(8, 2, 16, block_size))
    ends = torch.tensor([count for count, _ in lengths]).cumsum(0)
    rows = []
    for group in plan.groups(window):
        for tile in group.tiles:
            rows += tile.rows.flatten().tolist()
            gathered = group.kv_positions[:, tile.slots]
            assert gathered.shape[1] == tile.slots.stop - tile.slots.start
            last = tile.positions[:, -1:]
            first = tile.positions[:, :1] - (window - 1 if window else last.max() + 1)
            # Gathered positions run without gaps from before the first one visible to the last.
            assert bool((gathered[:, :1] <= first.clamp(min=0)).all())
            assert bool((gathered[:, -1:] >= last).all())
        owners = group.block_ids // 10_000
        assert bool((owners == owners[:, :1]).all())
        seqs = torch.searchsorted(ends, group.tiles[0].rows[:, 0], right=True)
        torch.testing.assert_close(owners[:, 0], seqs)
    assert sorted(rows) == list(range(int(ends[-1])))


@given(
    lengths=st.lists(st.integers(1, 40_000), min_size=1, max_size=40),
    window=st.none() | st.integers(1, 5000),
)
@settings(max_examples=40, deadline=None)
def test_padding_at_most_doubles_the_blocks_that_decodes_read(
    lengths: list[int], window: int | None
) -> None:
    plan = make_plan([(1, length) for length in lengths])
    needed = gathered = 0
    for group in plan.groups(window):
        gathered += group.block_ids.numel()
        assert group.block_ids.shape[0] == 1 or group.kv_positions.numel() * 32 <= 1 << 20
    for length in lengths:
        low = 0 if window is None else max(0, length - window)
        needed += (length - 1) // 16 - low // 16 + 1
    assert gathered <= 2 * needed


@pytest.mark.parametrize("window", [None, 4096, 10])
def test_a_long_chunk_over_a_long_context_stays_in_small_tiles(window: int | None) -> None:
    (group,) = make_plan([(2048, 8192)]).groups(window)
    scores = [
        tile.rows.numel() * SHAPE.num_heads * (tile.slots.stop - tile.slots.start)
        for tile in group.tiles
    ]
    assert max(scores) <= 1 << 22
    assert sum(tile.rows.numel() for tile in group.tiles) == 2048


def test_a_window_keeps_the_prefix_out_of_the_gather() -> None:
    (group,) = make_plan([(32, 4096)]).groups(100)
    assert group.block_ids.shape[1] <= (100 + 32) // 16 + 2


def test_groups_are_made_once_per_window() -> None:
    plan = make_plan([(1, 40), (3, 9)])
    assert plan.groups(8) is plan.groups(8)
    assert plan.groups(8) is not plan.groups(None)


INT32 = torch.int32


@pytest.mark.parametrize(
    ("cu_seqlens", "kv_lens", "tables", "message"),
    [
        (torch.tensor([0, 1]), torch.tensor([1], dtype=INT32), (1, 1), "cu_seqlens must be int32"),
        (torch.tensor([0, 1], dtype=INT32), torch.tensor([1.0]), (1, 1), "kv_lens must be int32"),
        (torch.tensor([0, 1], dtype=INT32), torch.tensor([1], dtype=INT32), (1,), "2 dimension"),
        (torch.tensor([0, 1, 2], dtype=INT32), torch.tensor([1], dtype=INT32), (1, 1), "2 and 1"),
        (torch.tensor([0, 1], dtype=INT32), torch.tensor([1], dtype=INT32), (2, 1), "2 and 1"),
        (torch.tensor([1, 2], dtype=INT32), torch.tensor([1], dtype=INT32), (1, 1), "start at 0"),
        (torch.tensor([0, 3, 1], dtype=INT32), torch.tensor([3, 3], dtype=INT32), (2, 1), "fall"),
        (torch.tensor([0, 5], dtype=INT32), torch.tensor([4], dtype=INT32), (1, 1), "more queries"),
        (torch.tensor([0, 1], dtype=INT32), torch.tensor([17], dtype=INT32), (1, 1), "cannot hold"),
    ],
)
def test_inputs_that_do_not_fit_together_raise(
    cu_seqlens: torch.Tensor, kv_lens: torch.Tensor, tables: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        TiledPlan(SHAPE, cu_seqlens, kv_lens, torch.zeros(tables, dtype=INT32))
