"""Weight files are found, and whole, before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from ramet.runtime.errors import ConfigError
from ramet.runtime.sources.safetensors_files import find_weights, read_shapes

Tensors = dict[str, torch.Tensor]


def shapes_of(folder: Path) -> dict[str, tuple[int, ...]]:
    return {name: shape for file in find_weights(folder) for name, shape in file.shapes.items()}


def test_single_file_is_found(hf_folder: Path, hf_tensors: Tensors) -> None:
    assert shapes_of(hf_folder) == {name: tuple(t.shape) for name, t in hf_tensors.items()}


def test_single_file_of_another_name_is_found(hf_folder: Path, hf_tensors: Tensors) -> None:
    (hf_folder / "model.safetensors").rename(hf_folder / "weights.safetensors")
    assert shapes_of(hf_folder).keys() == hf_tensors.keys()


def test_shards_are_found(sharded_folder: Path, hf_tensors: Tensors) -> None:
    assert len(find_weights(sharded_folder)) == 3
    assert shapes_of(sharded_folder) == {name: tuple(t.shape) for name, t in hf_tensors.items()}


def test_missing_shard_is_named(sharded_folder: Path) -> None:
    (sharded_folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ConfigError, match="lacks 1 of 3 weight files: model-00002-of-00003"):
        find_weights(sharded_folder)


@pytest.mark.parametrize("size", [0, 4, 50, -1, -100])
def test_short_shard_is_named(sharded_folder: Path, size: int) -> None:
    path = sharded_folder / "model-00003-of-00003.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ConfigError, match="model-00003-of-00003.safetensors is cut short"):
        find_weights(sharded_folder)


def test_shard_without_a_promised_tensor_is_named(sharded_folder: Path) -> None:
    first = sharded_folder / "model-00001-of-00003.safetensors"
    first.write_bytes((sharded_folder / "model-00002-of-00003.safetensors").read_bytes())
    with pytest.raises(ConfigError, match="model-00001-of-00003.safetensors lacks the tensor"):
        find_weights(sharded_folder)


def test_tensor_that_the_index_does_not_name_is_left_out(sharded_folder: Path) -> None:
    index = sharded_folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    del content["weight_map"]["model.norm.weight"]
    index.write_text(json.dumps(content))
    assert "model.norm.weight" not in shapes_of(sharded_folder)


@pytest.mark.parametrize("content", ["[]", "{}", '{"weight_map": {}}', "{"])
def test_index_without_a_map_is_an_error(sharded_folder: Path, content: str) -> None:
    (sharded_folder / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ConfigError, match="model.safetensors.index.json"):
        find_weights(sharded_folder)


def test_index_may_not_name_files_elsewhere(sharded_folder: Path) -> None:
    index = sharded_folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "../secret.safetensors"}}))
    with pytest.raises(ConfigError, match="not a file of its folder"):
        find_weights(sharded_folder)


def test_pickles_are_refused(hf_folder: Path) -> None:
    (hf_folder / "model.safetensors").rename(hf_folder / "pytorch_model.bin")
    with pytest.raises(ConfigError, match=r"pickles.*safetensors"):
        find_weights(hf_folder)


def test_folder_without_weights_or_index_is_an_error(hf_folder: Path) -> None:
    (hf_folder / "model.safetensors").rename(hf_folder / "a.safetensors")
    (hf_folder / "b.safetensors").write_bytes(b"")
    with pytest.raises(ConfigError, match="2 safetensors files and no"):
        find_weights(hf_folder)
    (hf_folder / "a.safetensors").unlink()
    (hf_folder / "b.safetensors").unlink()
    with pytest.raises(ConfigError, match="has no weights"):
        find_weights(hf_folder)


def damaged(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (damaged(b"{nope"), "not JSON"),
        (damaged(b"[]"), "not an object"),
        (damaged(b'{"x": 3}'), "not that of safetensors"),
        (damaged(b'{"x": {"shape": [1]}}'), "not that of safetensors"),
        (b"\xff" * 64, "not a safetensors file"),
        (damaged(b"{}") + b"tail", "4 bytes follow its last tensor"),
    ],
)
def test_damaged_file_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"model.safetensors is .*{words}|{words}"):
        read_shapes(path)


def test_tensors_come_in_the_order_of_the_file(hf_folder: Path, hf_tensors: Tensors) -> None:
    header_len = int.from_bytes((hf_folder / "model.safetensors").read_bytes()[:8], "little")
    text = (hf_folder / "model.safetensors").read_bytes()[8 : 8 + header_len]
    header = json.loads(text)
    header.pop("__metadata__", None)
    offsets = [
        header[name]["data_offsets"][0] for name in read_shapes(hf_folder / "model.safetensors")
    ]
    assert offsets == sorted(offsets) and len(offsets) == len(hf_tensors)
