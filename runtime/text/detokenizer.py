"""Text of one sequence as its tokens arrive, ended by stop strings. Knows no request and no clock.

Each pushed token is read as bytes, bytes become characters as soon as they are whole, and characters
run through a `StopMatcher`, which holds back what may still become a stop string. All of it is
linear in the length of the text, whatever the number of pushes.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

import msgspec

from .stop import StopMatcher
from .tokenizer import Tokenizer


class TextDelta(msgspec.Struct, frozen=True):
    """What one push added.

    Attributes:
        text: new text, whole characters only, safe to send: no later token takes it back.
        stop_match: the stop string that ended the text, or None.
        stop_offset: which of the pushed tokens completed it, counted from 0; None without a match.
    """

    text: str
    stop_match: str | None = None
    stop_offset: int | None = None


class IncrementalDetokenizer:
    """Turns the tokens of one output into text.

    An output goes on from its prompt, so the joined deltas, with `finish`, are `Tokenizer.decode` of
    all tokens with `continues`, up to the first match: added to the prompt they make one text.
    The match that counts is the one completed first; of several completed by the same character, the
    longest. That depends on the text alone, not on how it was cut into tokens or pushes.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: tuple[str, ...] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        shown_ids: frozenset[int] = frozenset(),
        min_tokens: int = 0,
    ) -> None:
        """Start an empty text.

        Args:
            tokenizer: the model's.
            stop: strings that end the text where they appear in it; none of them empty.
            include_stop: keep the stop string that matched.
            skip_special_tokens: leave special tokens out of the text.
            shown_ids: special tokens that are text all the same.
            min_tokens: a stop string completed by an earlier token than this one (counted from 1) is
                ordinary text.
        """
        self._reader = tokenizer.reader(continues=True)
        skipped = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        self._skipped = skipped - shown_ids
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._matcher = StopMatcher(stop, include_stop) if stop else None
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._ended = False

    def push(self, token_ids: Sequence[int]) -> TextDelta:
        """Add tokens. Once a stop string matched, or after `finish`, further tokens add nothing."""
        if self._ended:
            return TextDelta("")
        if self._matcher is None:
            self._num_tokens += len(token_ids)
            return TextDelta(self._utf8.decode(b"".join(map(self._read, token_ids))))
        parts = []
        for offset, token_id in enumerate(token_ids):
            self._num_tokens += 1
            text = self._utf8.decode(self._read(token_id))
            safe, match = self._matcher.push(text, may_match=self._num_tokens >= self._min_tokens)
            parts.append(safe)
            if match is not None:
                self._ended = True
                return TextDelta("".join(parts), match, offset)
        return TextDelta("".join(parts))

    def finish(self) -> str:
        """End the text: what was held back, with U+FFFD for a character that was never completed."""
        if self._ended:
            return ""
        self._ended = True
        held = "" if self._matcher is None else self._matcher.held
        return held + self._utf8.decode(b"", final=True)

    def _read(self, token_id: int) -> bytes:
        return b"" if token_id in self._skipped else self._reader.read(token_id)
