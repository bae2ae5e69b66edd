"""From a configuration to the model that it names, without loading any of it."""

from __future__ import annotations

from pathlib import Path

from ..config import EngineConfig
from ..sources.base import ModelSource
from ..sources.resolve import resolve
from ..sources.store import ModelStore


def open_source(
    config: EngineConfig, cache_dir: Path | None, *, pull_missing: bool = False
) -> ModelSource:
    """The model that the configuration names.

    Args:
        config: of which only `model.model` is used.
        cache_dir: folder of downloaded models; None means `~/.cache/ramet`.
        pull_missing: download the model if it is not here.

    Raises:
        ModelNotFound: there is no such model.
        ConfigError: it cannot be read.
    """
    store = ModelStore(default_cache_dir() if cache_dir is None else cache_dir)
    return resolve(config.model.model, store, pull_missing=pull_missing)


def default_cache_dir() -> Path:
    """Where downloaded models lie if nobody says otherwise."""
    return Path.home() / ".cache" / "ramet"
