"""The near end of a worker's socket, without the process."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest

from ramet.runtime.engine.launch import Connection
from ramet.runtime.engine.wire import LENGTH, pack

BROKEN = LENGTH.pack(1) + b"x"


async def connected(connection: Connection) -> tuple[Connection, socket.socket]:
    """The connection over a socket, and the socket's other end."""
    near, far = socket.socketpair()
    near.setblocking(False)
    far.settimeout(5)
    await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, near)
    return connection, far


async def test_what_breaks_the_framing_ends_the_connection_once_and_closes_it() -> None:
    connection, far = await connected(Connection(lambda frame: None))
    with far:
        far.sendall(BROKEN)
        with pytest.raises(struct.error):
            await connection.ended
        connection.data_received(BROKEN)
        assert await asyncio.to_thread(far.recv, 1) == b""


async def test_nothing_is_taken_after_a_frame_that_was_refused() -> None:
    taken: list[bytes] = []

    def take(frame: bytes) -> None:
        taken.append(frame)
        raise ValueError("refused")

    connection, far = await connected(Connection(take))
    with far:
        far.sendall(pack([b"one", b"two"]))
        with pytest.raises(ValueError, match="refused"):
            await connection.ended
        connection.data_received(pack([b"three"]))
    assert taken == [b"one"]
