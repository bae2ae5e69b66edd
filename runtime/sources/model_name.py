"""What a model's name says: which repository on the hub, and which file of it.

smollm2-135m-instruct          a name from the catalog
owner/model                    a repository on the Hugging Face hub
owner/model:file.gguf          one GGUF file of it
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import ModelNotFound
from .catalog import CATALOG, WheelFile, find_entry, near_names

_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_HUB = re.compile(rf"({_PART}/{_PART})(?::((?:[\w.\-]+/)*[\w.\-]+\.gguf))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class ModelName:
    """A model that can be pulled.

    Attributes:
        key: the one name under which the store holds it, however it was written.
        repo_id: its repository on the hub.
        revision: branch, tag or commit there; None for the newest.
        file: the one GGUF file that is meant, or None for the whole model.
        fallback: where else it can be had.
    """

    key: str
    repo_id: str
    revision: str | None = None
    file: str | None = None
    fallback: WheelFile | None = None


def parse_name(name: str) -> ModelName:
    """Read a model's name.

    Raises:
        ModelNotFound: it is neither in the catalog nor of the form of a hub id; lists names like it.
    """
    entry = find_entry(name)
    if entry is not None:
        return ModelName(entry.name, entry.repo_id, entry.revision, fallback=entry.fallback)
    match = _HUB.fullmatch(name)
    if match is None or ".." in name or "--" in name:
        raise unknown_model(name, [])
    return ModelName(name, match[1], file=match[2])


def unknown_model(name: str, stored: list[str]) -> ModelNotFound:
    """The error for a name that nothing answers to, with the names most like it."""
    near = near_names(name, [*stored, *(entry.name for entry in CATALOG)])
    hint = f"Did you mean {' or '.join(near)}?" if near else "`ramet list` shows what is here."
    return ModelNotFound(
        f"{name!r} is no model folder, no GGUF file, no known name and no hub id.",
        param="model",
        hint=f"{hint} A hub id reads owner/model, or owner/model:file.gguf for one GGUF file.",
    )
