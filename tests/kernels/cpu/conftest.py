"""Every instruction set of this machine, against the reference."""

from __future__ import annotations

import pytest
import torch

native = pytest.importorskip(
    "ramet.kernels.cpu._native", reason="the native kernels were not built"
)

from ramet.kernels.cpu.kernels import CpuKernels  # noqa: E402
from ramet.kernels.reference import ReferenceKernels  # noqa: E402


@pytest.fixture(params=native.available_isas(), scope="session")
def kernels(request: pytest.FixtureRequest) -> CpuKernels:
    """One instruction set, two threads."""
    return CpuKernels(isa=request.param, num_threads=2)


@pytest.fixture(scope="session")
def reference() -> ReferenceKernels:
    return ReferenceKernels()


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    value = request.param
    assert isinstance(value, torch.dtype)
    return value


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(20)
