"""Reads the container of a GGUF file: metadata, the table of tensors, and their bytes as stored.

It knows nothing of models or tokenizers. The header is parsed here and not with `gguf.GGUFReader`,
which takes seconds for a vocabulary (one numpy view per string) and does not notice a file that ends
too early.

Source: the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
from gguf.quants import dequantize
from numpy.typing import NDArray

from ..errors import ConfigError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMS = 4

_SCALARS = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One entry of the tensor table.

    Attributes:
        name: as the file has it, `blk.0.attn_q.weight`.
        shape: row-major, outermost first (the file stores it the other way round).
        qtype: how the elements are stored.
        offset: first byte, from the start of the file.
        num_bytes: stored size.
    """

    name: str
    shape: tuple[int, ...]
    qtype: GGMLQuantizationType
    offset: int
    num_bytes: int


class GgufReader:
    """An opened GGUF file whose header has been read and checked.

    Args:
        path: the file.

    Raises:
        ConfigError: it is not a GGUF file, is of a version or byte order that is not supported, uses an
            unknown storage type, or is cut short.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                if file.read(4) != MAGIC:
                    raise ConfigError(f"{path} is not a GGUF file.")
                # Lives as long as an array over it does; closing it is left to the last of them.
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
        cursor = _Cursor(self._map, path)
        self.metadata, self.tensors = _read_header(cursor)

    def raw(self, tensor: GgufTensor) -> NDArray[np.uint8]:
        """The bytes of a tensor as stored, a read-only view: `[*shape[:-1], bytes of one row]`."""
        row_bytes = tensor.num_bytes // max(prod(tensor.shape[:-1]), 1)
        data = np.frombuffer(self._map, np.uint8, tensor.num_bytes, tensor.offset)
        return data.reshape(*tensor.shape[:-1], row_bytes)

    def dequantize(self, tensor: GgufTensor) -> NDArray[np.float32]:
        """The values of a tensor, `shape`, float32, in memory of their own.

        Raises:
            ConfigError: its storage type cannot be expanded; see `check_types` to learn that early.
        """
        try:
            values = dequantize(self.raw(tensor), tensor.qtype)
        except NotImplementedError as error:
            raise ConfigError(
                f"{self.path}: tensor {tensor.name} is stored as {tensor.qtype.name}, which is not "
                "supported.",
                hint="Take a file quantized as Q4_K_M, Q8_0 or F16, for example.",
            ) from error
        return np.require(values, np.float32, ["C", "W"]).reshape(tensor.shape)

    def check_types(self) -> None:
        """Raise ConfigError if any tensor is stored in a type that `dequantize` does not know."""
        first_of_type = {tensor.qtype: tensor for tensor in reversed(self.tensors.values())}
        for qtype, tensor in first_of_type.items():
            block_len, _ = GGML_QUANT_SIZES[qtype]
            self.dequantize(_first_block(tensor, block_len))


def _first_block(tensor: GgufTensor, block_len: int) -> GgufTensor:
    _, block_bytes = GGML_QUANT_SIZES[tensor.qtype]
    return GgufTensor(tensor.name, (block_len,), tensor.qtype, tensor.offset, block_bytes)


class _Cursor:
    """Reads little-endian values one after the other, and never past the end."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data = data
        self.path = path
        self.position = len(MAGIC)

    def take(self, num_bytes: int) -> int:
        """Move over that many bytes; returns where they start."""
        start = self.position
        if num_bytes > len(self.data) - start:
            raise cut_short(self.path, start + num_bytes, len(self.data))
        self.position = start + num_bytes
        return start

    def scalar(self, code: str) -> Any:
        layout = "<" + code
        return struct.unpack_from(layout, self.data, self.take(struct.calcsize(layout)))[0]

    def scalars(self, code: str, count: int) -> list[Any]:
        layout = f"<{count}{code}"
        # Asked before the layout is compiled: a count from a damaged header can be astronomic.
        start = self.take(count * struct.calcsize("<" + code))
        return list(struct.unpack_from(layout, self.data, start))

    def string(self) -> str:
        length = self.scalar("Q")
        start = self.take(length)
        # Vocabularies hold pieces of characters, which are not UTF-8 by themselves.
        return self.data[start : start + length].decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == GGUFValueType.STRING:
            return self.string()
        if kind == GGUFValueType.ARRAY:
            element_kind, count = self.scalar("I"), self.scalar("Q")
            if element_kind in _SCALARS:
                return self.scalars(_SCALARS[GGUFValueType(element_kind)], count)
            self.check_count(count, 8)
            return [self.value(element_kind) for _ in range(count)]
        if kind in _SCALARS:
            return self.scalar(_SCALARS[GGUFValueType(kind)])
        raise ConfigError(f"{self.path} is damaged: metadata of unknown type {kind}.")

    def check_count(self, count: int, least_bytes_each: int) -> None:
        needed = self.position + count * least_bytes_each
        if needed > len(self.data):
            raise cut_short(self.path, needed, len(self.data))


