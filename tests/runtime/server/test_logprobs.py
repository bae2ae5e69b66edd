"""Names of tokens that are no whole text, and maps in which names collide."""

from __future__ import annotations

import pytest

from ramet.runtime.request import TokenLogprobs
from ramet.runtime.server.logprobs import (
    CompletionLogprobs,
    TokenNames,
    chat_logprobs,
    joined,
    prompt_logprobs,
)
from ramet.runtime.text.tokenizer import Tokenizer


def test_a_fragment_of_a_character_keeps_its_own_bytes(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("é", False)
    tokens = [TokenLogprobs(id_, -1.0, 1, (), ()) for id_ in ids]
    content = chat_logprobs(TokenNames(tokenizer), tokens)["content"]
    assert [token["bytes"] for token in content] == [[0xC3], [0xA9]]
    assert all(token["top_logprobs"] == [] for token in content)


def test_a_marker_is_shown_by_its_name(tokenizer: Tokenizer) -> None:
    entry = TokenNames(tokenizer).entry(258, -0.5)
    assert entry == {"token": "<|im_end|>", "logprob": -0.5, "bytes": list(b"<|im_end|>")}


def test_the_sampled_token_keeps_its_value_where_names_collide(tokenizer: Tokenizer) -> None:
    first, second = tokenizer.encode("é", False)
    token = TokenLogprobs(second, -2.0, 2, (first, second), (-0.25, -2.0))
    lists = CompletionLogprobs(TokenNames(tokenizer)).extend([token])
    assert lists["top_logprobs"] == [{"\ufffd": -2.0}]


@pytest.mark.parametrize("text", ["\n1. Carol has 20", "naïve 🧪", "日本 👩\u200d👧", " 삼겹살"])
def test_tokens_join_to_the_text_and_offsets_count_it(tokenizer: Tokenizer, text: str) -> None:
    prompt_ids, own = tokenizer.encode(text, False), tokenizer.encode(text[::-1], False)
    scored = [TokenLogprobs(id_, -1.0, 1, (id_,), (-1.0,)) for id_ in (*prompt_ids, *own)]
    builder = CompletionLogprobs(TokenNames(tokenizer), echo=True)
    pieces = [builder.echo(prompt_ids, scored[1 : len(prompt_ids)])]
    pieces += [builder.extend([token]) for token in scored[len(prompt_ids) :]]
    lists = joined(pieces)
    assert "".join(lists["tokens"]) == text + text[::-1]
    before = [sum(map(len, lists["tokens"][:i])) for i in range(len(scored))]
    assert lists["text_offset"] == before
    for name, top in zip(lists["tokens"][1:], lists["top_logprobs"][1:], strict=True):
        assert top == {name: -1.0}


def test_a_character_that_is_never_finished_belongs_to_the_last_token(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a🧪", False)[:3]
    tokens = [TokenLogprobs(id_, -1.0, 1, (), ()) for id_ in ids]
    lists = CompletionLogprobs(TokenNames(tokenizer)).extend(tokens, ends=True)
    assert lists["tokens"] == ["a", "", "\ufffd"]
    assert tokenizer.decode(ids, True, continues=True) == "a\ufffd"


def test_a_marker_in_the_middle_of_a_character_keeps_its_name(tokenizer: Tokenizer) -> None:
    first, second = tokenizer.encode("é", False)
    tokens = [TokenLogprobs(id_, -1.0, 1, (), ()) for id_ in (first, 258, second)]
    lists = CompletionLogprobs(TokenNames(tokenizer)).extend(tokens)
    assert lists["tokens"] == ["", "<|im_end|>", "é"]


def test_offsets_go_on_over_pieces(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("abc", False)
    tokens = [TokenLogprobs(id_, -1.0, 1, (), ()) for id_ in ids]
    names = TokenNames(tokenizer)
    builder = CompletionLogprobs(names)
    pieces = [builder.extend(tokens[:1]), builder.extend(tokens[1:])]
    assert joined(pieces) == CompletionLogprobs(names).extend(tokens)


def test_prompt_ranks_count_up_and_the_token_has_its_own(tokenizer: Tokenizer) -> None:
    a, b, c = tokenizer.encode("abc", False)
    token = TokenLogprobs(c, -3.0, 9, (a, b), (-0.5, -1.0))
    first, row = prompt_logprobs(TokenNames(tokenizer), [token])
    assert first is None and row is not None
    assert {key: (entry["rank"], entry["decoded_token"]) for key, entry in row.items()} == {
        str(c): (9, "c"),
        str(a): (1, "a"),
        str(b): (2, "b"),
    }
