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
from re import _compiler as compiler  # type: ignore[attr-defined]
from re import _parser as syntax  # type: ignore[attr-defined]
from typing import Any

Test = Callable[[str], object]
"""Whether a position takes a character: something true, if so."""

GapTest = Callable[[str, str], bool]
"""Whether a position lies between what stands before it, one character or none, and all that follows."""

MAX_RANGES = 1 << 20
"""Characters in the ranges of all different sets together: `re` goes over each to compile a set."""

_LAST_LISTED = 0xFFFF
"""The last character that it goes over so; a range that goes on behind it costs no more."""

_CHARACTER_FLAGS = re.IGNORECASE | re.ASCII | re.UNICODE | re.DOTALL
_GAP_FLAGS = re.ASCII | re.MULTILINE

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
    """A part of a pattern, and where a match of it begins and ends.

    Attributes:
        is_empty: it matches without any position.
        is_blank: it matches without a character, by anchors at most.
    """

    is_empty: bool
    is_blank: bool
    first: int
    last: int


_NOTHING = Piece(True, True, 0, 0)


class Automaton:
    """The positions of any number of patterns.

    Args:
        max_positions: of all patterns together.

    Attributes:
        tests: the positions whose character each test takes; equal positions share one.
        gap_tests: likewise of the positions between characters.
        follow: the positions that may come after each.
    """

    def __init__(self, max_positions: int) -> None:
        self.tests: dict[Test, int] = {}
        self.gap_tests: dict[GapTest, int] = {}
        self.follow: list[int] = []
        self._max_positions = max_positions
        self._known: dict[Any, Any] = {}
        self._characters = self._text_ends = self._in_ranges = 0

    def add(self, pattern: str) -> Piece:
        """The positions of one more pattern.

        Raises:
            PatternError: see there.
        """
        try:
            parsed = syntax.parse(pattern)
            piece = self._sequence(parsed, parsed.state.flags)
        except PatternError:
            raise
        except (re.error, RecursionError, OverflowError, ValueError) as error:
            raise PatternError(f"it is no regular expression: {error}") from None
        self._check_text_ends()
        return piece

    def _check_text_ends(self) -> None:
        # Where the text ends is where a token does: what reads on from there would match by chance.
        reached = 0
        new = self._text_ends
        while new:
            reached |= new
            new = self._after(new) & ~reached
            if new & self._characters:
                raise PatternError(
                    "something follows `$` or `\\Z`, which end the text, not a line."
                )

    def _after(self, members: int) -> int:
        after = 0
        for index in positions(members):
            after |= self.follow[index]
        return after

    def _sequence(self, nodes: Any, flags: int) -> Piece:
        whole = _NOTHING
        for node in nodes:
            operation, argument = node
            whole = self._joined(whole, self._piece(operation, argument, flags))
        return whole

    def _piece(self, operation: Any, argument: Any, flags: int) -> Piece:
        name = str(operation)
        match name:
            case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN":
                return self._character(operation, argument, flags)
            case "AT":
                return self._gap(str(argument), flags)
            case "BRANCH":
                return self._branch([self._sequence(branch, flags) for branch in argument[1]])
            case "SUBPATTERN":
                _, added, removed, nodes = argument
                return self._sequence(nodes, _scoped(flags, added, removed))
            case "MAX_REPEAT" | "MIN_REPEAT":
                least, most, nodes = argument
                return self._repeat(least, most, nodes, flags)
        raise PatternError(f"{_REFUSED.get(name, name)} is not supported.")

    def _character(self, operation: Any, argument: Any, flags: int) -> Piece:
        argument = tuple(argument) if isinstance(argument, list) else argument
        key = operation, argument, flags & _CHARACTER_FLAGS
        if (test := self._known.get(key)) is None:
            self._count_ranges(argument)
            test = self._known[key] = _test(operation, argument, flags)
        index = self._position()
        self.tests[test] = self.tests.get(test, 0) | 1 << index
        self._characters |= 1 << index
        return Piece(False, False, 1 << index, 1 << index)

    def _count_ranges(self, argument: Any) -> None:
        for kind, value in argument if isinstance(argument, tuple) else ():
            if str(kind) == "RANGE":
                self._in_ranges += max(min(value[1], _LAST_LISTED) - value[0], 0)
        if self._in_ranges > MAX_RANGES:
            raise PatternError(f"its ranges have more than {MAX_RANGES} characters together.")

    def _gap(self, where: str, flags: int) -> Piece:
        key = where, flags & _GAP_FLAGS
        if (test := self._known.get(key)) is None:
            test = self._known[key] = _gap_test(where, flags)
        index = self._position()
        self.gap_tests[test] = self.gap_tests.get(test, 0) | 1 << index
        if where == "AT_END_STRING" or (where == "AT_END" and not flags & re.MULTILINE):
            self._text_ends |= 1 << index
        return Piece(False, True, 1 << index, 1 << index)

    def _position(self) -> int:
        index = len(self.follow)
        if index >= self._max_positions:
            raise PatternError(
                f"there are more than {self._max_positions} characters to match, with counted "
                "repetitions written out."
            )
        self.follow.append(0)
        return index

    def _joined(self, left: Piece, right: Piece) -> Piece:
        self._link(left.last, right.first)
        return Piece(
            left.is_empty and right.is_empty,
            left.is_blank and right.is_blank,
            left.first | (right.first if left.is_empty else 0),
            right.last | (left.last if right.is_empty else 0),
        )

    @staticmethod
    def _branch(pieces: list[Piece]) -> Piece:
        first = last = 0
        for piece in pieces:
            first |= piece.first
            last |= piece.last
        is_empty = any(piece.is_empty for piece in pieces)
        return Piece(is_empty, any(piece.is_blank for piece in pieces), first, last)

    def _repeat(self, least: int, most: int, nodes: Any, flags: int) -> Piece:
        whole = _NOTHING
        is_endless = most == syntax.MAXREPEAT
        num_copies = max(least, 1) if is_endless else most
        for number in range(num_copies):
            copy = self._sequence(nodes, flags)
            if not copy.first:
                return copy if least else _NOTHING
            if is_endless and number == num_copies - 1:
                self._link(copy.last, copy.first)
            if number >= least:
                copy = Piece(True, True, copy.first, copy.last)
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
    except (re.error, RecursionError, OverflowError, ValueError):
        return None
    is_literal = all(str(operation) == "LITERAL" for operation, _ in parsed)
    text = "".join(chr(code) for _, code in parsed) if is_literal else ""
    return pattern if text == pattern and not parsed.state.flags & re.IGNORECASE else None


def _scoped(flags: int, added: int, removed: int) -> int:
    """The flags in a group that sets some; a kind of characters takes the place of another."""
    if added & syntax.TYPE_FLAGS:
        flags &= ~syntax.TYPE_FLAGS
    return (flags | added) & ~removed


def _test(operation: Any, argument: Any, flags: int) -> Test:
    argument = list(argument) if isinstance(argument, tuple) else argument
    node = syntax.SubPattern(syntax.State(), [(operation, argument)])
    test: Test = compiler.compile(node, flags & _CHARACTER_FLAGS).match
    return test


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


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
