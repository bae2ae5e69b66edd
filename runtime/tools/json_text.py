"""JSON read character by character: where it is wrong, and where it ends, as soon as that can be known."""

from __future__ import annotations

import re
from enum import Enum, auto

BLANKS = " \t\n\r"
_WORD = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?|true|false|null", re.ASCII)
_WORD_CHARACTERS = frozenset("-+.0123456789Eaeflnrstu")
_WORD_STARTS = frozenset("-0123456789tfn")
_CLOSERS = {"{": "}", "[": "]"}


class At(Enum):
    """What may come next."""

    VALUE = auto()
    FIRST_ITEM = auto()  # Or the end of the list.
    FIRST_KEY = auto()  # Or the end of the object.
    KEY = auto()
    COLON = auto()
    NEXT = auto()  # A comma, or the end of what is open.
    TEXT = auto()
    ESCAPE = auto()
    HEX = auto()
    WORD = auto()
    END = auto()


class JsonText:
    """One object or list.

    Read as JSON says, but that control characters may stand in strings as they are, since models write
    them so.

    Attributes:
        at: what may come next.
        open: the brackets that are open, outermost first.
        is_key: whether the string that is being read, or was read last, is a key.
    """

    def __init__(self) -> None:
        self.at = At.VALUE
        self.open: list[str] = []
        self.is_key = False
        self._word = ""
        self._num_hex = 0

    def push(self, character: str) -> bool:
        """Take a character; False if it cannot stand here, and it is not taken."""
        match self.at:
            case At.TEXT:
                if character == '"':
                    self.at = At.COLON if self.is_key else At.NEXT
                elif character == "\\":
                    self.at = At.ESCAPE
                return True
            case At.ESCAPE:
                return self._escape(character)
            case At.HEX:
                self._num_hex -= 1
                self.at = At.HEX if self._num_hex else At.TEXT
                return character in "0123456789abcdefABCDEF"
            case At.WORD:
                if character in _WORD_CHARACTERS:
                    self._word += character
                    return True
                if _WORD.fullmatch(self._word) is None:
                    return False
                self.at = At.NEXT
                return self._between(character)
        return self._between(character)

    def _escape(self, character: str) -> bool:
        self.at = At.HEX if character == "u" else At.TEXT
        self._num_hex = 4
        return character in '"\\/bfnrtu'

    def _between(self, character: str) -> bool:
        """A character outside of strings and words."""
        if character in BLANKS:
            return self.at is not At.END
        match self.at:
            case At.VALUE:
                return self._value(character)
            case At.FIRST_ITEM:
                return self._close(character) or self._value(character)
            case At.FIRST_KEY:
                return self._close(character) or self._key(character)
            case At.KEY:
                return self._key(character)
            case At.COLON:
                self.at = At.VALUE
                return character == ":"
            case At.NEXT:
                if character == ",":
                    self.at = At.KEY if self.open[-1] == "{" else At.VALUE
                    return True
                return self._close(character)
        return False

    def _value(self, character: str) -> bool:
        if character in _CLOSERS:
            self.open.append(character)
            self.at = At.FIRST_KEY if character == "{" else At.FIRST_ITEM
            return True
        if not self.open:
            return False
        if character == '"':
            self.is_key = False
            self.at = At.TEXT
            return True
        self.at = At.WORD
        self._word = character
        return character in _WORD_STARTS

    def _key(self, character: str) -> bool:
        self.is_key = True
        self.at = At.TEXT
        return character == '"'

    def _close(self, character: str) -> bool:
        if character != _CLOSERS[self.open[-1]]:
            return False
        self.open.pop()
        self.at = At.NEXT if self.open else At.END
        return True
