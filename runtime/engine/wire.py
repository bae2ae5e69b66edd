"""Messages over a stream of bytes: frames, in batches that arrive whole. Knows nothing of their contents.

A batch is its length and its frames, a frame its length and its bytes; lengths are four bytes, big-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

LENGTH = struct.Struct("!I")


def pack(frames: Sequence[bytes]) -> bytes:
    """Frames that are to arrive together."""
    body = b"".join([part for frame in frames for part in (LENGTH.pack(len(frame)), frame)])
    return LENGTH.pack(len(body)) + body


class Unpacker:
    """Puts the pieces in which a stream arrives together again."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, piece: bytes) -> list[bytes]:
        """Add a piece; returns the frames of all batches that are whole now, in order."""
        self._data += piece
        frames: list[bytes] = []
        at = 0
        with memoryview(self._data) as data:
            while len(data) - at >= LENGTH.size:
                start = at + LENGTH.size
                end = start + LENGTH.unpack_from(data, at)[0]
                if end > len(data):
                    break
                frames += _frames(data[start:end])
                at = end
        del self._data[:at]
        return frames


def _frames(batch: memoryview) -> list[bytes]:
    frames: list[bytes] = []
    at = 0
    while at < len(batch):
        start = at + LENGTH.size
        at = start + LENGTH.unpack_from(batch, at)[0]
        frames.append(bytes(batch[start:at]))
    return frames
