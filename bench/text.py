"""Prompts of an exact number of tokens, made of running English text, the same for every seed.

The text is Python's own language documentation (`pydoc_data.topics`), so nothing is downloaded and
nothing is shipped. It knows nothing of workloads; how tokens are counted is handed in.
"""

from __future__ import annotations

import random
import re
from collections.abc import Awaitable, Callable

TokenCounter = Callable[[str], Awaitable[int]]
"""Counts the tokens of a text, without the special tokens that a tokenizer may add around it."""

_MAX_TRIES = 40
_MAX_CUTS = 40
_TOKENS_PER_WORD = 1.4
_FILLER = " the"


class TextSource:
    """Draws pieces of text of a given number of tokens.

    Args:
        count: how tokens are counted.
        words: the text as words; None takes Python's documentation.
    """

    def __init__(self, count: TokenCounter, words: list[str] | None = None) -> None:
        self._count = count
        self._words = words if words is not None else documentation_words()

    async def piece(self, num_tokens: int, key: str) -> str:
        """Text of exactly `num_tokens` tokens when tokenized alone; the same for the same key.

        Raises:
            ValueError: no such text was found; the tokenizer splits words in an unusual way.
        """
        if num_tokens < 1:
            raise ValueError(f"a prompt needs at least one token, not {num_tokens}")
        rng = random.Random(key)
        for _ in range(_MAX_TRIES):
            text = await self._try(num_tokens, rng)
            if text is not None:
                return text
        raise ValueError(f"found no text of exactly {num_tokens} tokens in {_MAX_TRIES} tries")

    async def _try(self, num_tokens: int, rng: random.Random) -> str | None:
        """Cut words until at most `num_tokens` are left, then fill up with a one-token word."""
        start = rng.randrange(len(self._words))
        length = max(1, round(num_tokens / _TOKENS_PER_WORD))
        for _ in range(_MAX_CUTS):
            text = " ".join(self._cyclic(start, length))
            missing = num_tokens - await self._count(text)
            if missing == 0:
                return text
            if missing > max(2, num_tokens // 50):
                length += max(1, round(missing / _TOKENS_PER_WORD / 1.5))
            elif missing > 0:
                text += _FILLER * missing
                return text if await self._count(text) == num_tokens else None
            else:
                length = max(1, length - max(1, round(-missing / _TOKENS_PER_WORD / 2)))
        return None

    def _cyclic(self, start: int, length: int) -> list[str]:
        num_words = len(self._words)
        return [self._words[(start + offset) % num_words] for offset in range(length)]


def documentation_words() -> list[str]:
    """Python's language documentation as words: about 60,000, ASCII, without tables and rules."""
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics))
    text = text.encode("ascii", "ignore").decode()
    text = re.sub(r"[*=~^_`|+\-]{4,}", " ", text)
    return text.split()


async def approximate_count(text: str) -> int:
    """About the number of tokens, where no tokenizer is at hand: one per four characters."""
    return max(1, round(len(text) / 4))