def cut_short(path: Path, needed: int, size: int) -> ConfigError:
    """The error for a file that ends before its own tables say."""
    return ConfigError(
        f"{path} is cut short: it has {size} bytes and needs at least {needed}.",
        hint="Download it again.",
    )


def _read_header(cursor: _Cursor) -> tuple[dict[str, Any], dict[str, GgufTensor]]:
    version = cursor.scalar("I")
    if version not in VERSIONS:
        # A big-endian file shows its version in the wrong byte order.
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        what = "big-endian" if swapped in VERSIONS else f"version {version}"
        raise ConfigError(f"{cursor.path} is a {what} GGUF file, which is not supported.")
    num_tensors, num_values = cursor.scalar("Q"), cursor.scalar("Q")
    cursor.check_count(num_values, 13)
    metadata: dict[str, Any] = {}
    for _ in range(num_values):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.scalar("I"))
    cursor.check_count(num_tensors, 24)
    entries = [_read_entry(cursor) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0:
        raise ConfigError(f"{cursor.path} is damaged: alignment {alignment!r}.")
    data_start = -(-cursor.position // alignment) * alignment
    tensors = {}
    for name, shape, qtype, offset in entries:
        tensor = GgufTensor(name, shape, qtype, data_start + offset, _stored_bytes(shape, qtype))
        end = tensor.offset + tensor.num_bytes
        if end > len(cursor.data):
            raise cut_short(cursor.path, end, len(cursor.data))
        tensors[name] = tensor
    return metadata, tensors


def _read_entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], GGMLQuantizationType, int]:
    name = cursor.string()
    num_dims = cursor.scalar("I")
    if not 1 <= num_dims <= MAX_DIMS:
        raise ConfigError(f"{cursor.path} is damaged: tensor {name!r} has {num_dims} dimensions.")
    shape = tuple(reversed(cursor.scalars("Q", num_dims)))
    type_id, offset = cursor.scalar("I"), cursor.scalar("Q")
    try:
        qtype = GGMLQuantizationType(type_id)
        block_len, _ = GGML_QUANT_SIZES[qtype]
    except (ValueError, KeyError) as error:
        raise ConfigError(
            f"{cursor.path}: tensor {name!r} has unknown storage type {type_id}.",
            hint="The file may be newer than the installed gguf package.",
        ) from error
    if shape[-1] % block_len:
        raise ConfigError(
            f"{cursor.path} is damaged: rows of {shape[-1]} elements in tensor {name!r} are no "
            f"whole blocks of {qtype.name}."
        )
    return name, shape, qtype, offset


def _stored_bytes(shape: tuple[int, ...], qtype: GGMLQuantizationType) -> int:
    block_len, block_bytes = GGML_QUANT_SIZES[qtype]
    return prod(shape) // block_len * block_bytes
