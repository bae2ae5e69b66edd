"""From a name to a model."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ramet.runtime.errors import ConfigError, ModelNotFound
from ramet.runtime.sources.download import pull
from ramet.runtime.sources.gguf import GgufFile
from ramet.runtime.sources.hf_directory import HfDirectory
from ramet.runtime.sources.resolve import open_path, resolve
from ramet.runtime.sources.store import ModelStore

if TYPE_CHECKING:
    from tests.runtime.sources.conftest import FakeHub

NAME = "acme/tiny-model"


@pytest.fixture
def gguf(write_gguf: Callable[..., Path]) -> Path:
    return write_gguf({"token_embd.weight": np.ones((2, 2), np.float32)})


def test_folder_and_file_are_opened_by_path(store: ModelStore, hf_folder: Path, gguf: Path) -> None:
    assert isinstance(resolve(str(hf_folder), store), HfDirectory)
    assert isinstance(resolve(str(gguf), store), GgufFile)


def test_relative_paths_need_no_dot(
    store: ModelStore, hf_folder: Path, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(hf_folder.parent)
    assert resolve("tiny-model", store).name == "tiny-model"
    assert resolve("./tiny-model", store).name == "tiny-model"
    assert resolve(gguf.name, store).name == "tiny"


def test_folder_with_one_gguf_file_means_that_file(store: ModelStore, gguf: Path) -> None:
    folder = gguf.parent / "one"
    folder.mkdir()
    gguf.rename(folder / "only.gguf")
    assert resolve(str(folder), store).name == "only"
    (folder / "other.gguf").write_bytes((folder / "only.gguf").read_bytes())
    with pytest.raises(ConfigError, match=r"holds 2 GGUF files\. Name one.*only\.gguf"):
        resolve(str(folder), store)


def test_path_to_nothing_is_not_found(store: ModelStore, tmp_path: Path) -> None:
    for name in (str(tmp_path / "absent"), "./absent", "absent.gguf"):
        with pytest.raises(ModelNotFound, match="no file or folder"):
            resolve(name, store)


def test_path_to_something_else_is_an_error(
    store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="not a model folder"):
        resolve(str(tmp_path / "empty"), store)
    (tmp_path / "notes.txt").write_text("hello")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="notes.txt is not a GGUF file"):
        resolve("notes.txt", store)
    with pytest.raises(ConfigError, match="not a model folder"):
        resolve("empty", store)


def test_stored_model_is_found_under_its_name(store: ModelStore, fake_hub: FakeHub) -> None:
    pull(NAME, store, hub=fake_hub)
    source = resolve(NAME, store)
    assert isinstance(source, HfDirectory) and source.name == NAME


def test_model_that_is_not_here_says_how_to_get_it(store: ModelStore) -> None:
    for name in (NAME, "qwen3-0.6b"):
        with pytest.raises(ModelNotFound, match=f"not been downloaded. Run `ramet pull {name}`"):
            resolve(name, store)


def test_model_that_is_not_here_is_pulled_when_asked(store: ModelStore, fake_hub: FakeHub) -> None:
    source = resolve(NAME, store, pull_missing=True, hub=fake_hub)
    assert source.name == NAME
    assert store.find(NAME) is not None


def test_unknown_name_lists_names_like_it(store: ModelStore, fake_hub: FakeHub) -> None:
    with pytest.raises(ModelNotFound, match="Did you mean qwen3-0.6b"):
        resolve("qwen3-0.6", store)
    pull(NAME, store, hub=fake_hub)
    with pytest.raises(ModelNotFound, match="Did you mean acme/tiny-model"):
        resolve("tiny-model", store)


def test_folder_named_like_a_known_model_is_ambiguous(
    store: ModelStore, hf_folder: Path, fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(hf_folder.parent)
    pull(NAME, store, hub=fake_hub)
    (hf_folder.parent / "acme").mkdir()
    for name in ("qwen3-0.6b", NAME):
        hf_folder.rename(hf_folder.parent / name)
        with pytest.raises(ModelNotFound, match=f"Write ./{name} for what lies here"):
            resolve(name, store)
        assert isinstance(resolve(f"./{name}", store), HfDirectory)
        (hf_folder.parent / name).rename(hf_folder)


def test_folder_that_is_no_model_does_not_hide_a_known_one(
    store: ModelStore, fake_hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull(NAME, store, hub=fake_hub)
    (tmp_path / "here" / NAME).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    assert resolve(NAME, store).name == NAME


def test_opening_a_model_loads_no_torch(hf_folder: Path, gguf: Path) -> None:
    script = (
        "import sys, pathlib\n"
        "from ramet.runtime.sources.resolve import open_path\n"
        "for path in sys.argv[1:]: open_path(pathlib.Path(path))\n"
        "print(sorted({'torch', 'transformers'} & sys.modules.keys()))"
    )
    command = [sys.executable, "-c", script, str(hf_folder), str(gguf)]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.real_model
def test_smollm2_is_read_as_documented(smollm2: Path) -> None:
    source = open_path(smollm2)
    config = source.config()
    facts = {
        "model_type": "llama",
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "rope_theta": 100000.0,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    }
    assert {key: config[key] for key in facts} == facts
    assert source.eos_token_ids() == (2,)
    assert sum(prod(tensor.shape) for tensor in source.stored().values()) == 134_515_008
    files = source.tokenizer()
    assert files.special_ids == frozenset(range(17))
    assert files.fast.encode("The capital of France is").ids == [504, 3575, 282, 4649, 314]
    assert files.fast.encode("In 2024, 1,234.56 tokens").tokens == [
        *("In", "Ġ", "2", "0", "2", "4", ",", "Ġ", "1", ","),
        *("2", "3", "4", ".", "5", "6", "Ġtokens"),
    ]
    assert files.fast.encode("<|im_start|>user\n").ids[0] == 1
    assert files.chat_template is not None and "SmolLM" in files.chat_template
