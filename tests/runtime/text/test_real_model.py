"""The text layer with the tokenizer and the template of SmolLM2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.runtime.sources.resolve import open_path
from ramet.runtime.text.chat_template import ChatTemplate
from ramet.runtime.text.detokenizer import IncrementalDetokenizer
from ramet.runtime.text.tokenizer import Tokenizer

pytestmark = pytest.mark.real_model


@pytest.fixture(scope="module")
def tokenizer(smollm2_path: Path) -> Tokenizer:
    return Tokenizer(open_path(smollm2_path).tokenizer())


@settings(deadline=None, max_examples=100)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_any_text_streams_whole(tokenizer: Tokenizer, text: str) -> None:
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=False)
    deltas = [detokenizer.push([token_id]).text for token_id in token_ids]
    streamed = "".join(deltas) + detokenizer.finish()
    assert streamed == tokenizer.decode(token_ids, False)
    # The vocabulary lacks some bytes, which rare characters need and encoding leaves out.
    if b"".join(map(tokenizer.token_bytes, token_ids)) == text.encode():
        assert streamed == text


@pytest.mark.parametrize(
    "text", ["삼겹살 주세요", "👩‍👩‍👧‍👦 👍🏽", "ď é ☕ 𝔘𝔫𝔦", "x = 12345\n\tπ ≈ 3"]
)
def test_split_characters_arrive_complete(tokenizer: Tokenizer, text: str) -> None:
    detokenizer = IncrementalDetokenizer(tokenizer)
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    deltas = [detokenizer.push([token_id]).text for token_id in token_ids]
    assert "".join(deltas) == text
    assert all("\ufffd" not in delta for delta in deltas)


@settings(deadline=None, max_examples=100)
@given(token_ids=st.lists(st.integers(0, 49_151), max_size=30), skip=st.booleans())
def test_any_tokens_stream_as_they_decode_whole(
    tokenizer: Tokenizer, token_ids: list[int], skip: bool
) -> None:
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip)
    deltas = [detokenizer.push([token_id]).text for token_id in token_ids]
    assert "".join(deltas) + detokenizer.finish() == tokenizer.decode(token_ids, skip)


def test_a_chat_is_framed_once(tokenizer: Tokenizer) -> None:
    text = ChatTemplate(tokenizer).render([{"role": "user", "content": "Are you ok?"}])
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    assert text.endswith("<|im_start|>user\nAre you ok?<|im_end|>\n<|im_start|>assistant\n")
    assert token_ids[0] == tokenizer.bos_token_id == 1
    assert token_ids[1] != 1
    assert token_ids.count(1) == text.count("<|im_start|>")
    assert tokenizer.decode(token_ids, False) == text


def test_a_plain_text_gets_no_first_token(tokenizer: Tokenizer) -> None:
    plain = tokenizer.encode("The capital of France is", add_special_tokens=False)
    assert tokenizer.encode("The capital of France is", add_special_tokens=True) == plain
    assert tokenizer.eos_token_id == 2


def test_a_chat_has_the_tokens_that_transformers_gives_it(smollm2_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    files = open_path(smollm2_path).tokenizer()
    tokenizer = Tokenizer(files)
    names = dict(tokenizer.special_tokens)
    library: Any = PreTrainedTokenizerFast  # untyped where mypy sees it, typed where it does not
    library = library(tokenizer_object=files.fast, chat_template=files.chat_template, **names)
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Naïve café ☕ 2024?\n"},
        {"role": "assistant", "content": "Yes <b>&amp;</b>"},
        {"role": "user", "content": ""},
    ]
    text = ChatTemplate(tokenizer).render(messages)
    expected = library.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert tokenizer.encode(text, add_special_tokens=False) == expected
