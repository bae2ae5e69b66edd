"""Calls in a JSON text that is read character by character: an object, or a list of them."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field

from .json_text import BLANKS, At, JsonText

_KEYS = ("arguments", "parameters")


@dataclass(frozen=True, slots=True)
class Call:
    """A function's name, and its arguments as the JSON text of an object."""

    name: str
    arguments: str


@dataclass(slots=True)
class _Item:
    """An object that may be a call. Places are those of characters in the text.

    Attributes:
        spans: of its members' values, by their keys.
        start, end: of the arguments, if they are an object.
    """

    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    start: int | None = None
    end: int | None = None


class CallJson:
    """The calls in one JSON text, or the arguments of one.

    Attributes:
        is_complete: whether the text has ended.
    """

    def __init__(self, names: Collection[str], called: str | None = None) -> None:
        """Start an empty text.

        Args:
            names: functions that can be called; whatever calls another is no call.
            called: the function whose arguments the text is; None if it is whole calls.
        """
        self.is_complete = False
        self._names = names
        self._called = called
        self._json = JsonText()
        self._characters: list[str] = []
        self._controls: list[int] = []
        self._items: list[_Item] = [] if called is None else [_Item()]
        self._level = 0  # How many brackets are open directly inside of a call.
        self._is_strange = False
        self._key_start = self._value_start = 0
        self._key = ""

    @property
    def text(self) -> str:
        """What was read."""
        return "".join(self._characters)

    def push(self, character: str) -> bool:
        """Take a character; False if it cannot stand here, and it is not taken."""
        reader = self._json
        before, depth = reader.at, len(reader.open)
        if not reader.push(character):
            return False
        place = len(self._characters)
        self._characters.append(character)
        if before is At.TEXT:
            if character < " ":
                self._controls.append(place)
        elif len(reader.open) > depth:
            self._opened(character, place)
        else:
            self._between(character, place, before, depth)
        self.is_complete = reader.at is At.END
        return True

    def calls(self) -> list[Call] | None:
        """The calls of a text that is complete; None if they are none, or not all of it."""
        calls = [self._call(item) for item in self._items]
        if self._is_strange or not calls:
            return None
        return None if None in calls else [call for call in calls if call is not None]

    def so_far(self, index: int, start: int) -> tuple[str, str] | None:
        """Of the call at `index` its name, and its arguments from character `start`, as far as they
        are there; None before they begin. For texts that are known to be calls."""
        item = self._items[index] if index < len(self._items) else None
        if item is None or item.start is None:
            return None
        name = self._name(item)
        return name or "", "".join(self._characters[item.start + start : item.end])

    def has_ended(self, index: int) -> bool:
        """Whether the arguments of the call at `index` are all there."""
        return self._items[index].end is not None

    def _opened(self, bracket: str, place: int) -> None:
        depth = len(self._json.open)
        if depth == 1:
            self._level = 0 if self._called is not None else 1 if bracket == "{" else 2
            self._is_strange = self._called is not None and bracket == "["
        if depth == self._level:
            self._is_strange |= bracket == "["
            self._items.append(_Item())
        elif depth == self._level + 1 and bracket == "{" and self._is_arguments():
            self._items[-1].start, self._items[-1].end = place, None

    def _is_arguments(self) -> bool:
        return self._called is not None or self._key in _KEYS

    def _between(self, character: str, place: int, before: At, depth: int) -> None:
        if depth == self._level + 1 and character == "}" and self._is_arguments():
            self._items[-1].end = place + 1
        elif depth == 1 and self._level == 2 and character not in (*BLANKS, ",", "]"):
            self._is_strange = True
        if depth != self._level or not self._items or self._called is not None:
            return
        if before in (At.KEY, At.FIRST_KEY) and character == '"':
            self._key_start = place
        elif before is At.COLON and character == ":":
            self._key = str(json.loads(self._slice(self._key_start, place)))
            self._value_start = place + 1
        elif before in (At.NEXT, At.WORD) and character in ",}":
            self._items[-1].spans[self._key] = (self._value_start, place)
            self._key = ""

    def _call(self, item: _Item) -> Call | None:
        name, arguments = self._name(item), self._arguments(item)
        return None if name is None or arguments is None else Call(name, arguments)

    def _name(self, item: _Item) -> str | None:
        if self._called is not None:
            return self._called
        span = item.spans.get("name")
        name = None if span is None else _value(self._slice(*span))
        return name if isinstance(name, str) and name in self._names else None

    def _arguments(self, item: _Item) -> str | None:
        if item.start is not None and item.end is not None:
            return self._slice(item.start, item.end)
        span = next((item.spans[key] for key in _KEYS if key in item.spans), None)
        written = "null" if span is None else self._slice(*span).strip()
        if written == "null":
            return "{}"
        value = _value(written)
        return value if isinstance(value, str) and _is_object(value) else None

    def _slice(self, start: int, end: int) -> str:
        """Part of the text, with control characters in its strings as JSON writes them."""
        parts = self._characters[start:end]
        for place in self._controls:
            if start <= place < end:
                parts[place - start] = json.dumps(self._characters[place])[1:-1]
        return "".join(parts)


def _value(text: str) -> object:
    """The value that a JSON text spells; None for one that is too deep, or has too long a number."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _is_object(text: str) -> bool:
    """Whether it spells a JSON object: some models write arguments as such a string."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return isinstance(_value(text), dict)
