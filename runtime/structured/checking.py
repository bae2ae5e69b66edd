"""Asks the process of checker.py for verdicts, from any number of threads. Owns that process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress

import msgspec

from ..errors import EngineError
from .checker import Allowance, Verdict, frame, read_frame, send_job
from .constraint import Constraint

# What a check may take is limited where it runs; this is for one that cannot even be killed.
_PATIENCE_SECONDS = 5.0


class Checker:
    """Checks constraints, each in a process of its own that ends with it.

    Starts nothing before `start` or `check`. The process that forks them has the niceness of the thread that
    starts it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None
        self._closed = False

    def check(self, constraint: Constraint, allowance: Allowance) -> Verdict | None:
        """The verdict on a constraint; None for one that took more than it may.

        Raises:
            EngineError: the checker was closed.
        """
        ours, theirs = socket.socketpair()
        with ours:
            ours.settimeout(allowance.wall_seconds + _PATIENCE_SECONDS)
            with theirs:
                self._hand_over(theirs, allowance)
            body = _ask(ours, msgspec.msgpack.encode(constraint))
        if body is None and self._closed:
            raise EngineError("The engine was closed.")
        return None if body is None else msgspec.msgpack.decode(body, type=Verdict)

    def start(self) -> None:
        """Start the process that forks them, if it is not there; its imports take a while."""
        with self._lock:
            if self._requests is None and not self._closed:
                self._start()

    def close(self) -> None:
        """End all checks and the process. Safe to call twice."""
        with self._lock:
            self._closed = True
            self._end()

    def _hand_over(self, channel: socket.socket, allowance: Allowance) -> None:
        with self._lock:
            if self._closed:
                raise EngineError("The engine was closed.")
            for requests in (self._requests, None):
                try:
                    send_job(requests or self._start(), allowance, channel)
                    return
                except OSError:  # Somebody killed it.
                    self._end()
            raise EngineError("The process that checks constraints does not stay alive.")

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.checker"],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                # To be killed with its children; but of our session, as niceness may not count in others.
                process_group=0,
            )
        self._requests = ours
        return ours

    def _end(self) -> None:
        if self._requests is not None:
            self._requests.close()
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process = self._requests = None


def _ask(channel: socket.socket, body: bytes) -> bytes | None:
    """The answer; None if whoever should give it has ended, or is stuck."""
    try:
        channel.sendall(frame(body))
        with channel.makefile("rb") as stream:
            return read_frame(stream)
    except OSError:
        return None
