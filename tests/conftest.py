"""What the whole suite shares: one thread of arithmetic, and the one real model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> Iterator[None]:
    """Tiny models are slower on many threads, and tests should not differ between machines."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct as a GGUF file or a folder, pulled once into the user's model store.

    Where it cannot be had, tests that need it are skipped; under CI they fail.
    """
    from ramet.runtime.config import DEFAULT_MODEL
    from ramet.runtime.errors import RametError
    from ramet.runtime.sources.download import pull
    from ramet.runtime.sources.store import ModelStore

    cache_dir = os.environ.get("RAMET_CACHE_DIR") or Path.home() / ".cache" / "ramet"
    try:
        return pull(DEFAULT_MODEL, ModelStore(Path(cache_dir)))
    except RametError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"the real model cannot be had: {error}")


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> Path:
    """The same under its short name."""
    return smollm2_path
