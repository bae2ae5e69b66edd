"""Asks the process of checker.py for verdicts, from any number of threads. Owns that process."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from ..errors import EngineError
from .checker import BEGUN, Allowance, Limit, Verdict, frame, read_frame, send_job
from .constraint import Constraint

# What a check may take is limited where it runs; this is for one that cannot even be killed.
_PATIENCE_SECONDS = 5.0

_START_SECONDS = 60.0
"""For the imports of the process that forks, on a machine under great load."""

_ASKING_SECONDS = 0.25
"""How often whoever waits for a check is asked whether it is still wanted."""


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

    def check(
        self,
        constraint: Constraint,
        allowance: Allowance,
        check_wanted: Callable[[], None] = lambda: None,
    ) -> Verdict | Limit:
        """The verdict on a constraint, or which limit ended its check.

        Args:
            check_wanted: called now and then; what it raises ends the check, and is raised.

        Raises:
            EngineError: the checker was closed.
        """
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                self._hand_over(theirs, allowance)
            answer = _ask(ours, msgspec.msgpack.encode(constraint), allowance, check_wanted)
        if isinstance(answer, Limit) and self._closed:
            raise EngineError("The engine was closed.")
        return answer if isinstance(answer, Limit) else msgspec.msgpack.decode(answer, type=Verdict)

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


def _ask(
    channel: socket.socket, body: bytes, allowance: Allowance, check_wanted: Callable[[], None]
) -> bytes | Limit:
    """The answer, or why whoever should give it has ended, or is stuck."""
    if not _wait(channel, _START_SECONDS, check_wanted):
        return Limit.WALL
    began = time.monotonic()
    try:
        if channel.recv(len(BEGUN)) != BEGUN:
            return Limit.WALL  # Whoever should have forked was killed.
        channel.settimeout(allowance.wall_seconds + _PATIENCE_SECONDS)
        channel.sendall(frame(body))
        if _wait(channel, allowance.wall_seconds + _PATIENCE_SECONDS, check_wanted):
            with channel.makefile("rb") as stream:
                answer = read_frame(stream)
            if answer is not None:
                return answer
    except OSError:
        pass
    # It began its time a moment before it said so.
    is_over = time.monotonic() - began >= allowance.wall_seconds * 0.99
    return Limit.WALL if is_over else Limit.PROCESSOR


def _wait(channel: socket.socket, seconds: float, check_wanted: Callable[[], None]) -> bool:
    """Whether there is something to read within some time."""
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        check_wanted()
        if poll.poll(1e3 * min(left, _ASKING_SECONDS)):
            return True
    return False
