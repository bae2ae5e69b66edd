"""Compiles constraints beside the step loop: each once, few at a time, and none for longer than it may.

A constraint goes first through a process that may be killed (checker.py), so that a bomb is an error of
its own request; what passes is compiled here, on a thread, which costs no more than the check did and
leaves the interpreter free. (The threads keep their priority: one that the system let wait while it held
the interpreter would stop the step loop.) Compiled grammars are kept, least recently used ones forgotten.

There are two lanes. All start in the quick one; what is not checked within a tenth of a second goes on in the
other, so that what is cheap, which is nearly everything, never waits for more than that behind a bomb.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import BinaryIO, cast

import msgspec

from ..errors import EngineError, GrammarError
from .checker import Verdict, frame, read_frame
from .constraint import Constraint
from .grammar import Grammar, Vocabulary

MAX_GRAMMARS = 128


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a lane gives to the check of one constraint.

    Attributes:
        num_workers: constraints checked at once.
        cpu_seconds: processor time, which the process itself limits.
        wall_seconds: bounds a machine under great load only.
        niceness: of the process, so that the steps beside it hardly feel it.
    """

    num_workers: int
    cpu_seconds: float
    wall_seconds: float
    niceness: int


QUICK = Allowance(num_workers=2, cpu_seconds=0.1, wall_seconds=3.0, niceness=5)
THOROUGH = Allowance(num_workers=1, cpu_seconds=1.0, wall_seconds=20.0, niceness=12)


@dataclass(slots=True, eq=False)
class _Entry:
    constraint: Constraint
    future: Future[Grammar] = field(default_factory=Future)
    num_waiting: int = 0


class GrammarService:
    """Grammars of one model. Its methods are called on one thread.

    Args:
        vocabulary: makes the model's vocabulary; called once, at once, on a thread of the service.
        max_grammars: compiled grammars, and refused ones, that are remembered.
    """

    def __init__(
        self, vocabulary: Callable[[], Vocabulary], *, max_grammars: int = MAX_GRAMMARS
    ) -> None:
        self._vocabulary = _Once(vocabulary)
        self._max_grammars = max_grammars
        self._entries: OrderedDict[Constraint, _Entry] = OrderedDict()
        self._thorough = _Lane(THOROUGH, "thorough-grammar", None)
        self._quick = _Lane(QUICK, "grammar", self._thorough)
        # Walking the vocabulary would slow the steps beside the first constrained request.
        self._thorough.pool.submit(self._vocabulary.get)
        self._finalizer = weakref.finalize(self, _close, self._quick, self._thorough)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, constraint: Constraint) -> Future[Grammar]:
        """The grammar, now or later; the same future for all who ask meanwhile.

        Whoever asked must either wait until it is done or `leave`. The future's exception is a
        GrammarError if the constraint is at fault.
        """
        entry = self._entries.get(constraint)
        if entry is None or _failed_by_accident(entry.future):
            entry = _Entry(constraint, num_waiting=1)
            self._quick.enter(entry, self._vocabulary)
            self._entries[constraint] = entry
        else:
            entry.num_waiting += 1
        self._entries.move_to_end(constraint)
        self._evict()
        return entry.future

    def leave(self, constraint: Constraint) -> None:
        """One who asked does not want it any more; it is not compiled for nobody."""
        entry = self._entries.get(constraint)
        if entry is None or entry.future.done():
            return
        entry.num_waiting -= 1
        if entry.num_waiting <= 0 and entry.future.cancel():
            del self._entries[constraint]

    def close(self) -> None:
        """End the processes and threads. Safe to call twice."""
        self._finalizer()

    def _evict(self) -> None:
        surplus = len(self._entries) - self._max_grammars
        if surplus > 0:
            done = [c for c, entry in self._entries.items() if entry.future.done()]
            for constraint in done[:surplus]:
                del self._entries[constraint]


