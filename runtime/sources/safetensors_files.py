"""Finds the safetensors files of a model folder and checks that they are whole.

It reads headers only. A missing or short shard is found here, before anything is loaded, so that an
engine never starts to fill memory with half a model.

Source: the format, https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from .json_files import read_json

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
# Larger than any real header; a number read from something else is caught before it is allocated.
MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class WeightFile:
    """One safetensors file.

    Attributes:
        path: where it is.
        shapes: of the tensors in it that belong to the model, in the order in which they lie.
    """

    path: Path
    shapes: dict[str, tuple[int, ...]]


def find_weights(folder: Path) -> list[WeightFile]:
    """The checked safetensors files of a model folder, in order of name.

    Raises:
        ConfigError: there are none, one that the index names is missing or cut short, or it lacks a tensor
            that the index promises; names the file.
    """
    if (folder / INDEX).is_file():
        return _sharded(folder)
    if (folder / SINGLE).is_file():
        return [WeightFile(folder / SINGLE, read_shapes(folder / SINGLE))]
    files = sorted(folder.glob("*.safetensors"))
    if len(files) == 1:
        return [WeightFile(files[0], read_shapes(files[0]))]
    if files:
        raise ConfigError(
            f"{folder} has {len(files)} safetensors files and no {INDEX} that says what is in them.",
            hint="Download the index too.",
        )
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt*")):
        raise ConfigError(
            f"{folder} has its weights as pickles (.bin), which can run any code when they are read.",
            hint="Take a version of the model in safetensors, or convert it.",
        )
    raise ConfigError(f"{folder} has no weights: neither {SINGLE} nor {INDEX}.")


def _sharded(folder: Path) -> list[WeightFile]:
    weight_map = read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ConfigError(f"{folder / INDEX} has no weight_map.")
    promised: dict[str, list[str]] = {}
    for tensor, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise ConfigError(
                f"{folder / INDEX} names {file!r}, which is not a file of its folder."
            )
        promised.setdefault(file, []).append(tensor)
    missing = [file for file in sorted(promised) if not (folder / file).is_file()]
    if missing:
        raise ConfigError(
            f"{folder} lacks {len(missing)} of {len(promised)} weight files: {', '.join(missing)}.",
            hint="Download them again.",
        )
    return [_shard(folder / file, tensors) for file, tensors in sorted(promised.items())]


def _shard(path: Path, promised: list[str]) -> WeightFile:
    shapes = read_shapes(path)
    absent = sorted(set(promised) - shapes.keys())
    if absent:
        raise ConfigError(f"{path} lacks the tensor {absent[0]} that {INDEX} promises.")
    wanted = set(promised)
    return WeightFile(path, {name: shape for name, shape in shapes.items() if name in wanted})


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of all tensors in a safetensors file, in the order in which they lie.

    Raises:
        ConfigError: it is not a safetensors file, or is shorter or longer than its header says.
    """
    header, data_bytes = _read_header(path)
    header.pop("__metadata__", None)
    try:
        entries = sorted(header.items(), key=lambda item: item[1]["data_offsets"][0])
        shapes = {name: tuple(entry["shape"]) for name, entry in entries}
        needed = max((entry["data_offsets"][1] for _, entry in entries), default=0)
        for shape in shapes.values():
            prod(shape)
    except (KeyError, IndexError, TypeError) as error:
        raise ConfigError(f"{path} is damaged: its header is not that of safetensors.") from error
    if data_bytes < needed:
        raise ConfigError(
            f"{path} is cut short: it holds {data_bytes} bytes of tensors and needs {needed}.",
            hint="Download it again.",
        )
    if data_bytes > needed:
        raise ConfigError(f"{path} is damaged: {data_bytes - needed} bytes follow its last tensor.")
    return shapes


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The header, and how many bytes of tensors follow it."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or (length <= MAX_HEADER_BYTES and size < 8 + length):
            raise ConfigError(
                f"{path} is cut short: it ends within its header.", hint="Download it again."
            )
        if length > MAX_HEADER_BYTES:
            raise ConfigError(f"{path} is not a safetensors file.")
        text = file.read(length)
    try:
        header = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{path} is damaged: its header is not JSON.") from error
    if not isinstance(header, dict):
        raise ConfigError(f"{path} is damaged: its header is not an object.")
    return header, size - 8 - length
