"""Ends a text where a regular expression matches in it. Knows only characters.

The work for a character is bounded by the size of the patterns, whatever they are and however long the text
is, since it is read once and never again (regex_automaton.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from .regex_automaton import Automaton, PatternError, literal_text, positions

MAX_PATTERNS = 32
MAX_PATTERN_LEN = 256
MAX_POSITIONS = 256
"""Characters to match in all patterns together, counted repetitions written out."""

_MAX_REMEMBERED = 1024


class StopPatterns:
    """Patterns, ready to be searched for in any number of texts.

    A pattern whose characters all stand for themselves is a stop string and listed in `literals`; the rest
    is what a `RegexWatch` looks for.

    Raises:
        PatternError: one is malformed, too large, matches without a character, or needs what an automaton
            cannot do.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        if len(patterns) > MAX_PATTERNS:
            raise PatternError(f"there are more than {MAX_PATTERNS} of them.")
        self.literals: list[str] = []
        self.names: list[tuple[int, str]] = []
        self.first = self.last = 0
        self.automaton = Automaton(MAX_POSITIONS)
        for pattern in patterns:
            self._add(pattern)
        self._masks: dict[str, int] = {}
        self._steps: dict[tuple[int, str], int] = {}

    def _add(self, pattern: str) -> None:
        if len(pattern) > MAX_PATTERN_LEN:
            raise PatternError(f"{pattern[:20]!r}… has more than {MAX_PATTERN_LEN} characters.")
        if pattern and literal_text(pattern) is not None:
            self.literals.append(pattern)
            return
        try:
            piece = self.automaton.add(pattern)
        except PatternError as error:
            raise PatternError(f"{pattern!r}: {error}") from None
        if piece.is_blank:
            raise PatternError(
                f"{pattern!r} matches the empty text, so that nothing could be said."
            )
        self.first |= piece.first
        self.last |= piece.last
        self.names.append((piece.last, pattern))

    def after(self, reached: int, character: str) -> int:
        """The positions that take a character behind those reached so far, or begin with it."""
        key = reached, character
        found = self._steps.get(key)
        if found is None:
            if len(self._steps) >= _MAX_REMEMBERED:
                self._steps.clear()
            found = self._steps[key] = self.following(reached) & self._mask(character)
        return found

    def following(self, reached: int) -> int:
        """The positions that may come next, or first."""
        following, follow = self.first, self.automaton.follow
        for index in positions(reached):
            following |= follow[index]
        return following

    def _mask(self, character: str) -> int:
        mask = self._masks.get(character)
        if mask is None:
            if len(self._masks) >= _MAX_REMEMBERED:
                self._masks.clear()
            # No two tests have a position in common.
            mask = sum(bits for test, bits in self.automaton.tests.items() if test(character))
            self._masks[character] = mask
        return mask

    def matched(self, reached: int) -> str | None:
        """The first pattern of which a match ends here."""
        if not reached & self.last:
            return None
        return next(pattern for last, pattern in self.names if reached & last)


class RegexWatch:
    """Watches one text for a match."""

    def __init__(self, patterns: StopPatterns) -> None:
        self._patterns = patterns
        self._reached = 0
        self._before = ""

    def push(self, text: str) -> str | None:
        """Add text; returns the pattern of the match that is completed first in it, or None.

        An anchor at the end holds at the end of what has been pushed. After a match one may go on.
        """
        found = None
        has_gaps = bool(self._patterns.automaton.gap_tests)
        for index, character in enumerate(text):
            reached = self._reached
            if has_gaps:
                reached = self._at_gap(text[index:])
                found = found or self._patterns.matched(reached & ~self._reached)
            self._reached = self._patterns.after(reached, character)
            self._before = character
            found = found or self._patterns.matched(self._reached)
        if text and has_gaps:
            found = found or self._patterns.matched(self._at_gap(""))
        return found

    def _at_gap(self, after: str) -> int:
        """What is reached between the last character and what comes after it."""
        patterns, reached = self._patterns, self._reached
        holding = sum(
            bits
            for holds, bits in patterns.automaton.gap_tests.items()
            if holds(self._before, after)
        )
        new = reached
        while new := patterns.following(new) & holding & ~reached:
            reached |= new
        return reached


@lru_cache(maxsize=64)
def stop_patterns(patterns: tuple[str, ...]) -> StopPatterns:
    """`StopPatterns`, remembered: the samples of a call share one."""
    return StopPatterns(patterns)