class _Once:
    """A value that is made by whoever asks first."""

    def __init__(self, make: Callable[[], Vocabulary]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._value: Vocabulary | None = None

    def get(self) -> Vocabulary:
        with self._lock:
            if self._value is None:
                self._value = self._make()
            return self._value


class _Lane:
    """Threads that compile, with a checking process for each.

    Args:
        slower: the lane of what takes too long here; None if that is too complex.
    """

    def __init__(self, allowance: Allowance, name: str, slower: _Lane | None) -> None:
        self.pool = ThreadPoolExecutor(allowance.num_workers, thread_name_prefix=name)
        self.checkers = _Checkers(allowance)
        self._slower = slower

    def enter(self, entry: _Entry, vocabulary: _Once) -> None:
        """Compile in turn. Raises RuntimeError once the lane is closed."""
        task = self.pool.submit(self._compile, entry, vocabulary)
        task.add_done_callback(lambda done: _refuse(entry.future) if done.cancelled() else None)

    def _compile(self, entry: _Entry, vocabulary: _Once) -> None:
        future, constraint = entry.future, entry.constraint
        if not future.running() and not future.set_running_or_notify_cancel():
            return
        try:
            if entry.num_waiting <= 0:
                raise EngineError("Nobody waits for the constraint any more.")
            verdict = self.checkers.check(constraint)
            if verdict is None and self._slower is not None:
                self._slower.enter(entry, vocabulary)
                return
            if verdict is None:
                verdict = Verdict(
                    error="The constraint is too complex: it takes too long to compile."
                )
            if verdict.error:
                raise GrammarError(verdict.error, param=constraint.param)
            grammar = Grammar(constraint, verdict.grammar, vocabulary.get())
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(grammar)


def _refuse(future: Future[Grammar]) -> None:
    if not future.cancel() and not future.done():
        future.set_exception(EngineError("The engine was closed."))


class _Checkers:
    """The checking processes of a lane, one for each thread that asks."""

    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance
        self._lock = threading.Lock()
        self._idle: list[subprocess.Popen[bytes]] = []
        self._all: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    def check(self, constraint: Constraint) -> Verdict | None:
        """The verdict on a constraint; None for one that took more than it may, and ended its process."""
        process = self._take()
        body = _ask(process, msgspec.msgpack.encode(constraint), self._allowance.wall_seconds)
        if body is None:
            self._end(process)
            # The next one shall not wait for a process to start.
            process = self._start()
        with self._lock:
            self._idle.append(process)
        return None if body is None else msgspec.msgpack.decode(body, type=Verdict)

    def close(self) -> None:
        """End them all, those at work too."""
        with self._lock:
            self._closed = True
            processes = list(self._all)
        for process in processes:
            self._end(process)

    def _take(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._closed:
                raise EngineError("The engine was closed.")
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "ramet.runtime.structured.checker",
                    str(self._allowance.cpu_seconds),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            # Not left to the process itself: starting it is most of what a cheap check costs.
            os.setpriority(os.PRIO_PROCESS, process.pid, self._allowance.niceness)
            self._all.add(process)
            return process

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._all.discard(process)
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            cast(BinaryIO, stream).close()


def _ask(process: subprocess.Popen[bytes], body: bytes, seconds: float) -> bytes | None:
    """The process's answer; None if it died or did not answer in time."""
    to_process, from_process = cast(BinaryIO, process.stdin), cast(BinaryIO, process.stdout)
    try:
        to_process.write(frame(body))
        to_process.flush()
        ready, _, _ = select.select([from_process], [], [], seconds)
        return read_frame(from_process) if ready else None
    except (BrokenPipeError, ValueError):  # It died, or was ended and its pipes closed.
        return None


def _failed_by_accident(future: Future[Grammar]) -> bool:
    """Whether trying again may help: the constraint was not to blame."""
    error = future.exception() if future.done() and not future.cancelled() else None
    return future.cancelled() or (error is not None and not isinstance(error, GrammarError))


def _close(*lanes: _Lane) -> None:
    for lane in lanes:
        lane.pool.shutdown(wait=False, cancel_futures=True)
        lane.checkers.close()
