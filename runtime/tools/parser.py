"""One output split into what is said and what is called, as its text comes.

However the text is cut into pieces, the events add up to the same. What only looks like a call, and a call
that is not valid JSON, that names no function on offer or that never ends, is said: no text is lost but
the markers of calls and the blanks around them. (A call that a grammar holds, and that is cut off before it
has a name, is not said: nobody is to read half a marker.)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

from .call_json import CallJson
from .form import Form
from .json_text import BLANKS

_HEADER = re.compile(r"([\w-]{1,64})(?:\[CALL_ID\][\w-]*)?", re.ASCII)
_MAX_HEADER_LEN = 200


@dataclass(frozen=True, slots=True)
class Said:
    """Text that is no call."""

    text: str


@dataclass(frozen=True, slots=True)
class Called:
    """A call begins; calls count from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class Argued:
    """A piece of a call's arguments. The pieces are JSON together."""

    index: int
    text: str


Event = Said | Called | Argued


class ToolCallParser:
    """Reads one output.

    Attributes:
        num_calls: calls that have begun.
        is_inside: whether the last of them has not ended.
    """

    def __init__(
        self,
        form: Form,
        names: Collection[str],
        *,
        is_held: bool = False,
        is_only_calls: bool = False,
    ) -> None:
        """Start an empty output.

        Args:
            names: the functions on offer.
            is_held: a grammar holds the output to valid calls, so arguments are passed on as they come,
                and what has begun is a call, even if it was cut off; otherwise a call is passed on once it
                is whole.
            is_only_calls: that grammar leaves no room for text, so nothing is ever said.
        """
        self.num_calls = 0
        self.is_inside = False
        self._form = form
        self._names = names
        self._is_held = is_held
        self._is_only_calls = is_only_calls
        self._events: list[Event] = []
        self._text = ""  # Not read yet.
        self._taken = ""  # What led to the JSON that is being read; said if that is no call.
        self._blanks = ""  # Not said yet, as they may lie before a call.
        self._has_said = self._follows_call = False
        self._json: CallJson | None = None
        self._first = 0  # The number of the first call in this JSON.
        self._num_shown = 0  # Characters of the last call's arguments that were passed on.
        self._step: Callable[[], bool] = self._begin if form.is_bare else self._outside

    def push(self, text: str) -> list[Event]:
        """Take more text; returns what is new."""
        self._text += text
        while self._text and self._step():
            pass
        return self._new_events()

    def finish(self) -> list[Event]:
        """End the output; returns what was held back. A cut marker behind a call is no text, nor is what
        a grammar has begun of a call."""
        is_cut_marker = self._step == self._behind
        is_cut_call = self._is_held and (self._taken != "" or self._json is not None)
        if not (is_cut_marker or is_cut_call or self._is_only_calls):
            self._say(self._unread() + self._text)
        if not self._follows_call and self._blanks:
            self._events.append(Said(self._blanks))
        self._text = self._taken = self._blanks = ""
        return self._new_events()

    def _new_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    # The steps. Each reads from the front of the text, and returns whether it got further.

    def _begin(self) -> bool:
        """At the very start, where a call needs no opening."""
        stripped = self._text.lstrip(BLANKS)
        if not stripped:
            return False
        if stripped[0] not in "{":
            self._step = self._outside
            return True
        self._taken = self._text[: len(self._text) - len(stripped)]
        self._text = stripped
        self._open_json(None)
        return True

    def _outside(self) -> bool:
        opening = self._form.opening
        before, found, rest = self._text.partition(opening)
        if found:
            self._say(before)
            self._taken, self._text = opening, rest
            self._step = self._opened
            return True
        held = _overlap(self._text, opening)
        shown = len(self._text) - held
        self._say(self._text[:shown])
        self._text = self._text[shown:]
        return False

    def _opened(self) -> bool:
        """Behind an opening, or behind what joins two calls."""
        stripped = self._text.lstrip(BLANKS)
        self._taken += self._text[: len(self._text) - len(stripped)]
        self._text = stripped
        if not stripped:
            return False
        if stripped[0] in "{[":
            self._open_json(None)
        elif self._form.names_end:
            self._step = self._header
        else:
            self._no_call()
        return True

    def _header(self) -> bool:
        """A name before its arguments."""
        head, found, _ = self._text.partition("{")
        if not found and len(self._text) <= _MAX_HEADER_LEN and "\n" not in self._text:
            return False
        written = head.rstrip(BLANKS).removesuffix(self._form.names_end)
        match = _HEADER.fullmatch(written.rstrip(BLANKS)) if found else None
        if match is None or match[1] not in self._names:
            self._no_call()
            return True
        self._taken += head
        self._text = self._text[len(head) :]
        self._open_json(match[1])
        return True

    def _open_json(self, called: str | None) -> None:
        self._json = CallJson(self._names, called)
        self._first = self.num_calls
        self._step = self._inside

    def _inside(self) -> bool:
        """In the JSON of calls."""
        reader = self._json
        assert reader is not None
        size = 0
        while not reader.is_complete and size < len(self._text):
            if not reader.push(self._text[size]):
                self._text = self._text[size:]
                self._no_call()
                return True
            size += 1
        self._text = self._text[size:]
        if self._is_held:
            self._pass_on(reader)
        if not reader.is_complete:
            return False
        self._end_json(reader)
        return True

    def _pass_on(self, reader: CallJson) -> None:
        """The names and arguments that are there, of calls that are known to be valid."""
        while True:
            index = self.num_calls - self.is_inside
            so_far = reader.so_far(index - self._first, self._num_shown)
            if so_far is None:
                return
            name, text = so_far
            if not self.is_inside:
                self._call(name)
                self.is_inside = True
            if text:
                self._events.append(Argued(index, text))
                self._num_shown += len(text)
            if not reader.has_ended(index - self._first):
                return
            self.is_inside = False
            self._num_shown = 0

    def _end_json(self, reader: CallJson) -> None:
        if self.num_calls == self._first:
            calls = reader.calls()
            if calls is None:
                self._no_call()
                return
            for call in calls:
                self._call(call.name)
                self._events.append(Argued(self.num_calls - 1, call.arguments))
        self._taken, self._json = "", None
        self._step = self._behind

    def _behind(self) -> bool:
        """Behind calls, where their closing stands, or what joins them to the next."""
        stripped = self._text.lstrip(BLANKS)
        for marker, step in ((self._form.closing, self._outside), (self._form.join, self._opened)):
            if marker and stripped.startswith(marker):
                self._text = stripped[len(marker) :]
                self._taken = marker if step == self._opened else ""
                self._step = step
                return True
            if marker and marker.startswith(stripped):
                return False
        self._step = self._outside
        return True

    def _no_call(self) -> None:
        """What was taken for the beginning of a call is text."""
        self._say(self._unread())
        self._taken, self._json = "", None
        self._step = self._outside

    def _unread(self) -> str:
        """What was taken and came to nothing."""
        if self._json is None:
            return self._taken
        return "" if self.num_calls > self._first else self._taken + self._json.text

    def _call(self, name: str) -> None:
        if not self._has_said:
            self._blanks = ""
        self._follows_call = True
        self._events.append(Called(self.num_calls, name))
        self.num_calls += 1

    def _say(self, text: str) -> None:
        """Say text, but keep the blanks at its end until text follows them; those behind calls are none."""
        if self._follows_call:
            text = text.lstrip(BLANKS)
            self._follows_call = not text
        text = self._blanks + text
        shown = text.rstrip(BLANKS)
        self._blanks = text[len(shown) :]
        if shown:
            self._has_said = True
            self._events.append(Said(shown))


def _overlap(text: str, marker: str) -> int:
    """Length of the longest end of `text` that is a beginning of `marker`."""
    sizes = range(min(len(text), len(marker) - 1), 0, -1)
    return next((size for size in sizes if text.endswith(marker[:size])), 0)
