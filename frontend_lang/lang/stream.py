"""What a state has said so far, for readers that follow it. Knows no state and no backend."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Said:
    """A piece of text.

    Attributes:
        text: new text; None says that the variable is complete.
        name: the variable that it belongs to, if any.
        facts: about the tokens of this piece.
    """

    text: str | None
    name: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


class TextLog:
    """Pieces of text in order; any number of readers, each at its own place, on any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pieces: list[Said] = []
        self._closed = False
        self._changed: Future[None] | None = None

    def add(self, piece: Said) -> None:
        """Append a piece."""
        with self._lock:
            self._pieces.append(piece)
            changed, self._changed = self._changed, None
        if changed is not None:
            changed.set_result(None)

    def close(self) -> None:
        """Say that nothing will follow. Safe to call twice."""
        with self._lock:
            self._closed = True
            changed, self._changed = self._changed, None
        if changed is not None:
            changed.set_result(None)

    def read(self, index: int) -> Said | Future[None] | None:
        """Piece `index`; None if there will be none; or what to wait for before asking again."""
        with self._lock:
            if index < len(self._pieces):
                return self._pieces[index]
            if self._closed:
                return None
            if self._changed is None:
                self._changed = Future()
            return self._changed
