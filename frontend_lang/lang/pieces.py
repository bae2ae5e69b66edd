"""A text that is known in pieces, such as the texts of its tokens."""

from __future__ import annotations

from collections.abc import Sequence


def pieces_behind(pieces: Sequence[str], start: int) -> tuple[str, ...]:
    """The pieces of a text from one of its characters on; of the piece that it is in, the rest."""
    for index, piece in enumerate(pieces):
        if start < len(piece):
            return (piece[start:], *pieces[index + 1 :])
        start -= len(piece)
    return ()
