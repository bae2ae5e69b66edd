"""The GGUF container: values, shapes, storage types, and files that are not whole."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from ramet.runtime.errors import ConfigError
from ramet.runtime.sources.gguf_reader import GgufReader

WriteGguf = Callable[..., Path]
QUANTIZED = [GGMLQuantizationType[name] for name in ("Q4_0", "Q4_1", "Q5_0", "Q8_0", "BF16")]


@pytest.fixture
def matrix() -> NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal((6, 64), np.float32)


def test_metadata_of_every_kind_is_read(write_gguf: WriteGguf, matrix: NDArray[np.float32]) -> None:
    top: dict[str, Any] = {
        "a.flag": True,
        "a.count": 7,
        "a.rate": 0.5,
        "a.text": "Grüße \u2603",
        "a.texts": ["x", "", "ĠĠ"],
        "a.numbers": [1, -2, 3],
        "a.floats": [0.5, -1.5],
    }
    reader = GgufReader(write_gguf({"m": matrix}, metadata={}, top=top))
    assert {key: reader.metadata[key] for key in top} == top
    assert reader.metadata["general.architecture"] == "llama"


def test_float32_tensor_is_read_as_it_was_written(
    write_gguf: WriteGguf, matrix: NDArray[np.float32]
) -> None:
    reader = GgufReader(write_gguf({"m": matrix}))
    values = reader.dequantize(reader.tensors["m"])
    assert np.array_equal(values, matrix)
    values[0, 0] = 1.0  # memory of its own, not the file's


@pytest.mark.parametrize("qtype", QUANTIZED, ids=lambda qtype: qtype.name)
def test_quantized_tensor_is_expanded(
    write_gguf: WriteGguf, matrix: NDArray[np.float32], qtype: GGMLQuantizationType
) -> None:
    reader = GgufReader(write_gguf({"m": matrix, "n": matrix}, qtypes={"m": qtype}))
    tensor = reader.tensors["m"]
    assert (tensor.shape, tensor.qtype) == ((6, 64), qtype)
    assert np.array_equal(reader.dequantize(tensor), dequantize(quantize(matrix, qtype), qtype))
    assert np.abs(reader.dequantize(tensor) - matrix).max() < 0.5


def test_raw_bytes_are_those_of_the_gguf_library(
    write_gguf: WriteGguf, matrix: NDArray[np.float32]
) -> None:
    path = write_gguf({"m": matrix}, qtypes={"m": GGMLQuantizationType.Q4_0})
    reader = GgufReader(path)
    assert np.array_equal(reader.raw(reader.tensors["m"]), GGUFReader(path).tensors[0].data)


def test_file_cut_anywhere_is_called_cut_short(
    write_gguf: WriteGguf, matrix: NDArray[np.float32], tokenizer_metadata: dict[str, Any]
) -> None:
    path = write_gguf({"m": matrix}, top=tokenizer_metadata)
    whole = path.read_bytes()
    last_needed = len(whole.rstrip(b"\0"))
    for size in [5, 20, 24, 100, 3000, 6000, last_needed - matrix.nbytes, last_needed - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(ConfigError, match=f"tiny.gguf is cut short: it has {size} bytes"):
            GgufReader(path)


def test_file_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    for content in (b"", b"GG", b"PK\x03\x04 something else"):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match="model.gguf is not a GGUF file"):
            GgufReader(path)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absent.gguf cannot be read: No such file"):
        GgufReader(tmp_path / "absent.gguf")


@pytest.mark.parametrize(
    ("version", "words"), [(1, "version 1"), (9, "version 9"), (3 << 24, "big-endian")]
)
def test_unknown_version_is_refused(tmp_path: Path, version: int, words: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", version, 0, 0) + bytes(64))
    with pytest.raises(ConfigError, match=f"is a {words} GGUF file"):
        GgufReader(path)


def test_absurd_counts_are_refused_without_allocating(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    huge = 2**62
    key = struct.pack("<Q", 1) + b"k"
    for tail in (
        struct.pack("<QQ", 0, huge),
        struct.pack("<QQ", huge, 0),
        struct.pack("<QQ", 0, 1) + key + struct.pack("<IIQ", 9, 4, huge),
        struct.pack("<QQ", 0, 1) + key + struct.pack("<IIQ", 9, 8, huge),
        struct.pack("<QQ", 0, 1) + key + struct.pack("<IQ", 8, huge),
    ):
        path.write_bytes(b"GGUF" + struct.pack("<I", 3) + tail + bytes(64))
        with pytest.raises(ConfigError, match="cut short"):
            GgufReader(path)


def one_tensor(qtype: int, shape: tuple[int, ...], num_dims: int | None = None) -> bytes:
    entry = struct.pack("<Q", 1) + b"t" + struct.pack("<I", num_dims or len(shape))
    entry += struct.pack(f"<{len(shape)}Q", *shape) + struct.pack("<IQ", qtype, 0)
    return b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + entry + bytes(4096)


def test_unknown_storage_type_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(one_tensor(999, (32,)))
    with pytest.raises(ConfigError, match="tensor 't' has unknown storage type 999"):
        GgufReader(path)


def test_rows_of_no_whole_blocks_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(one_tensor(GGMLQuantizationType.Q4_0, (33,)))
    with pytest.raises(ConfigError, match="no whole blocks of Q4_0"):
        GgufReader(path)


def test_too_many_dimensions_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(one_tensor(0, (1, 1), num_dims=77))
    with pytest.raises(ConfigError, match="has 77 dimensions"):
        GgufReader(path)


def test_type_that_cannot_be_expanded_is_found_before_loading(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(one_tensor(GGMLQuantizationType.Q8_1, (32,)))
    with pytest.raises(ConfigError, match="tensor t is stored as Q8_1, which is not supported"):
        GgufReader(path).check_types()
