"""One engine process, from its start to its end: the near end of worker.py.

Owns the child process, its private socket and the folder that the socket lies in. It knows nothing of
requests, nor of starting again.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import msgspec

from ..config import EngineConfig
from ..errors import EngineDead
from .background import in_background
from .messages import FromEngine, ToEngine
from .spawn import end, spawn
from .wire import Unpacker, pack
from .worker import WorkerOptions, write_options

# A unix socket's path is limited to 107 bytes on Linux and 103 on macOS.
_MAX_SOCKET_PATH = 100


class Connection(asyncio.Protocol):
    """The near end of a worker's socket, once it has connected.

    Attributes:
        transport: None before that.
        ended: done when nothing will be taken any more; fails with the error that ended it.
    """

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self.transport: asyncio.Transport | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._take = take
        self._unpacker = Unpacker()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.ended.done():
            return
        try:
            for frame in self._unpacker.feed(data):
                if not self.ended.done():
                    self._take(frame)
        except Exception as error:
            self.fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def fail(self, error: Exception) -> None:
        """End with an error, and take nothing more."""
        if not self.ended.done():
            self.ended.set_exception(error)
        self.abort()

    def abort(self) -> None:
        """Take nothing more, whether the worker has connected or not."""
        if self.transport is not None:
            self.transport.abort()
        self.connection_lost(None)


class Worker:
    """A running engine process.

    Make it with `spawn`; always `close` it and `wait` for its end.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], listener: socket.socket, folder: Path
    ) -> None:
        self._process = process
        self._listener = listener
        self._folder = folder
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromEngine)
        self._handle: Callable[[FromEngine], None] | None = None
        self._connection = Connection(self._take)
        self._accepting = asyncio.create_task(self._accept())
        self._exit_code = in_background(process.wait, "engine-exit")

    @classmethod
    def spawn(
        cls,
        config: EngineConfig,
        cache_dir: Path,
        core: str,
        log_level: int,
        *,
        process: subprocess.Popen[bytes] | None = None,
    ) -> Worker:
        """Let a process load `core`; returns before it has loaded.

        Called on the event loop that will use the worker.

        Args:
            config: what to load.
            cache_dir: folder of downloaded models.
            core: `module:function`, see `WorkerOptions`.
            log_level: as in `logging`.
            process: one that `spawn.spawn` started for this core; None starts one. It is the worker's
                from now on, even where this raises.

        Raises:
            EngineDead: the process has ended already.
            OSError: the system refuses what this needs.
        """
        folder = _private_folder()
        listener = socket.socket(socket.AF_UNIX)
        try:
            path = folder / "engine"
            listener.setblocking(False)
            listener.bind(str(path))
            listener.listen(1)
            options = WorkerOptions(
                config=config,
                cache_dir=str(cache_dir),
                core=core,
                socket_path=str(path),
                parent_pid=os.getpid(),
                log_level=log_level,
            )
            process = process or spawn(core)
            assert process.stdin is not None
            # Held open from now on: its end tells the child that the parent is gone.
            process.stdin.write(write_options(options))
        except BaseException as error:
            if process is not None:
                end(process)
            _remove(listener, folder)
            if process is not None and isinstance(error, BrokenPipeError):
                raise EngineDead(f"The engine process {describe_exit(process.wait())}.") from None
            raise
        return cls(process, listener, folder)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def folder(self) -> Path:
        """Where the socket lies; only this user may enter it."""
        return self._folder

    def encode(self, message: ToEngine) -> bytes:
        """A message as a frame for `send`.

        Raises:
            TypeError, ValueError, OverflowError: it holds what the types do not allow.
        """
        return self._encoder.encode(message)

    def send(self, frames: Sequence[bytes]) -> None:
        """Send messages that arrive together.

        Raises:
            EngineDead: the process is gone, or not there yet.
        """
        transport = self._connection.transport
        if transport is None or transport.is_closing():
            raise EngineDead("The engine process has just ended.")
        transport.write(pack(frames))

    def read(self, handle: Callable[[FromEngine], None]) -> asyncio.Future[None]:
        """Call `handle` with every message from now on. To be called at once, and once.

        Returns:
            Done when no message will come, as all of a process that has ended have come. It fails with
            what `handle` raised, with msgspec.DecodeError or struct.error where the process sent something
            else, or with OSError where the system refuses the connection.
        """
        self._handle = handle
        return self._connection.ended

    def _take(self, frame: bytes) -> None:
        assert self._handle is not None
        self._handle(self._decoder.decode(frame))

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            connection, _ = await loop.sock_accept(self._listener)
            await loop.connect_accepted_socket(lambda: self._connection, connection)
        except OSError as error:
            self._connection.fail(error)

    async def wait(self) -> int:
        """Wait until the process ends; returns its exit code, negative for the signal that killed it."""
        return await asyncio.shield(self._exit_code)

    def close(self) -> None:
        """Kill the process if it still runs and remove what it has on disk; `wait` still works."""
        self._process.kill()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._accepting.cancel()
        self._connection.abort()
        _remove(self._listener, self._folder)


def describe_exit(code: int) -> str:
    """An exit code in words: `was killed by SIGKILL`, `ended with exit code 1`."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (often the system's answer to memory running out)" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


def _private_folder() -> Path:
    # mkdtemp gives mode 0700.
    folder = Path(tempfile.mkdtemp(prefix="ramet-"))
    if len(os.fsencode(folder / "engine")) > _MAX_SOCKET_PATH:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="ramet-", dir="/tmp"))
    return folder


def _remove(listener: socket.socket, folder: Path) -> None:
    listener.close()
    shutil.rmtree(folder, ignore_errors=True)
