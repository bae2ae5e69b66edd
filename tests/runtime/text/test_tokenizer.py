"""Tokenizer and pieces against the library that they wrap."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, processors

from ramet.runtime.errors import ConfigError, InvalidRequest
from ramet.runtime.sources.base import TokenizerFiles
from ramet.runtime.text.tokenizer import Tokenizer


def plain(fast: FastTokenizer, config: dict[str, Any] | None = None) -> Tokenizer:
    return Tokenizer(TokenizerFiles(fast, config or {}, None, frozenset()))


def spells_valid_utf8(tokenizer: Tokenizer, token_ids: list[int]) -> bool:
    try:
        b"".join(tokenizer.token_bytes(token_id) for token_id in token_ids).decode()
    except UnicodeDecodeError:
        return False
    return True


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_decoding_equals_the_library(
    fast: FastTokenizer, any_tokenizer: Tokenizer, data: st.DataObject
) -> None:
    ids = st.integers(0, any_tokenizer.vocab_size - 1)
    token_ids = data.draw(st.lists(ids, max_size=12))
    skip = data.draw(st.booleans())
    kept = [id_ for id_ in token_ids if not (skip and id_ in any_tokenizer.special_ids)]
    if spells_valid_utf8(any_tokenizer, kept):
        assert any_tokenizer.decode(token_ids, skip) == fast.decode(
            token_ids, skip_special_tokens=skip
        )


@settings(deadline=None, max_examples=150)
@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁"), max_size=40))
def test_any_text_survives_encoding_and_decoding(byte_tokenizer: Tokenizer, text: str) -> None:
    token_ids = byte_tokenizer.encode(text, add_special_tokens=False)
    assert byte_tokenizer.decode(token_ids, False) == text
    assert all(0 <= id_ < byte_tokenizer.vocab_size for id_ in token_ids)


@pytest.mark.parametrize("text", ["ok", "x 🦜"])
def test_ids_of_no_token_are_nothing(byte_level_tokenizer: Tokenizer, text: str) -> None:
    token_ids = byte_level_tokenizer.encode(text, add_special_tokens=False)
    beyond = byte_level_tokenizer.vocab_size
    for foreign in (beyond, 2**32 - 1, 2**40, -1):
        assert byte_level_tokenizer.decode([foreign, *token_ids, foreign], False) == text
        assert byte_level_tokenizer.token_bytes(foreign) == b""
        assert byte_level_tokenizer.token_text(foreign) == ""


def test_token_bytes_are_the_tokens_own(byte_level_tokenizer: Tokenizer) -> None:
    token_ids = byte_level_tokenizer.encode("🦜 hello", add_special_tokens=False)
    pieces = [byte_level_tokenizer.token_bytes(id_) for id_ in token_ids]
    assert b"".join(pieces) == "🦜 hello".encode()
    assert len(pieces[0]) < 4
    assert "\ufffd" in byte_level_tokenizer.token_text(token_ids[0])
    assert byte_level_tokenizer.token_text(token_ids[-1]) == pieces[-1].decode()


def test_a_special_token_shows_its_written_form(byte_level_tokenizer: Tokenizer) -> None:
    assert byte_level_tokenizer.eos_token_id is not None
    assert byte_level_tokenizer.token_bytes(byte_level_tokenizer.eos_token_id) == b"<|im_end|>"


def test_an_added_token_outside_the_byte_alphabet_is_its_own_text(
    byte_level_tokenizer: Tokenizer,
) -> None:
    text = "x<tool call>日本y"
    token_ids = byte_level_tokenizer.encode(text, add_special_tokens=False)
    assert len(token_ids) == 4
    assert byte_level_tokenizer.decode(token_ids, True) == text


def test_byte_fallback_keeps_the_whole_characters_beside_broken_ones(
    byte_tokenizer: Tokenizer,
) -> None:
    token_ids = byte_tokenizer.encode("b☕", add_special_tokens=False)
    text = byte_tokenizer.decode([*token_ids, token_ids[-2]], True)
    assert text == "b☕\ufffd"


def test_named_tokens_are_found_in_both_notations(byte_level_tokenizer: Tokenizer) -> None:
    assert byte_level_tokenizer.special_tokens == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
    }
    assert (byte_level_tokenizer.bos_token_id, byte_level_tokenizer.eos_token_id) == (1, 2)
    assert byte_level_tokenizer.special_ids == {0, 1, 2}


def test_tokens_that_are_not_named_have_no_id() -> None:
    tokenizer = plain(FastTokenizer(models.WordLevel({"a": 0}, unk_token="a")), {"eos_token": None})
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (None, None)


def test_special_ids_of_the_model_count_beside_the_librarys() -> None:
    fast = FastTokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    fast.add_special_tokens(["<s>"])
    tokenizer = Tokenizer(TokenizerFiles(fast, {}, None, frozenset({1})))
    assert tokenizer.special_ids == {1, 2}
    assert tokenizer.decode([0, 1, 2], True) == "a"


def test_special_text_in_a_text_becomes_its_token(byte_level_tokenizer: Tokenizer) -> None:
    assert byte_level_tokenizer.encode("<|im_start|>", add_special_tokens=False) == [1]


def framed(template: str | None, config: dict[str, Any]) -> list[int]:
    fast = FastTokenizer(models.WordLevel({"a": 0, "<s>": 1, "</s>": 2}, unk_token="a"))
    fast.add_special_tokens(["<s>", "</s>"])
    if template is not None:
        fast.post_processor = processors.TemplateProcessing(
            single=template, pair=None, special_tokens=[("<s>", 1), ("</s>", 2)]
        )
    tokenizer = plain(fast, {"bos_token": "<s>", "eos_token": "</s>", **config})
    assert tokenizer.encode("a", add_special_tokens=False) == [0]
    return tokenizer.encode("a", add_special_tokens=True)


@pytest.mark.parametrize(
    ("template", "config", "expected"),
    [
        (None, {}, [0]),
        ("<s> $A", {}, [1, 0]),
        ("<s> $A </s>", {}, [1, 0, 2]),
        (None, {"add_bos_token": True}, [1, 0]),
        ("<s> $A", {"add_bos_token": True}, [1, 0]),
        ("<s> $A", {"add_bos_token": False}, [0]),
        ("<s> $A", {"add_bos_token": None}, [1, 0]),
        ("<s> $A", {"add_eos_token": True}, [1, 0, 2]),
        ("<s> $A </s>", {"add_eos_token": False}, [1, 0]),
    ],
)
def test_a_plain_text_gets_the_tokens_that_the_model_expects(
    template: str | None, config: dict[str, Any], expected: list[int]
) -> None:
    assert framed(template, config) == expected


def test_half_a_surrogate_pair_is_refused(byte_level_tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="unpaired surrogate at character 2"):
        byte_level_tokenizer.encode("ok\ud83d", add_special_tokens=False)


def test_a_decoder_that_mixes_bytes_with_unknown_steps_is_refused() -> None:
    fast = FastTokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    fast.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.CTC()])
    with pytest.raises(ConfigError, match="ByteFallback \\+ CTC"):
        plain(fast)


def test_special_tokens_are_found_by_their_text(byte_level_tokenizer: Tokenizer) -> None:
    token_id = byte_level_tokenizer.special_id("<|im_start|>")
    assert token_id is not None and token_id in byte_level_tokenizer.special_ids
    assert byte_level_tokenizer.token_text(token_id) == "<|im_start|>"
    # One of these is an added token that is text, the other no token.
    assert byte_level_tokenizer.special_id("<tool call>") is None
    assert byte_level_tokenizer.special_id("<|nothing|>") is None
