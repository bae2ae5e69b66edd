"""The models on this machine: a folder that only ever shows whole ones.

    ROOT/models/NAME/     a whole model and its manifest
    ROOT/staging/NAME/    a download under way; what is there is resumed, never used
    ROOT/locks/NAME.lock  held while a model is pulled or removed

A download becomes a model by one rename, after its bytes are on the disk. It does not know where models
come from.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError, ModelNotFound
from .catalog import near_names
from .json_files import read_json

MANIFEST = "ramet.json"


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model in the store.

    Attributes:
        name: the name that it was pulled by.
        path: its folder, or its GGUF file.
        origin: where it came from, with the commit or version.
        num_bytes: what it takes on disk.
    """

    name: str
    path: Path
    origin: str
    num_bytes: int


class ModelStore:
    """The models below one folder, which is made when the first one is pulled.

    Args:
        root: the folder; staging and models must lie on one filesystem, so they are both below it.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._models = root / "models"
        self._staging = root / "staging"
        self._locks = root / "locks"

    def models(self) -> list[StoredModel]:
        """Every model, by name."""
        if not self._models.is_dir():
            return []
        folders = [folder for folder in self._models.iterdir() if (folder / MANIFEST).is_file()]
        return sorted((_read(folder) for folder in folders), key=lambda model: model.name)

    def find(self, name: str) -> StoredModel | None:
        """The model of that name, or None."""
        folder = self._models / _folder_name(name)
        return _read(folder) if (folder / MANIFEST).is_file() else None

    def remove(self, name: str) -> StoredModel:
        """Delete a model and what a broken-off download of it left; returns what it was.

        Raises:
            ModelNotFound: there is none of that name; lists names like it.
        """
        with self.lock(name):
            staging = self._staging / _folder_name(name)
            shutil.rmtree(staging, ignore_errors=True)
            model = self.find(name)
            if model is None:
                near = near_names(name, [stored.name for stored in self.models()])
                raise ModelNotFound(
                    f"There is no model {name!r} here.",
                    param="model",
                    hint=f"Did you mean {' or '.join(near)}?" if near else None,
                )
            self._staging.mkdir(parents=True, exist_ok=True)
            # Out of sight first: a deletion that is broken off must not leave half a model.
            (self._models / _folder_name(name)).rename(staging)
            shutil.rmtree(staging)
        return model

    @contextmanager
    def lock(self, name: str, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Be the only one, of all processes, that changes a model; freed when a process dies.

        Args:
            name: which model.
            on_wait: called once if somebody else holds the lock.
        """
        self._locks.mkdir(parents=True, exist_ok=True)
        with (self._locks / f"{_folder_name(name)}.lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait()
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def staging(self, name: str) -> Path:
        """The folder for a download of that name, as the last attempt left it. Hold the lock."""
        folder = self._staging / _folder_name(name)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def commit(self, name: str, *, files: list[str], origin: str, entry: str | None) -> StoredModel:
        """Make what lies in the staging folder a model. Hold the lock.

        Whatever is not among `files` is deleted, every file is flushed to the disk, and the folder
        appears among the models in one rename.

        Args:
            name: the model's name; none of that name may be there.
            files: paths, relative to the staging folder, that make up the model.
            origin: where it came from.
            entry: the GGUF file among them that is the model, or None for a folder.
        """
        folder = self._staging / _folder_name(name)
        _prune(folder, {folder / file for file in files})
        manifest = {"name": name, "origin": origin, "entry": entry}
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", "utf-8")
        for path in [*(path for path in folder.rglob("*")), folder]:
            _flush(path)
        self._models.mkdir(parents=True, exist_ok=True)
        folder.rename(self._models / _folder_name(name))
        _flush(self._models)
        return _read(self._models / _folder_name(name))

    def require_space(self, num_bytes: int) -> None:
        """Raise ConfigError, with both numbers, if the disk has not that much room."""
        self.root.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.root).free
        if num_bytes > free:
            raise ConfigError(
                f"The disk of {self.root} is too full: {_gib(num_bytes)} are needed and "
                f"{_gib(free)} are free.",
                hint="Make room (`ramet rm`), or set RAMET_CACHE_DIR to a folder on another disk.",
            )

    @contextmanager
    def disk_errors(self, num_bytes: int) -> Iterator[None]:
        """Turn a full disk, met on the way, into a ConfigError with the size that was needed."""
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            free = shutil.disk_usage(self.root).free
            raise ConfigError(
                f"The disk of {self.root} is full: {_gib(num_bytes)} are needed and "
                f"{_gib(free)} are free now.",
                hint="Make room (`ramet rm`), or set RAMET_CACHE_DIR to a folder on another disk.",
            ) from error


def _folder_name(name: str) -> str:
    # Hub ids never contain "--", so different names get different folders.
    return name.replace("/", "--").replace(":", "--")


def _read(folder: Path) -> StoredModel:
    manifest = read_json(folder / MANIFEST)
    entry = manifest["entry"]
    return StoredModel(
        name=manifest["name"],
        path=folder if entry is None else folder / entry,
        origin=manifest["origin"],
        num_bytes=sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
    )


def _prune(folder: Path, keep: set[Path]) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif path not in keep:
            path.unlink()


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 1024**3:.2f} GiB"
