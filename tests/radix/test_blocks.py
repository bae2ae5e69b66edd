from __future__ import annotations

import pytest

from ramet.radix import IntegrityError
from ramet.radix.blocks import BlockAllocator

LENGTHS = [3, 40]  # a loop, and numpy


def totals(allocator: BlockAllocator) -> tuple[int, int, int, int, int]:
    return (
        allocator.num_free,
        allocator.num_cached,
        allocator.num_private,
        allocator.num_pinned,
        allocator.num_evictable,
    )


@pytest.mark.parametrize("n", LENGTHS)
def test_a_block_passes_through_every_state(n: int) -> None:
    allocator = BlockAllocator(n)
    ids = allocator.take(n)
    assert sorted(ids) == list(range(n))
    assert totals(allocator) == (0, 0, n, 0, 0)
    allocator.add_references(ids)
    assert totals(allocator) == (0, n, 0, 0, 0)
    allocator.pin(ids)
    allocator.pin(ids)
    assert totals(allocator) == (0, n, 0, n, 0)
    allocator.drop_private(ids)
    assert totals(allocator) == (0, n, 0, n, 0)
    allocator.unpin(ids)
    assert totals(allocator) == (0, n, 0, n, 0)
    allocator.unpin(ids)
    assert totals(allocator) == (0, n, 0, 0, n)
    allocator.drop_references(ids)
    assert totals(allocator) == (n, 0, 0, 0, 0)


@pytest.mark.parametrize("n", LENGTHS)
def test_pins_over_private_holds_are_not_counted_as_evictable(n: int) -> None:
    allocator = BlockAllocator(n)
    ids = allocator.take(n)
    allocator.add_references(ids)
    allocator.pin(ids)
    allocator.unpin(ids)
    assert totals(allocator) == (0, n, 0, 0, 0)
    allocator.drop_private(ids)
    assert totals(allocator) == (0, n, 0, 0, n)


@pytest.mark.parametrize("n", LENGTHS)
def test_pins_alone_keep_a_block(n: int) -> None:
    allocator = BlockAllocator(n)
    ids = allocator.take(n)
    allocator.add_references(ids)
    allocator.pin(ids)
    allocator.drop_private(ids)
    allocator.drop_references(ids)
    assert totals(allocator) == (0, 0, n, n, 0)
    allocator.unpin(ids)
    assert totals(allocator) == (n, 0, 0, 0, 0)


@pytest.mark.parametrize("n", LENGTHS)
def test_holds_that_do_not_exist_raise(n: int) -> None:
    allocator = BlockAllocator(n)
    ids = list(range(n))
    for operation in (
        allocator.drop_private,
        allocator.add_references,
        allocator.drop_references,
        allocator.pin,
        allocator.unpin,
    ):
        with pytest.raises(IntegrityError, match="block"):
            operation(ids)
    with pytest.raises(IntegrityError, match="free"):
        allocator.take(n + 1)
    assert totals(allocator) == (n, 0, 0, 0, 0)


def test_ids_out_of_range_raise() -> None:
    allocator = BlockAllocator(2)
    for block in (-1, 2):
        with pytest.raises(ValueError, match="not one of"):
            allocator.is_private(block)
    with pytest.raises(ValueError, match="num_blocks"):
        BlockAllocator(0)
