"""One engine process, from its start to its end: the near end of worker.py.

Owns the child process, its private socket and the folder that the socket lies in. It knows nothing of
requests, nor of starting again.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import cast

import msgspec
import zmq
import zmq.asyncio

from ..config import EngineConfig
from ..errors import EngineDead
from .background import in_background
from .messages import FromEngine, ToEngine
from .spawn import end, spawn
from .worker import WorkerOptions, write_options

# A unix socket's path is limited to 107 bytes on Linux and 103 on macOS.
_MAX_SOCKET_PATH = 100
# The kernel may still hold what a process sent just before it died.
_LAST_WORDS_MS = 20


class Worker:
    """A running engine process.

    Make it with `spawn`; always `close` it and `wait` for its end.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        context: zmq.asyncio.Context,
        socket: zmq.asyncio.Socket,
        folder: Path,
    ) -> None:
        self._process = process
        self._context = context
        self._socket = socket
        self._folder = folder
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromEngine)
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
            OSError, zmq.ZMQError: the system refuses what this needs.
        """
        folder = _private_folder()
        context = zmq.asyncio.Context()
        socket = context.socket(zmq.PAIR)
        try:
            socket.set_hwm(0)
            socket.linger = 0
            path = folder / "engine"
            socket.bind(f"ipc://{path}")
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
            _remove(context, folder)
            if process is not None and isinstance(error, BrokenPipeError):
                raise EngineDead(f"The engine process {describe_exit(process.wait())}.") from None
            raise
        return cls(process, context, socket, folder)

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
            zmq.Again: the process is gone.
        """
        # With NOBLOCK the future is done when it is returned.
        sending = self._socket.send_multipart(frames, flags=zmq.NOBLOCK)
        cast(asyncio.Future[None], sending).result()

    async def receive(self) -> FromEngine:
        """The next message; waits forever on a process that is gone.

        Raises:
            msgspec.DecodeError: the process sent something else.
        """
        return self._decoder.decode(await self._socket.recv())

    async def last_words(self) -> AsyncIterator[FromEngine]:
        """What the process sent before it died and nobody received yet."""
        while await self._socket.poll(_LAST_WORDS_MS):
            yield await self.receive()

    async def wait(self) -> int:
        """Wait until the process ends; returns its exit code, negative for the signal that killed it."""
        return await asyncio.shield(self._exit_code)

    def close(self) -> None:
        """Kill the process if it still runs and remove what it has on disk; `wait` still works."""
        self._process.kill()
        if self._process.stdin is not None:
            self._process.stdin.close()
        _remove(self._context, self._folder)


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


def _remove(context: zmq.asyncio.Context, folder: Path) -> None:
    context.destroy(linger=0)
    shutil.rmtree(folder, ignore_errors=True)
