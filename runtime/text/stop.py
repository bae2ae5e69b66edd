"""Finds stop strings in text that arrives in parts. Knows only characters.

Source: Aho and Corasick 1975, "Efficient string matching: an aid to bibliographic search".
"""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Watches one text for several strings, in time linear in the text.

    The automaton's state is the longest suffix of the text so far that starts some string; what it
    holds back is the longest such suffix that a further character could still lengthen.
    """

    def __init__(self, strings: Sequence[str], include_match: bool) -> None:
        """Build the automaton.

        Args:
            strings: what to look for.
            include_match: let the text end after the match instead of before it.

        Raises:
            ValueError: one of the strings is empty.
        """
        if not all(strings):
            raise ValueError("a stop string must not be empty")
        self.held = ""
        self._include_match = include_match
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._match: list[str | None] = [None]
        for string in strings:
            self._insert(string)
        self._fail = [0] * len(self._next)
        self._num_held = [0] * len(self._next)
        self._link()
        self._state = 0

    def push(self, text: str, *, may_match: bool = True) -> tuple[str, str | None]:
        """Add text, and return what is safe to show with the string that ended it, if one did.

        With `may_match` false a string completed in this text is passed over as ordinary text. After
        a match the rest of `text` is dropped and nothing more may be pushed.
        """
        state, successors, matches = self._state, self._next, self._match
        for index, character in enumerate(text):
            while state and character not in successors[state]:
                state = self._fail[state]
            state = successors[state].get(character, 0)
            match = matches[state]
            if match is not None and may_match:
                shown = self.held + text[: index + 1]
                return shown if self._include_match else shown[: -len(match)], match
        self._state = state
        shown = self.held + text
        cut = len(shown) - self._num_held[state]
        self.held = shown[cut:]
        return shown[:cut], None

    def _insert(self, string: str) -> None:
        state = 0
        for character in string:
            following = self._next[state].get(character)
            if following is None:
                following = len(self._next)
                self._next[state][character] = following
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._match.append(None)
            state = following
        self._match[state] = string

    def _link(self) -> None:
        """Point every state at the longest proper suffix that is a state, in order of depth."""
        queue = [0]
        for state in queue:
            for character, child in self._next[state].items():
                if state:
                    fail = self._fail[state]
                    while fail and character not in self._next[fail]:
                        fail = self._fail[fail]
                    self._fail[child] = self._next[fail].get(character, 0)
                fail = self._fail[child]
                self._match[child] = self._match[child] or self._match[fail]
                has_longer = bool(self._next[child])
                self._num_held[child] = self._depth[child] if has_longer else self._num_held[fail]
                queue.append(child)
