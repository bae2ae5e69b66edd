"""A compiled constraint, and the walk of one output through it.

    Vocabulary   the model's tokens as bytes, as the grammar engine wants them
    Grammar      compiled once, shared by all requests that want it
    Matcher      one output: which tokens may come next, and whether it has ended

The engine is llguidance: an Earley parser over lazily built automata, walked along a trie of the tokens
(github.com/guidance-ai/llguidance). Tokens that end inside a character are legal like all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from ..errors import GrammarError
from ..text.tokenizer import Tokenizer
from .constraint import Constraint
from .translate import explain, limits

Mask = NDArray[np.int32]
"""`[ceil(vocab_size / 32)]` int32: bit i % 32 of word i // 32 is set if token i is legal."""


class Vocabulary:
    """The tokens of one model.

    Args:
        vocab_size: ids of the model, of which the tokenizer may know fewer; the others are never legal.
        eos_token_ids: end tokens; all of them are legal where an output may end, and nowhere else.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self.vocab_size = vocab_size
        self.eos_token_ids = tuple(id_ for id_ in eos_token_ids if 0 <= id_ < vocab_size)
        if not self.eos_token_ids:
            raise GrammarError("The model has no end token, so no grammar can end its output.")
        self.engine = LLTokenizer(
            TokenizerWrapper(_Tokens(tokenizer, vocab_size, self.eos_token_ids)),
            eos_token=list(self.eos_token_ids),
        )


class _Tokens:
    """What llguidance asks of a tokenizer."""

    bos_token_id = None

    def __init__(
        self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: tuple[int, ...]
    ) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = eos_token_ids[0]
        self.tokens = [tokenizer.token_bytes(token_id) for token_id in range(vocab_size)]
        special = {*tokenizer.special_ids, *eos_token_ids}
        self.special_token_ids = sorted(id_ for id_ in special if id_ < vocab_size)

    def __call__(self, text: str | bytes) -> list[int]:
        """The text's tokens in the middle of a text, where no tokenizer adds a space."""
        whole = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        ids = self._tokenizer.encode("\n" + whole, add_special_tokens=False)
        before = self._tokenizer.encode("\n", add_special_tokens=False)
        if ids[: len(before)] == before:
            return ids[len(before) :]
        return self._tokenizer.encode(whole, add_special_tokens=False)


class Grammar:
    """A constraint, compiled for one vocabulary.

    Args:
        constraint: for what it says in errors.
        text: the constraint as translated.

    Raises:
        GrammarError: it cannot be compiled within the limits.
    """

    def __init__(self, constraint: Constraint, text: str, vocabulary: Vocabulary) -> None:
        engine = LLMatcher(vocabulary.engine, text, log_level=0, limits=limits())
        # The first mask is the dearest, as it builds the automata that all matchers start from; so it is
        # made here, where no step waits for it.
        self._first = Matcher.at_start(constraint, vocabulary, engine)

    def matcher(self) -> Matcher:
        """A matcher at the start of a new output."""
        return self._first.copy()


class Matcher:
    """One output on its way through a grammar.

    Attributes:
        mask: what may come next, as `Mask`; written anew by `advance`. Never empty: where the output is
            complete it holds the end tokens.
        is_terminated: whether nothing but an end token may follow, or one has come.
    """

    def __init__(
        self,
        constraint: Constraint,
        matcher: LLMatcher,
        eos_token_ids: tuple[int, ...],
        ends: Mask,
        mask: Mask,
        is_terminated: bool,
    ) -> None:
        self._constraint = constraint
        self._matcher = matcher
        self._eos_token_ids = eos_token_ids
        self._ends = ends
        self.mask = mask
        self.is_terminated = is_terminated

    @classmethod
    def at_start(cls, constraint: Constraint, vocabulary: Vocabulary, matcher: LLMatcher) -> Self:
        """Of an engine's matcher that has taken nothing.

        Raises:
            GrammarError: nothing can be taken.
        """
        ends = _bits(vocabulary.eos_token_ids, vocabulary.vocab_size)
        made = cls(constraint, matcher, vocabulary.eos_token_ids, ends, np.zeros_like(ends), False)
        made._fill()
        return made

    def copy(self) -> Self:
        """One that goes on from here by itself."""
        return type(self)(
            self._constraint,
            self._matcher.deep_copy(),
            self._eos_token_ids,
            self._ends,
            self.mask.copy(),
            self.is_terminated,
        )

    def advance(self, token_id: int) -> None:
        """Take the token that comes next.

        Raises:
            GrammarError: the grammar does not allow it, or grew too complex on this output.
        """
        if token_id in self._eos_token_ids and self._may_end():
            self.is_terminated = True
            self.mask[:] = self._ends
            return
        if not self._matcher.consume_token(token_id):
            raise self._error(f"token {token_id} does not fit it. {self._matcher.get_error()}")
        self._fill()

    def take_forced(self, most: int) -> list[int]:
        """Take every next token that has no alternative, up to `most`; returns them.

        They are what any model would have written here, whatever its logits, as the mask holds
        nothing else. Where the grammar leaves one text, that is the text's division by the tokenizer,
        as far as what may follow cannot change it. End tokens are not among them.
        """
        forced: list[int] = []
        while len(forced) < most and not self.is_terminated:
            token_id = _only(self.mask)
            if token_id is None:
                break
            self.advance(token_id)
            forced.append(token_id)
        return forced

    def _may_end(self) -> bool:
        return bool((self.mask & self._ends).any())

    def _fill(self) -> None:
        if self._matcher.is_stopped() and not self._matcher.is_error():
            self.mask[:] = self._ends
        else:
            self._matcher.unsafe_compute_mask_ptr(self.mask.ctypes.data, self.mask.nbytes)
        if self._matcher.is_error():
            raise self._error(self._matcher.get_error())
        if not self.mask.any():
            raise self._error("no token can follow")
        self.is_terminated = not (self.mask & ~self._ends).any()

    def _error(self, reason: str) -> GrammarError:
        return GrammarError(explain(self._constraint, reason), param=self._constraint.param)


def allowed(masks: NDArray[np.int32], vocab_size: int) -> NDArray[np.bool_]:
    """Masks `[n, words]` spread out: `[n, vocab_size]` bool."""
    words = np.ascontiguousarray(masks, dtype="<i4")
    bits = np.unpackbits(words.view(np.uint8), axis=1, count=vocab_size, bitorder="little")
    return bits.view(np.bool_)


def _bits(token_ids: Sequence[int], vocab_size: int) -> Mask:
    flags = np.zeros(-(-vocab_size // 32) * 32, dtype=np.bool_)
    flags[list(token_ids)] = True
    return np.packbits(flags, bitorder="little").view("<i4").astype(np.int32)


def _only(mask: Mask) -> int | None:
    """The one legal token; None if there are several."""
    words = np.flatnonzero(mask)
    if len(words) != 1:
        return None
    word = int(mask[words[0]]) & 0xFFFFFFFF
    return int(words[0]) * 32 + word.bit_length() - 1 if word & (word - 1) == 0 else None
