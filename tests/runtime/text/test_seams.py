"""Tokens stay as they are; only text is tokenized, and options are compared from one position."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers

from ramet.runtime.sources.base import TokenizerFiles
from ramet.runtime.text.seams import kept_tokens, option_prompts
from ramet.runtime.text.tokenizer import Tokenizer


def make_tokenizer() -> Tokenizer:
    """Bytes, and the merges that make " Yes" and "ab." tokens of their own."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Y", "e"), ("Ye", "s"), ("Ġ", "Yes"), ("a", "b"), ("ab", ".")]
    vocab = [*alphabet, *[left + right for left, right in merges]]
    fast = FastTokenizer(models.BPE({text: i for i, text in enumerate(vocab)}, merges))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast.decoder = decoders.ByteLevel()
    return Tokenizer(TokenizerFiles(fast, {}, None, frozenset()))


TOKENIZER = make_tokenizer()


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def test_all_tokens_of_a_whole_text_are_kept() -> None:
    ids = encode("xab. Yes")
    assert kept_tokens(TOKENIZER, ids, "xab. Yes") == (len(ids), "")


def test_a_token_that_is_cut_becomes_text_again() -> None:
    assert kept_tokens(TOKENIZER, encode("xab."), "xab") == (1, "ab")


def test_nothing_is_kept_of_an_empty_text() -> None:
    assert kept_tokens(TOKENIZER, encode("abc"), "") == (0, "")


def test_part_of_a_character_is_not_kept() -> None:
    ids = encode("é€")
    assert len(ids) == 5
    assert kept_tokens(TOKENIZER, ids, "é") == (2, "")


@given(st.text(alphabet="ab.Yes é€", max_size=20), st.integers(0, 20))
def test_kept_tokens_and_the_rest_are_the_text(text: str, cut: int) -> None:
    ids, shown = encode(text), text[:cut]
    num_kept, rest = kept_tokens(TOKENIZER, ids, shown)
    assert TOKENIZER.decode(ids[:num_kept], True) + rest == shown


def test_options_are_tokenized_together_with_the_text_before_them() -> None:
    prompts = option_prompts(TOKENIZER, [1, 2], "a ", ["Yes", "No"])
    assert prompts.ids == ([1, 2, *encode("a Yes")], [1, 2, *encode("a No")])
    assert prompts.ids[0][-1] == encode(" Yes")[0]


def test_all_options_are_scored_from_where_the_first_of_them_differs() -> None:
    assert option_prompts(TOKENIZER, [], "a ", ["No", "Maybe"]).start == 2
    assert option_prompts(TOKENIZER, [], "a ", ["No", "Yes"]).start == 1


@pytest.mark.parametrize("options", [["a", "ab", "ab."], ["", "x"]])
def test_tokens_that_stand_are_never_touched(options: list[str]) -> None:
    prompts = option_prompts(TOKENIZER, encode("a"), "", options)
    assert prompts.start == 1
    assert all(ids[:1] == encode("a") for ids in prompts.ids)
