"""The tokenizer of a Hugging Face folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ramet.runtime.errors import ConfigError
from ramet.runtime.sources.hf_tokenizer import read_tokenizer


def set_config(folder: Path, **values: Any) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_tokens_special_ids_and_roles(hf_folder: Path) -> None:
    files = read_tokenizer(hf_folder)
    assert files.fast.encode(" the<|im_end|>").tokens == ["Ġthe", "<|im_end|>"]
    assert files.special_ids == {0, 1, 2}
    assert (files.config["bos_token"], files.config["eos_token"]) == (
        "<|im_start|>",
        "<|im_end|>",
    )
    assert files.chat_template is None


def test_truncation_and_padding_are_off(hf_folder: Path) -> None:
    path = hf_folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["truncation"] = {
        "direction": "Right",
        "max_length": 2,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    path.write_text(json.dumps(content))
    assert len(read_tokenizer(hf_folder).fast.encode("abcdef").ids) == 6


def test_older_map_of_special_tokens_fills_gaps_only(hf_folder: Path) -> None:
    older = {"bos_token": "wrong", "pad_token": {"content": "<|endoftext|>"}}
    (hf_folder / "special_tokens_map.json").write_text(json.dumps(older))
    config = read_tokenizer(hf_folder).config
    assert (config["bos_token"], config["pad_token"]) == ("<|im_start|>", "<|endoftext|>")


def test_tokens_declared_in_the_config_are_added(hf_folder: Path) -> None:
    size = read_tokenizer(hf_folder).fast.get_vocab_size()
    declared = {
        str(size): {"content": "<tool>", "special": True},
        str(size + 1): {"content": "<note>", "special": False},
    }
    set_config(hf_folder, added_tokens_decoder=declared)
    files = read_tokenizer(hf_folder)
    assert files.fast.encode("<tool><note>").ids == [size, size + 1]
    assert files.special_ids == {0, 1, 2, size}


def test_contradicting_ids_are_an_error(hf_folder: Path) -> None:
    set_config(hf_folder, added_tokens_decoder={"9": {"content": "<|im_end|>", "special": True}})
    with pytest.raises(ConfigError, match=r"'<\|im_end\|>' has id 9 .* and 2 in tokenizer.json"):
        read_tokenizer(hf_folder)


@pytest.mark.parametrize("declared", [["x"], {"x": {"content": "y"}}, {"9": {}}, {"9": 3}])
def test_declaration_that_is_none_is_an_error(hf_folder: Path, declared: object) -> None:
    set_config(hf_folder, added_tokens_decoder=declared)
    with pytest.raises(ConfigError, match="added_tokens_decoder is not a map of tokens"):
        read_tokenizer(hf_folder)


def test_chat_template_is_found_where_it_may_lie(hf_folder: Path) -> None:
    set_config(hf_folder, chat_template="in config")
    assert read_tokenizer(hf_folder).chat_template == "in config"
    (hf_folder / "chat_template.json").write_text('{"chat_template": "in json"}')
    assert read_tokenizer(hf_folder).chat_template == "in json"
    (hf_folder / "chat_template.jinja").write_text("in jinja")
    assert read_tokenizer(hf_folder).chat_template == "in jinja"


def test_default_of_several_templates_is_taken(hf_folder: Path) -> None:
    tools = {"name": "tool_use", "template": "T"}
    set_config(hf_folder, chat_template=[tools, {"name": "default", "template": "D"}])
    assert read_tokenizer(hf_folder).chat_template == "D"
    set_config(hf_folder, chat_template=[tools])
    assert read_tokenizer(hf_folder).chat_template == "T"
    set_config(hf_folder, chat_template=[tools, {"name": "rag", "template": "R"}])
    assert read_tokenizer(hf_folder).chat_template is None
    set_config(hf_folder, chat_template=["x"])
    with pytest.raises(ConfigError, match="something without a name"):
        read_tokenizer(hf_folder)
    set_config(hf_folder, chat_template=7)
    with pytest.raises(ConfigError, match="neither text nor a list"):
        read_tokenizer(hf_folder)


def test_damaged_tokenizer_is_named(hf_folder: Path) -> None:
    (hf_folder / "tokenizer.json").write_text('{"version": ')
    with pytest.raises(ConfigError, match="tokenizer.json cannot be read"):
        read_tokenizer(hf_folder)


def test_folder_without_tokenizer_is_an_error(hf_folder: Path) -> None:
    (hf_folder / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match="has no tokenizer"):
        read_tokenizer(hf_folder)


def test_slow_tokenizer_that_cannot_be_converted_is_an_error(hf_folder: Path) -> None:
    (hf_folder / "tokenizer.json").unlink()
    (hf_folder / "tokenizer.model").write_bytes(b"not sentencepiece")
    with pytest.raises(ConfigError, match="has no tokenizer.json, and its tokenizer cannot"):
        read_tokenizer(hf_folder)


def test_slow_tokenizer_is_converted(hf_folder: Path) -> None:
    content = json.loads((hf_folder / "tokenizer.json").read_text())
    (hf_folder / "vocab.json").write_text(json.dumps(content["model"]["vocab"]))
    merges = "\n".join(" ".join(pair) for pair in content["model"]["merges"])
    (hf_folder / "merges.txt").write_text(f"#version: 0.2\n{merges}\n")
    (hf_folder / "tokenizer.json").unlink()
    set_config(hf_folder, tokenizer_class="GPT2Tokenizer", eos_token="<|im_end|>")
    assert read_tokenizer(hf_folder).fast.encode(" the").tokens == ["Ġthe"]
