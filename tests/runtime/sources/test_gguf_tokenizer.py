"""Tokenizers built from GGUF metadata."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramet.runtime.errors import ConfigError
from ramet.runtime.sources.base import TokenizerFiles
from ramet.runtime.sources.gguf_reader import GgufReader
from ramet.runtime.sources.gguf_tokenizer import SPLITTERS, build_tokenizer, merges_from_scores

WriteGguf = Callable[..., Path]
Metadata = dict[str, Any]
Build = Callable[[Metadata], TokenizerFiles]


@pytest.fixture
def build(write_gguf: WriteGguf) -> Build:
    return lambda top: build_tokenizer(GgufReader(write_gguf({}, metadata={}, top=top)))


def pieces(files: TokenizerFiles, text: str) -> list[str]:
    """How text is cut before BPE."""
    return [piece.replace("Ġ", " ") for piece, _ in files.fast.pre_tokenizer.pre_tokenize_str(text)]


def test_merges_and_digits_of_smollm(build: Build, tokenizer_metadata: Metadata) -> None:
    files = build(tokenizer_metadata)
    # 12 is a token, but smollm never joins digits.
    assert files.fast.encode("a the 12").tokens == ["a", "Ġthe", "Ġ", "1", "2"]


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", ["He", "'ll", " pay", " 1234", "!\n"]),
        ("smollm", ["He", "'ll", " pay", " ", "1", "2", "3", "4", "!\n"]),
        ("llama-bpe", ["He", "'ll", " pay", " ", "123", "4", "!\n"]),
        ("qwen2", ["He", "'ll", " pay", " ", "1", "2", "3", "4", "!\n"]),
        ("tekken", ["He", "'ll", " pay", " ", "1", "2", "3", "4", "!\n"]),
    ],
)
def test_text_is_cut_as_the_file_says(
    build: Build, tokenizer_metadata: Metadata, pre: str, expected: list[str]
) -> None:
    files = build(tokenizer_metadata | {"tokenizer.ggml.pre": pre})
    found = [piece.replace("Ċ", "\n") for piece in pieces(files, "He'll pay 1234!\n")]
    # GPT-2's expression leaves line ends out of punctuation.
    if pre in ("gpt-2", "smollm"):
        expected = [*expected[:-1], "!", "\n"]
    assert found == expected


@pytest.mark.parametrize("pre", sorted(SPLITTERS))
def test_every_splitter_round_trips_any_text(
    build: Build, tokenizer_metadata: Metadata, pre: str
) -> None:
    fast = build(tokenizer_metadata | {"tokenizer.ggml.pre": pre}).fast
    text = " Grüße,\tЮлия 第3章 \r\n\n  ١٢٣ don't DON'T 👩‍👩‍👧 ½²x\u00a0"
    assert fast.decode(fast.encode(text, add_special_tokens=False).ids) == text


def test_unknown_way_of_splitting_is_an_error_that_lists_the_known(
    build: Build, tokenizer_metadata: Metadata
) -> None:
    with pytest.raises(ConfigError, match=r"pre is 'exotic'.*llama-bpe.*smollm"):
        build(tokenizer_metadata | {"tokenizer.ggml.pre": "exotic"})
    del tokenizer_metadata["tokenizer.ggml.pre"]
    with pytest.raises(ConfigError, match="pre is None"):
        build(tokenizer_metadata)


def test_unknown_kind_is_an_error_that_lists_the_known(
    build: Build, tokenizer_metadata: Metadata
) -> None:
    with pytest.raises(ConfigError, match="kind 'bert', which is not supported.*gpt2"):
        build(tokenizer_metadata | {"tokenizer.ggml.model": "bert"})


def test_file_without_tokenizer_is_an_error(build: Build) -> None:
    with pytest.raises(ConfigError, match=r"has no tokenizer \(tokenizer\.ggml\.tokens\)"):
        build({})


def test_types_and_merges_must_fit_the_tokens(build: Build, tokenizer_metadata: Metadata) -> None:
    with pytest.raises(ConfigError, match="every token its type"):
        build(tokenizer_metadata | {"tokenizer.ggml.token_type": [1, 1]})
    with pytest.raises(ConfigError, match="a merge of unknown tokens"):
        build(tokenizer_metadata | {"tokenizer.ggml.merges": ["x y"]})


def test_special_tokens_are_flagged(build: Build, tokenizer_metadata: Metadata) -> None:
    files = build(tokenizer_metadata)
    assert files.special_ids == {0, 1, 2}
    ids = files.fast.encode("<|im_start|>a<|im_end|><think>").ids
    assert ids[0] == 1 and ids[2] == 2
    assert files.fast.id_to_token(ids[3]) == "<think>"
    # User-defined tokens are matched whole, and are text.
    assert files.fast.decode(ids, skip_special_tokens=True) == "a<think>"
    assert files.fast.decode(ids, skip_special_tokens=False) == "<|im_start|>a<|im_end|><think>"


def test_roles_and_template_are_told(build: Build, tokenizer_metadata: Metadata) -> None:
    files = build(tokenizer_metadata)
    assert files.chat_template == "{{ messages[0].content }}"
    assert files.config == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "add_bos_token": False,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
    }


@pytest.mark.parametrize(
    ("add_bos", "add_eos", "expected"),
    [(False, False, []), (True, False, [1]), (False, True, [2]), (True, True, [1, 2])],
)
def test_ends_are_added_as_the_file_says(
    build: Build,
    tokenizer_metadata: Metadata,
    add_bos: bool,
    add_eos: bool,
    expected: list[int],
) -> None:
    tokenizer_metadata["tokenizer.ggml.add_bos_token"] = add_bos
    tokenizer_metadata["tokenizer.ggml.add_eos_token"] = add_eos
    fast = build(tokenizer_metadata).fast
    ids = fast.encode("a").ids
    assert [index for index in ids if index < 3] == expected
    assert not add_bos or ids[0] == 1
    assert not add_eos or ids[-1] == 2
    assert len(fast.encode("a", add_special_tokens=False).ids) == 1


def test_llama3_adds_a_begin_token_unless_told_otherwise(
    build: Build, tokenizer_metadata: Metadata
) -> None:
    del tokenizer_metadata["tokenizer.ggml.add_bos_token"]
    tokenizer_metadata["tokenizer.ggml.pre"] = "llama-bpe"
    assert build(tokenizer_metadata).fast.encode("a").ids[0] == 1
    tokenizer_metadata["tokenizer.ggml.pre"] = "qwen2"
    assert len(build(tokenizer_metadata).fast.encode("a").ids) == 1


@pytest.fixture
def sentencepiece_metadata() -> Metadata:
    pieces = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    pieces += [(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)]
    words = ["▁the", "the", "th", "▁t", "he", "▁", "t", "h", "e", "a", "b"]
    pieces += [(word, -float(rank), 1) for rank, word in enumerate(words)]
    pieces += [("\n\n", 0.0, 4)]
    tokens, scores, types = zip(*pieces, strict=True)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.scores": list(scores),
        "tokenizer.ggml.token_type": list(types),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def test_sentencepiece_joins_by_score_and_falls_back_to_bytes(
    build: Build, sentencepiece_metadata: Metadata
) -> None:
    fast = build(sentencepiece_metadata).fast
    assert fast.encode("the a").tokens == ["<s>", "▁the", "▁", "a"]
    encoded = fast.encode("é", add_special_tokens=False)
    assert encoded.tokens == ["▁", "<0xC3>", "<0xA9>"]


@pytest.mark.parametrize("add_space_prefix", [True, False])
def test_sentencepiece_round_trips(
    build: Build, sentencepiece_metadata: Metadata, add_space_prefix: bool
) -> None:
    sentencepiece_metadata["tokenizer.ggml.add_space_prefix"] = add_space_prefix
    fast = build(sentencepiece_metadata).fast
    for text in ("the", "a  b the", "日本 é\n\na", " the"):
        ids = fast.encode(text).ids
        assert ids[0] == 1
        assert fast.decode(ids, skip_special_tokens=True) in (text, text.replace("\n\n", "\n\n "))
    assert fast.encode("the").tokens[1] == ("▁the" if add_space_prefix else "the")


def test_merges_are_ordered_by_score_of_the_whole() -> None:
    tokens, types, scores = ["ab", "abc", "a", "b", "c", "bc", "x"], [1] * 6 + [3], [-2.0, -1.0]
    merges = merges_from_scores(tokens, types, [*scores, -3.0, -3.0, -3.0, -4.0, 0.0])
    assert merges == [("ab", "c"), ("a", "bc"), ("a", "b"), ("b", "c")]
