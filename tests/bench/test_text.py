"""Prompts have exactly the length that was asked for."""

from __future__ import annotations

import pytest

from ramet.bench.text import TextSource, approximate_count, documentation_words


async def count_words(text: str) -> int:
    return sum(2 if len(word) > 6 else 1 for word in text.split())


@pytest.mark.parametrize("num_tokens", [1, 2, 19, 64, 1500])
async def test_piece_has_exactly_the_asked_tokens(num_tokens: int) -> None:
    text = await TextSource(count_words).piece(num_tokens, "key")
    assert await count_words(text) == num_tokens


async def test_same_key_gives_same_text_and_other_key_other_text() -> None:
    source = TextSource(count_words)
    assert await source.piece(50, "a") == await source.piece(50, "a")
    assert await source.piece(50, "a") != await source.piece(50, "b")


async def test_approximate_count_reaches_a_length_too() -> None:
    text = await TextSource(approximate_count).piece(100, "key")
    assert await approximate_count(text) == 100


async def test_a_count_that_cannot_be_reached_raises() -> None:
    async def even(text: str) -> int:
        return 2 * len(text.split())

    with pytest.raises(ValueError, match="exactly 7 tokens"):
        await TextSource(even).piece(7, "key")


async def test_a_prompt_of_no_tokens_raises() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        await TextSource(count_words).piece(0, "key")


def test_documentation_is_long_ascii_text() -> None:
    words = documentation_words()
    assert len(words) > 20_000
    assert all(word.isascii() for word in words)
