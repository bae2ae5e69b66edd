"""A Hugging Face folder as a model source."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from ramet.runtime.errors import ConfigError
from ramet.runtime.sources.hf_directory import HfDirectory

Tensors = dict[str, torch.Tensor]


def test_tensors_are_those_that_were_saved(hf_folder: Path, hf_tensors: Tensors) -> None:
    loaded = dict(HfDirectory(hf_folder).tensors())
    assert loaded.keys() == hf_tensors.keys()
    assert all(torch.equal(loaded[name], values) for name, values in hf_tensors.items())


def test_sharded_tensors_are_those_that_were_saved(
    sharded_folder: Path, hf_tensors: Tensors
) -> None:
    loaded = dict(HfDirectory(sharded_folder).tensors())
    assert loaded.keys() == hf_tensors.keys()
    assert all(torch.equal(loaded[name], values) for name, values in hf_tensors.items())


def test_last_shard_cut_short_is_found_before_the_first_tensor(sharded_folder: Path) -> None:
    path = sharded_folder / "model-00003-of-00003.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ConfigError, match="model-00003-of-00003.safetensors is cut short"):
        next(iter(HfDirectory(sharded_folder).tensors()))


def test_shapes_come_from_the_headers(hf_folder: Path, hf_tensors: Tensors) -> None:
    stored = HfDirectory(hf_folder).stored()
    assert {name: tensor.shape for name, tensor in stored.items()} == {
        name: tuple(values.shape) for name, values in hf_tensors.items()
    }
    assert {tensor.bits for tensor in stored.values()} == {None}


def test_config_is_the_file(hf_folder: Path) -> None:
    assert HfDirectory(hf_folder).config() == json.loads((hf_folder / "config.json").read_text())


def test_folder_without_config_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a model folder: it has no config.json"):
        HfDirectory(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"), [("{", "is not valid JSON"), ("[1]", "holds no JSON object")]
)
def test_bad_config_is_named(hf_folder: Path, text: str, words: str) -> None:
    (hf_folder / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=f"config.json {words}"):
        HfDirectory(hf_folder).config()


def test_name_is_the_folder_name_unless_given(
    hf_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert HfDirectory(hf_folder).name == "tiny-model"
    assert HfDirectory(hf_folder, "other").name == "other"
    monkeypatch.chdir(hf_folder)
    assert HfDirectory(Path(".")).name == "tiny-model"


def test_end_ids_come_from_the_first_file_that_has_them(hf_folder: Path) -> None:
    source = HfDirectory(hf_folder)
    assert source.eos_token_ids() == (2, 7)
    (hf_folder / "generation_config.json").write_text("{}")
    assert source.eos_token_ids() == (5,)
    (hf_folder / "generation_config.json").unlink()
    (hf_folder / "config.json").write_text('{"eos_token_id": null}')
    assert source.eos_token_ids() == (2,)
    (hf_folder / "tokenizer_config.json").write_text("{}")
    assert source.eos_token_ids() == ()


@pytest.mark.parametrize("value", ["two", True, [1, "x"], 1.5])
def test_end_ids_that_are_none_are_an_error(hf_folder: Path, value: object) -> None:
    (hf_folder / "generation_config.json").write_text(json.dumps({"eos_token_id": value}))
    with pytest.raises(ConfigError, match="generation_config.json: eos_token_id is"):
        HfDirectory(hf_folder).eos_token_ids()
