"""Every implementation of the kernels that runs on this machine, one test run each."""

from __future__ import annotations

import pytest
import torch

from ramet.kernels import ops


@pytest.fixture(params=["reference", "sdpa"])
def kernels(request: pytest.FixtureRequest) -> ops.Kernels:
    return ops.load(request.param, torch.device("cpu"))


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)
