from __future__ import annotations

import pytest
import torch

from ramet.kernels.cpu.kv_tiles import in_tiles, to_tiles

NUM_BLOCKS, BLOCK_SIZE, NUM_HEADS, HEAD_DIM = 3, 32, 2, 64


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("part", ["keys", "values"])
def test_an_element_lies_where_the_drawing_says(dtype: torch.dtype, part: str) -> None:
    n = 4 // dtype.itemsize
    row_size = HEAD_DIM + (4 if dtype == torch.int8 else 0)
    shape = (NUM_BLOCKS, BLOCK_SIZE, NUM_HEADS, row_size)
    rows = torch.randint(-128, 128, shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    flat = to_tiles(rows, part).flatten()
    for block, position, head, d in ((0, 0, 0, 0), (1, 5, 1, 7), (2, 31, 0, 63), (0, 18, 1, 34)):
        tile = ((block * NUM_HEADS + head) * BLOCK_SIZE // 16 + position // 16) * 16 * row_size
        p = position % 16
        if part == "keys":
            at = (d // n * 16 + p) * n + d % n
        else:
            at = (p // n * HEAD_DIM + d) * n + p % n
        assert flat[tile + at] == rows[block, position, head, d]
        scale = flat[tile + 16 * HEAD_DIM :][4 * p : 4 * p + 4]
        if dtype == torch.int8:
            assert torch.equal(scale, rows[block, position, head, HEAD_DIM:])


def test_other_shapes_stay_rows() -> None:
    assert in_tiles(32, 16) and in_tiles(128, 64)
    for head_dim, block_size in ((40, 16), (64, 8), (64, 24), (2048, 16)):
        assert not in_tiles(head_dim, block_size)
        rows = torch.randn(2, block_size, 1, head_dim)
        assert torch.equal(to_tiles(rows, "keys"), rows)
