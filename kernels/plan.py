"""How the torch implementations cut one step's attention into batched pieces.

It owns the arithmetic of rows, blocks and positions; it does not know keys, values or scores.

    Group   sequences whose KV is gathered together: one prefill, or decodes of similar length
    Tile    query rows of a group that are computed together, and the slots that they can see
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .ops import AttentionShape

# Scores of one tile (rows x heads x slots): 16 MiB in float32, so that a chunk of any length over a
# context of any length stays small.
_MAX_SCORES = 1 << 22
_MIN_TILE_ROWS = 16
# Elements of the keys that decodes gather at once, more only if a single sequence is longer. Larger
# gathers were twice as slow: their memory leaves the cache, and is given back and faulted in each time.
_MAX_GATHERED = 1 << 20


@dataclass(frozen=True, slots=True)
class Tile:
    """Query rows computed together.

    Attributes:
        rows: `[group_size, num_rows]` int64, rows of q.
        positions: `[group_size, num_rows]` int64, their positions.
        slots: range of the group's gathered slots that holds everything the rows can see.
    """

    rows: torch.Tensor
    positions: torch.Tensor
    slots: slice


@dataclass(frozen=True, slots=True)
class Group:
    """Sequences whose KV is gathered together.

    Attributes:
        block_ids: `[group_size, num_gathered_blocks]` int64.
        kv_positions: `[group_size, num_gathered_slots]` int64, the position in each gathered slot.
            Slots past the end of a sequence carry positions past it, so causality hides them.
        tiles: the rows; every row of the group is in exactly one tile.
    """

    block_ids: torch.Tensor
    kv_positions: torch.Tensor
    tiles: tuple[Tile, ...]


class TiledPlan:
    """One step's groups, made for each window when a layer first asks for it.

    Args:
        shape: heads and block size.
        cu_seqlens, kv_lens, block_tables: as `Kernels.plan_attention` takes them.
    """

    def __init__(
        self,
        shape: AttentionShape,
        cu_seqlens: torch.Tensor,
        kv_lens: torch.Tensor,
        block_tables: torch.Tensor,
    ) -> None:
        _check(shape, cu_seqlens, kv_lens, block_tables)
        self.shape = shape
        self._starts = cu_seqlens.tolist()
        self._kv_lens = kv_lens.tolist()
        self._block_tables = block_tables.long()
        self._groups: dict[int | None, tuple[Group, ...]] = {}

    @property
    def num_tokens(self) -> int:
        """Query rows that the plan covers."""
        return int(self._starts[-1])

    def groups(self, window: int | None) -> tuple[Group, ...]:
        """The groups for layers with that window; a row is in one tile of one group.

        Raises:
            ValueError: the window is below one.
        """
        if window is not None and window < 1:
            raise ValueError(f"window must be at least 1, not {window}")
        if window not in self._groups:
            self._groups[window] = tuple(self._build(window))
        return self._groups[window]

    def _build(self, window: int | None) -> list[Group]:
        num_rows = [end - start for start, end in zip(self._starts, self._starts[1:], strict=False)]
        prefills = [seq for seq, count in enumerate(num_rows) if count > 1]
        decodes = [seq for seq, count in enumerate(num_rows) if count == 1]
        return [self._prefill(seq, num_rows[seq], window) for seq in prefills] + [
            self._decodes(seqs, window) for seqs in self._buckets(decodes, window)
        ]

    def _first_block(self, position: int, window: int | None) -> int:
        """The first block that a query at that position can see into."""
        return 0 if window is None else max(0, position - window + 1) // self.shape.block_size

    def _num_blocks(self, seq: int, window: int | None) -> int:
        """Blocks that the last query of a sequence can see into."""
        last_position = self._kv_lens[seq] - 1
        return int(last_position // self.shape.block_size + 1) - self._first_block(
            last_position, window
        )

    def _buckets(self, decodes: list[int], window: int | None) -> list[list[int]]:
        """Decodes sorted by visible length and cut, so that padding at most doubles the work."""
        buckets: list[list[int]] = []
        smallest = 0
        block = self.shape.block_size * self.shape.num_kv_heads * self.shape.head_dim
        for seq in sorted(decodes, key=lambda seq: self._num_blocks(seq, window)):
            num_blocks = self._num_blocks(seq, window)
            full = not buckets or (len(buckets[-1]) + 1) * num_blocks * block > _MAX_GATHERED
            if full or num_blocks > 2 * smallest:
                buckets.append([])
                smallest = num_blocks
            buckets[-1].append(seq)
        return buckets

    def _gather(self, seqs: list[int], first_blocks: list[int], num_blocks: int) -> Group:
        device = self._block_tables.device
        first = torch.tensor(first_blocks, device=device)[:, None]
        columns = first + torch.arange(num_blocks, device=device)
        block_size = self.shape.block_size
        offsets = torch.arange(num_blocks * block_size, device=device)
        # A shorter sequence is padded with its own last block: nobody else's KV is ever read.
        last = torch.tensor(
            [(self._kv_lens[seq] - 1) // block_size for seq in seqs], device=device
        )[:, None]
        tables = self._block_tables[torch.tensor(seqs, device=device)]
        return Group(
            block_ids=tables.gather(1, columns.minimum(last)),
            kv_positions=first * block_size + offsets,
            tiles=(),
        )

    def _decodes(self, seqs: list[int], window: int | None) -> Group:
        device = self._block_tables.device
        last_positions = [self._kv_lens[seq] - 1 for seq in seqs]
        num_blocks = max(self._num_blocks(seq, window) for seq in seqs)
        gathered = self._gather(
            seqs, [self._first_block(position, window) for position in last_positions], num_blocks
        )
        tile = Tile(
            rows=torch.tensor([self._starts[seq] for seq in seqs], device=device)[:, None],
            positions=torch.tensor(last_positions, device=device)[:, None],
            slots=slice(0, num_blocks * self.shape.block_size),
        )
        return Group(gathered.block_ids, gathered.kv_positions, (tile,))

    def _prefill(self, seq: int, num_rows: int, window: int | None) -> Group:
        device = self._block_tables.device
        kv_len, block_size = self._kv_lens[seq], self.shape.block_size
        first_position = kv_len - num_rows
        first_block = self._first_block(first_position, window)
        gathered = self._gather([seq], [first_block], (kv_len - 1) // block_size + 1 - first_block)
        first_gathered = first_block * block_size
        visible = kv_len if window is None else min(kv_len, window + num_rows)
        tile_rows = max(_MIN_TILE_ROWS, _MAX_SCORES // (self.shape.num_heads * visible))
        tiles = []
        for begin in range(0, num_rows, tile_rows):
            end = min(begin + tile_rows, num_rows)
            positions = torch.arange(first_position + begin, first_position + end, device=device)
            low = 0 if window is None else max(0, first_position + begin - window + 1)
            tiles.append(
                Tile(
                    rows=(positions + (self._starts[seq] - first_position))[None],
                    positions=positions[None],
                    slots=slice(low - first_gathered, first_position + end - first_gathered),
                )
            )
        return Group(gathered.block_ids, gathered.kv_positions, tuple(tiles))


def _check(
    shape: AttentionShape,
    cu_seqlens: torch.Tensor,
    kv_lens: torch.Tensor,
    block_tables: torch.Tensor,
) -> None:
    for name, tensor, dims in (
        ("cu_seqlens", cu_seqlens, 1),
        ("kv_lens", kv_lens, 1),
        ("block_tables", block_tables, 2),
    ):
        if tensor.dtype != torch.int32 or tensor.dim() != dims:
            raise ValueError(
                f"{name} must be int32 with {dims} dimension(s), not {tensor.dtype} "
                f"{list(tensor.shape)}"
            )
    num_seqs = kv_lens.shape[0]
    if cu_seqlens.shape[0] != num_seqs + 1 or block_tables.shape[0] != num_seqs:
        raise ValueError(
            f"cu_seqlens {list(cu_seqlens.shape)} and block_tables {list(block_tables.shape)} must "
            f"have {num_seqs + 1} and {num_seqs} rows for {num_seqs} kv_lens"
        )
    num_rows = cu_seqlens.diff()
    if num_seqs and (bool((num_rows < 0).any()) or int(cu_seqlens[0]) != 0):
        raise ValueError("cu_seqlens must start at 0 and never fall")
    if bool((num_rows > kv_lens).any()):
        raise ValueError("a sequence has more queries than KV: kv_lens must count this step's too")
    if num_seqs and int(kv_lens.max()) > block_tables.shape[1] * shape.block_size:
        raise ValueError(
            f"block_tables of {block_tables.shape[1]} blocks of {shape.block_size} cannot hold "
            f"{int(kv_lens.max())} tokens"
        )
