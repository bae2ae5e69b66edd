from __future__ import annotations

import multiprocessing
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from ramet.kernels import ops
from ramet.kernels.cores import num_physical_cores
from ramet.kernels.cpu import _native
from ramet.kernels.cpu.kernels import CpuKernels


def test_the_default_is_the_fastest_instruction_set_and_every_core() -> None:
    kernels = CpuKernels()
    assert kernels.isa == _native.fastest_isa()
    assert kernels.num_threads == num_physical_cores() >= 1


def test_the_fastest_instruction_set_is_the_highest_or_the_one_below_slow_pair_products() -> None:
    *lower, highest = _native.available_isas()
    assert _native.fastest_isa() in (highest, *(lower[-1:] if highest == "avx512_bf16" else ()))


def test_the_portable_path_is_always_there() -> None:
    assert _native.available_isas()[0] == "portable"


def test_unknown_instruction_sets_and_too_few_threads_raise() -> None:
    with pytest.raises(ValueError, match="unknown instruction set sse9"):
        CpuKernels(isa="sse9")
    with pytest.raises(ValueError, match="num_threads must be at least 1, not 0"):
        CpuKernels(num_threads=0)


def test_many_small_jobs_from_several_callers_all_finish() -> None:
    kernels = CpuKernels(num_threads=4)
    weight = torch.randn(256, 64)
    packed = kernels.pack_linear(weight)
    x = torch.randn(8, 64)
    expected = kernels.linear(x, packed)

    def call(_: int) -> bool:
        return all(torch.equal(kernels.linear(x, packed), expected) for _ in range(50))

    with ThreadPoolExecutor(3) as callers:
        assert all(callers.map(call, range(6)))


def test_threads_end_with_their_kernels() -> None:
    before = threading.active_count()
    for _ in range(20):
        kernels = CpuKernels(num_threads=3)
        kernels.linear(torch.ones(4, 32), kernels.pack_linear(torch.ones(256, 32)))
        del kernels
    assert threading.active_count() == before


def test_weights_outlive_the_kernels_that_packed_them() -> None:
    packed = CpuKernels(num_threads=1).pack_linear(torch.arange(64.0).view(8, 8))
    row = CpuKernels(num_threads=1).embedding(torch.tensor([3]), packed)
    assert row.tolist() == [[24.0, 25.0, 26.0, 27.0, 28.0, 29.0, 30.0, 31.0]]


def _compute_in_child(kernels: CpuKernels, packed: _native.PackedLinear) -> None:
    out = kernels.linear(torch.ones(4, 32), packed)
    raise SystemExit(0 if bool((out == 32).all()) else 1)


def test_a_forked_child_computes_alone() -> None:
    kernels = CpuKernels(num_threads=3)
    packed = kernels.pack_linear(torch.ones(256, 32))
    kernels.linear(torch.ones(4, 32), packed)
    context = multiprocessing.get_context("fork")
    child = context.Process(target=_compute_in_child, args=(kernels, packed))
    child.start()
    child.join(30)
    assert child.exitcode == 0


def test_ops_load_gives_them_by_name_on_a_cpu_only() -> None:
    kernels = ops.load("cpu", torch.device("cpu"))
    assert isinstance(kernels, CpuKernels)
    assert kernels.name == "cpu"
    with pytest.raises(ValueError, match="run on cpu, not on meta"):
        ops.load("cpu", torch.device("meta"))


def test_ops_load_says_so_where_they_were_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("kernels", "arguments", "_native"):
        monkeypatch.delitem(sys.modules, f"ramet.kernels.cpu.{name}")
    monkeypatch.delattr("ramet.kernels.cpu._native")
    monkeypatch.setitem(sys.modules, "ramet.kernels.cpu._native", None)
    with pytest.raises(ValueError, match="were not built"):
        ops.load("cpu", torch.device("cpu"))
