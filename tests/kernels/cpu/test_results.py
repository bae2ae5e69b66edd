"""Memory is used again, and never while somebody holds it."""

from __future__ import annotations

import torch

from ramet.kernels.cpu.results import Results


def test_memory_comes_again_once_nobody_holds_it() -> None:
    results = Results()
    first = results.new((4, 100))
    address = first.data_ptr()
    del first
    second = results.new((2, 50))
    assert second.shape == (2, 50)
    assert (second.dtype, second.data_ptr()) == (torch.float32, address)


def test_a_view_holds_its_memory() -> None:
    results = Results()
    first = results.new((4, 100)).fill_(1.0)
    row = first[3]
    del first
    second = results.new((4, 100)).fill_(2.0)
    assert row.tolist() == [1.0] * 100
    assert second.tolist() == [[2.0] * 100] * 4


def test_results_that_live_at_once_share_nothing() -> None:
    results = Results()
    for _ in range(3):
        alive = [results.new((3, 10)).fill_(i) for i in range(4)]
        assert [tensor.tolist() for tensor in alive] == [[[float(i)] * 10] * 3 for i in range(4)]


def test_a_larger_result_gets_memory_of_its_own_size_and_none_gets_none() -> None:
    results = Results()
    results.new((2, 10))
    assert results.new((200, 10)).fill_(1.0).sum() == 2000
    assert results.new((0, 10)).shape == (0, 10)


def test_results_begin_at_cache_lines() -> None:
    results = Results()
    assert all(results.new((rows, 1000)).data_ptr() % 64 == 0 for rows in (1, 7, 300))


def test_a_result_too_large_to_keep_does_not_cost_the_memory_that_is_kept() -> None:
    results = Results()
    address = results.new((4, 100)).data_ptr()
    results.new((9 << 20,))
    assert results.new((4, 100)).data_ptr() == address
