"""The engine's own process: `python -m ramet.runtime.engine.worker MODULE`, started by spawn.py only.

Owns the far end of the private socket. It knows nothing of HTTP, and ends with its parent:

1. import the module that its argument names, which takes longer than anything else here;
2. read `WorkerOptions` from stdin, which stays open for as long as the parent lives;
3. load the core; answer `EngineInfo`, or `StartFailed` if the configuration cannot work;
4. run the loop until `Shutdown`.

SIGINT and SIGTERM are ignored: they are sent to whole process groups, and it is the parent that decides
how long running requests may go on.
"""

from __future__ import annotations

import logging
import math
import os
import select
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from ..config import EngineConfig
from ..errors import ConfigError, ModelNotFound, RequestError
from ..periodic import calling_every
from ..request import FinishReason, RequestOutput
from .heap import growing, settle
from .logs import configure_logging
from .loop import Core, EngineLoop
from .messages import EngineStats, FromEngine, Shutdown, StartFailed, StepOutputs, ToEngine
from .wire import LENGTH, Unpacker, pack

logger = logging.getLogger(__name__)

_PARENT_POLL_SECONDS = 1.0
_STDIN_POLL_SECONDS = 0.05
# Long enough for the last message to leave, short enough not to outlive a parent that stopped reading.
_LINGER_SECONDS = 2.0
_RECEIVE_SIZE = 1 << 18
# What `poll` takes, a C int.
_MAX_POLL_MILLISECONDS = 2**31 - 1
# A reader that keeps up takes a message of megabytes within this; a step may wait that much for it.
_FLUSH_SECONDS = 0.005


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the worker is started with.

    Attributes:
        config: what to load.
        cache_dir: folder of downloaded models.
        core: `module:function` that makes a Core of a configuration and a cache folder.
        socket_path: unix socket, alone in a private folder that is removed with it.
        parent_pid: the process to end with.
        log_level: as in `logging`.
    """

    config: EngineConfig
    cache_dir: str
    core: str
    socket_path: str
    parent_pid: int
    log_level: int


def write_options(options: WorkerOptions) -> bytes:
    """The options as the bytes that `read_options` reads."""
    body = msgspec.msgpack.encode(options)
    return LENGTH.pack(len(body)) + body


def read_options(stream: BinaryIO) -> WorkerOptions:
    """Read the options and not a byte more.

    Raises:
        EOFError: the stream ended first.
        msgspec.ValidationError: it holds something else.
    """
    (length,) = LENGTH.unpack(_read_exactly(stream, LENGTH.size))
    return msgspec.msgpack.decode(_read_exactly(stream, length), type=WorkerOptions)


def _read_exactly(stream: BinaryIO, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = stream.read(count - len(data))
        if not more:
            raise EOFError("stdin ended before the options did")
        data += more
    return data


class SocketChannel:
    """The loop's channel over a connected unix socket, a stream.

    Sends wait for some milliseconds, and only while the parent reads: what it has not read yet is queued in
    memory, which the bound on live requests and their `max_tokens` bounds too. A parent that closes its end
    is a Shutdown.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ToEngine)
        self._unpacker = Unpacker()
        self._unsent = bytearray()
        self._stats = EngineStats()

    def receive(self, *, block: bool, timeout: float | None = None) -> list[ToEngine]:
        """Everything that arrived; with `block`, wait until there is something, or for `timeout` seconds.

        It may return early, with nothing.
        """
        if block or self._unsent:
            self._wait(timeout if block else 0.0)
        messages: list[ToEngine] = []
        while True:
            try:
                piece = self._socket.recv(_RECEIVE_SIZE)
            except BlockingIOError:
                return messages
            except ConnectionError:
                piece = b""
            if not piece:
                return [*messages, Shutdown()]
            messages += [m for frame in self._unpacker.feed(piece) for m in self._decode(frame)]

    def send(self, message: FromEngine) -> None:
        """Queue a message."""
        if isinstance(message, StepOutputs):
            self._stats = message.stats
        self._unsent += pack([self._encoder.encode(message)])
        self._flush()

    def close(self) -> None:
        """Give what is queued a little time to leave, then close the socket."""
        deadline = time.monotonic() + _LINGER_SECONDS
        while self._unsent and self._is_read_before(deadline):
            self._flush()
        self._socket.close()

    def _wait(self, timeout: float | None) -> None:
        """Wait until something can be read, or written of what is queued; writes it."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        ready = poll.poll(None if timeout is None else _milliseconds(timeout))
        if any(event & ~select.POLLIN for _, event in ready):
            self._flush()

    def _flush(self) -> None:
        """Write what is queued while its reader keeps up; the socket holds a fraction of a megabyte."""
        deadline: float | None = None
        try:
            while self._unsent:
                try:
                    del self._unsent[: self._socket.send(self._unsent)]
                except BlockingIOError:
                    if deadline is None or not self._is_read_before(deadline):
                        return
                if deadline is None:
                    deadline = time.monotonic() + _FLUSH_SECONDS
        except ConnectionError:
            self._unsent.clear()  # Nobody will read it any more.

    def _is_read_before(self, deadline: float) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        timeout = deadline - time.monotonic()
        return timeout > 0 and bool(poll.poll(_milliseconds(timeout)))

    def _decode(self, frame: bytes) -> list[ToEngine]:
        try:
            return [self._decoder.decode(frame)]
        except (msgspec.ValidationError, RequestError) as error:
            # Only its sender is hurt by a message that breaks the types, not the whole engine.
            logger.error("Refused a message: %s", error)
            self._refuse(frame, str(error))
        except msgspec.DecodeError as error:
            logger.error("Dropped what is no message: %s", error)
        return []

    def _refuse(self, frame: bytes, reason: str) -> None:
        content: Any = msgspec.msgpack.decode(frame)
        request_id = content.get("request_id") if isinstance(content, dict) else None
        if isinstance(request_id, str):
            output = RequestOutput(
                request_id=request_id, finish_reason=FinishReason.ERROR, error=reason
            )
            self.send(StepOutputs(outputs=[output], stats=self._stats))


def _milliseconds(timeout: float) -> int:
    """Seconds as `poll` takes them, to which a negative number would mean no end."""
    return math.ceil(min(max(0.0, 1000 * timeout), _MAX_POLL_MILLISECONDS))


def end_with_parent(parent_pid: int, folder: Path) -> None:
    """Watch the parent from a thread; once it is gone, remove `folder` and end this process at once.

    Stdin ends the moment that the parent does. The parent's id is watched too, since a process that
    the parent forked may hold stdin's other end open.
    """

    def watch() -> None:
        while os.getppid() == parent_pid:
            ready, _, _ = select.select([sys.stdin], [], [], _PARENT_POLL_SECONDS)
            if ready and not os.read(sys.stdin.fileno(), 1):
                break
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()


@contextmanager
def ending_with_stdin() -> Iterator[None]:
    """End this process at once if the other end of stdin is closed while the block runs; reads nothing."""
    poll = select.poll()
    poll.register(sys.stdin.fileno(), 0)  # An end that hangs up is told of whatever is asked for.

    def look() -> None:
        if any(event & select.POLLHUP for _, event in poll.poll(0)):
            os._exit(1)

    with calling_every(_STDIN_POLL_SECONDS, look, name="end-with-stdin"):
        yield


def load(options: WorkerOptions) -> Core:
    """Make the core that the options name.

    Raises:
        ConfigError: it cannot work.
    """
    module, _, function = options.core.partition(":")
    with growing():
        core = getattr(import_module(module), function)(options.config, Path(options.cache_dir))
        settle()
    return cast(Core, core)


def main(module: str) -> int:
    """Run the worker; returns its exit code.

    Args:
        module: what the core that the options will name is in.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # What fails here fails again in `load`, where somebody can be told.
    with growing(), ending_with_stdin(), suppress(Exception):
        import_module(module)
    # Unbuffered: a byte that Python read ahead would hide the end of stdin from `select`.
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as stdin:
        try:
            options = read_options(cast(BinaryIO, stdin))
        except EOFError:
            return 1  # The parent is gone, or has found that nothing is to be loaded.
    configure_logging(options.log_level)
    end_with_parent(options.parent_pid, Path(options.socket_path).parent)
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(options.socket_path)
            channel = SocketChannel(connection)
            code = run(options, channel)
            channel.close()
            return code
    except (ConnectionError, FileNotFoundError):
        return 1  # The parent is gone.
    finally:
        # The parent does it too, if it still can.
        shutil.rmtree(Path(options.socket_path).parent, ignore_errors=True)


def run(options: WorkerOptions, channel: SocketChannel) -> int:
    """Load the core, say so, and loop until Shutdown; returns the exit code."""
    try:
        core = load(options)
    except (ConfigError, ModelNotFound) as error:
        channel.send(StartFailed(message=error.message, param=error.param, hint=error.hint))
        return 1
    except Exception:
        logger.critical("The engine could not start.", exc_info=True)
        return 1
    channel.send(core.info)
    try:
        EngineLoop(core, channel).run()
    except Exception:
        logger.critical("The engine ends.", exc_info=True)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
