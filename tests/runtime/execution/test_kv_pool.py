from pathlib import Path

import pytest
import torch

from ramet.kernels.kv_rows import from_rows, to_rows
from ramet.runtime.execution.kv_pool import PagedKVPool


def make(num_blocks: int, dtype: torch.dtype = torch.float32) -> PagedKVPool:
    return PagedKVPool(
        num_layers=2,
        num_blocks=num_blocks,
        block_size=4,
        num_kv_heads=2,
        head_dim=8,
        dtype=dtype,
        device=torch.device("cpu"),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_new_pool_is_all_zeros_in_the_layout_it_states(dtype: torch.dtype) -> None:
    pool = make(6, dtype)
    assert pool.data.shape == (2, 2, 6, 4, 2, 8) and pool.data.dtype == dtype
    assert not pool.data.any()
    pool.keys(1)[3, 2] = 1
    pool.values(0)[5] = 2
    assert pool.data.double().sum() == 16 + 2 * 64


def test_a_copied_block_of_8_bits_reads_the_same() -> None:
    pool = make(3, torch.int8)
    assert pool.data.shape == (2, 2, 3, 4, 2, 12)
    heads = torch.randn(4, 2, 8, generator=torch.Generator().manual_seed(0))
    pool.keys(0)[1] = to_rows(heads, torch.int8)
    pool.values(1)[1] = to_rows(-heads, torch.int8)
    pool.copy_blocks(torch.tensor([[1, 2]]))
    for cache, stored in ((pool.keys(0), heads), (pool.values(1), -heads)):
        assert torch.equal(cache[2], cache[1])
        torch.testing.assert_close(from_rows(cache[2]), stored, rtol=0, atol=0.02)
    assert not pool.data[:, :, 0].any()


def test_copies_read_every_source_before_they_write() -> None:
    pool = make(4)
    pool.data += torch.arange(1.0, 5).view(1, 1, 4, 1, 1, 1)
    pool.copy_blocks(torch.tensor([[0, 1], [1, 2]]))
    assert pool.data[0, 0, :, 0, 0, 0].tolist() == [1, 1, 2, 4]
    assert pool.data[1, 1, :, 3, 1, 7].tolist() == [1, 1, 2, 4]


def test_memory_is_taken_when_it_is_written_and_not_before() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before = resident()
    pool = make(2**20)  # 1 GiB
    assert pool.data.numel() * 4 == 2**30
    assert resident() - before < 2**26
