"""Regular expressions as position automata, which read a text once however hostile the pattern.

Every character of a pattern, counted repetitions written out, is a position; a set of them is an integer
with a bit for each. Anchors and word boundaries are positions too, which stand between two characters.
Syntax is Python's, as `re` parses it; what needs more than such an automaton is refused.

Source: Glushkov 1961, "The abstract theory of automata".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from re import _parser as syntax  # type: ignore[attr-defined]
from typing import Any

Test = Callable[[str], bool]
"""Whether a position takes a character."""

GapTest = Callable[[str, str], bool]
"""Whether a position lies between what stands before it, one character or none, and all that follows."""

_REFUSED = {
    "ASSERT": "lookaround",
    "ASSERT_NOT": "lookaround",
    "GROUPREF": "a reference to a group",
    "GROUPREF_EXISTS": "a reference to a group",
    "ATOMIC_GROUP": "an atomic group",
    "POSSESSIVE_REPEAT": "a possessive repetition",
}


class PatternError(ValueError):
    """A pattern is malformed, too large, or needs what an automaton cannot do; the message says which."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a pattern: whether it takes the empty text, and where a match of it begins and ends."""

    is_empty: bool
    first: int
    last: int


class Automaton:
    """The positions of any number of patterns.

    Args:
        max_positions: of all patterns together.

    Attributes:
        tests: of each position; None for one between characters.
        gap_tests: of those between characters, by position.
        follow: the positions that may come after each.
    """

    def __init__(self, max_positions: int) -> None:
        self.tests: list[Test | None] = []
        self.gap_tests: dict[int, GapTest] = {}
        self.follow: list[int] = []
        self._max_positions = max_positions

    def add(self, pattern: str) -> Piece:
        """The positions of one more pattern.

        Raises:
            PatternError: see there.
        """
        try:
            parsed = syntax.parse(pattern)
            return self._sequence(parsed, parsed.state.flags)
        except (re.error, RecursionError, OverflowError) as error:
            raise PatternError(f"it is no regular expression: {error}") from None

    def _sequence(self, nodes: Any, flags: int) -> Piece:
        whole = Piece(True, 0, 0)
        for node in nodes:
            operation, argument = node
            whole = self._joined(whole, self._piece(operation, argument, flags))
        return whole

    def _piece(self, operation: Any, argument: Any, flags: int) -> Piece:
        name = str(operation)
        match name:
            case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN":
                return self._position(_test(name, argument, flags), None)
            case "AT":
                return self._position(None, _gap_test(str(argument), flags))
            case "BRANCH":
                return self._branch([self._sequence(branch, flags) for branch in argument[1]])
            case "SUBPATTERN":
                _, added, removed, nodes = argument
                return self._sequence(nodes, (flags | added) & ~removed)
            case "MAX_REPEAT" | "MIN_REPEAT":
                least, most, nodes = argument
                return self._repeat(least, most, nodes, flags)
        raise PatternError(f"{_REFUSED.get(name, name)} is not supported.")

    def _position(self, test: Test | None, gap_test: GapTest | None) -> Piece:
        index = len(self.tests)
        if index >= self._max_positions:
            raise PatternError(
                f"there are more than {self._max_positions} characters to match, with counted "
                "repetitions written out."
            )
        self.tests.append(test)
        self.follow.append(0)
        if gap_test is not None:
            self.gap_tests[index] = gap_test
        return Piece(False, 1 << index, 1 << index)

    def _joined(self, left: Piece, right: Piece) -> Piece:
        self._link(left.last, right.first)
        return Piece(
            left.is_empty and right.is_empty,
            left.first | (right.first if left.is_empty else 0),
            right.last | (left.last if right.is_empty else 0),
        )

    @staticmethod
    def _branch(pieces: list[Piece]) -> Piece:
        first = last = 0
        for piece in pieces:
            first |= piece.first
            last |= piece.last
        return Piece(any(piece.is_empty for piece in pieces), first, last)

    def _repeat(self, least: int, most: int, nodes: Any, flags: int) -> Piece:
        whole = Piece(True, 0, 0)
        is_endless = most == syntax.MAXREPEAT
        num_copies = max(least, 1) if is_endless else most
        for number in range(num_copies):
            copy = self._sequence(nodes, flags)
            if not copy.first:
                return copy if least else Piece(True, 0, 0)
            if is_endless and number == num_copies - 1:
                self._link(copy.last, copy.first)
            if number >= least:
                copy = Piece(True, copy.first, copy.last)
            whole = self._joined(whole, copy)
        return whole

    def _link(self, last: int, first: int) -> None:
        for index in positions(last):
            self.follow[index] |= first


def positions(members: int) -> Iterator[int]:
    """The members of a set, in order."""
    while members:
        lowest = members & -members
        yield lowest.bit_length() - 1
        members ^= lowest


def literal_text(pattern: str) -> str | None:
    """The only text that a pattern matches, if its characters all stand for themselves; else None."""
    try:
        parsed = syntax.parse(pattern)
    except (re.error, RecursionError, OverflowError):
        return None
    is_literal = all(str(operation) == "LITERAL" for operation, _ in parsed)
    text = "".join(chr(code) for _, code in parsed) if is_literal else ""
    return pattern if text == pattern and not parsed.state.flags & re.IGNORECASE else None


def _test(name: str, argument: Any, flags: int) -> Test:
    if name == "ANY":
        return (
            (lambda character: True) if flags & re.DOTALL else (lambda character: character != "\n")
        )
    items = argument if name == "IN" else [(name.removeprefix("NOT_"), argument)]
    is_negated = name == "NOT_LITERAL" or str(items[0][0]) == "NEGATE"
    members = [_member(str(kind), value, flags) for kind, value in items if str(kind) != "NEGATE"]

    def takes(character: str) -> bool:
        forms = {character}
        if flags & re.IGNORECASE:
            forms |= {character.lower(), character.upper()}
        return is_negated != any(member(form) for form in forms for member in members)

    return takes


def _member(kind: str, value: Any, flags: int) -> Test:
    match kind:
        case "LITERAL":
            return lambda form: form == chr(value)
        case "RANGE":
            low, high = map(chr, value)
            return lambda form: low <= form <= high and len(form) == 1
    _, _, category = str(value).rpartition("CATEGORY_")
    wanted = not category.startswith("NOT_")
    holds = _CATEGORIES[category.removeprefix("NOT_")]
    if flags & re.ASCII:
        return lambda form: wanted == (form.isascii() and holds(form))
    return lambda form: wanted == holds(form)


def _is_word(form: str) -> bool:
    return form.isalnum() or form == "_"


_CATEGORIES: dict[str, Test] = {"DIGIT": str.isdecimal, "SPACE": str.isspace, "WORD": _is_word}


def _gap_test(where: str, flags: int) -> GapTest:
    by_line = bool(flags & re.MULTILINE)

    def is_boundary(before: str, after: str) -> bool:
        sides = (before, after[:1])
        left, right = (_is_word(s) and (s.isascii() or not flags & re.ASCII) for s in sides)
        return left != right

    match where:
        case "AT_BEGINNING" if by_line:
            return lambda before, after: before in ("", "\n")
        case "AT_BEGINNING" | "AT_BEGINNING_STRING":
            return lambda before, after: before == ""
        case "AT_END" if by_line:
            return lambda before, after: after[:1] in ("", "\n")
        case "AT_END":
            return lambda before, after: after in ("", "\n")
        case "AT_END_STRING":
            return lambda before, after: after == ""
        case "AT_BOUNDARY":
            return is_boundary
    return lambda before, after: not is_boundary(before, after)
