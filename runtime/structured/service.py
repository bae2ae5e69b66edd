"""Compiles constraints beside the step loop: each once, few at a time, and none for longer than it may.

A constraint goes first through a process that may be killed (checker.py), so that a bomb is an error of
its own request; what passes is compiled here, on a thread, which costs no more than the check did and
leaves the interpreter free. (The threads keep their priority: one that the system let wait while it held
the interpreter would stop the step loop.) Compiled grammars are kept, least recently used ones forgotten.
"""

from __future__ import annotations

import select
import subprocess
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import BinaryIO, cast

import msgspec

from ..errors import EngineError, GrammarError
from .checker import Verdict, frame, read_frame
from .constraint import Constraint
from .grammar import Grammar, Vocabulary

MAX_GRAMMARS = 128
NUM_WORKERS = 2
# The processor time is limited by the checker itself; this only bounds a machine under great load.
CHECK_SECONDS = 10.0


@dataclass(slots=True)
class _Entry:
    future: Future[Grammar]
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
        self._pool = ThreadPoolExecutor(NUM_WORKERS, thread_name_prefix="grammar")
        self._checkers = _Checkers()
        # Walking the vocabulary would slow the steps beside the first constrained request.
        self._pool.submit(self._vocabulary.get)
        self._finalizer = weakref.finalize(self, _close, self._pool, self._checkers)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, constraint: Constraint) -> Future[Grammar]:
        """The grammar, now or later; the same future for all who ask meanwhile.

        Whoever asked must either wait until it is done or `leave`. The future's exception is a
        GrammarError if the constraint is at fault.
        """
        entry = self._entries.get(constraint)
        if entry is None or _failed_by_accident(entry.future):
            future = self._pool.submit(_compile, constraint, self._checkers, self._vocabulary)
            entry = self._entries[constraint] = _Entry(future)
        self._entries.move_to_end(constraint)
        entry.num_waiting += 1
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


class _Checkers:
    """The checking processes, one for each thread that asks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[subprocess.Popen[bytes]] = []
        self._all: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    def check(self, constraint: Constraint) -> Verdict:
        """The verdict on a constraint; one that ends its process is too complex."""
        process = self._take()
        body = _ask(process, msgspec.msgpack.encode(constraint))
        if body is None:
            self._end(process)
            return Verdict(error="The constraint is too complex: it takes too long to compile.")
        with self._lock:
            self._idle.append(process)
        return msgspec.msgpack.decode(body, type=Verdict)

    def close(self) -> None:
        """End them all, those at work too."""
        with self._lock:
            self._closed = True
            processes = list(self._all)
        for process in processes:
            self._end(process)

    def _take(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._closed:
                raise EngineError("The engine was closed.")
            if self._idle:
                return self._idle.pop()
            process = subprocess.Popen(
                [sys.executable, "-m", "ramet.runtime.structured.checker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            self._all.add(process)
            return process

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._all.discard(process)
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            cast(BinaryIO, stream).close()


def _ask(process: subprocess.Popen[bytes], body: bytes) -> bytes | None:
    """The process's answer; None if it died or did not answer in time."""
    to_process, from_process = cast(BinaryIO, process.stdin), cast(BinaryIO, process.stdout)
    try:
        to_process.write(frame(body))
        to_process.flush()
        ready, _, _ = select.select([from_process], [], [], CHECK_SECONDS)
        return read_frame(from_process) if ready else None
    except (BrokenPipeError, ValueError):  # It died, or was ended and its pipes closed.
        return None


def _compile(constraint: Constraint, checkers: _Checkers, vocabulary: _Once) -> Grammar:
    verdict = checkers.check(constraint)
    if verdict.error:
        raise GrammarError(verdict.error, param=constraint.param)
    return Grammar(constraint, verdict.grammar, vocabulary.get())


def _failed_by_accident(future: Future[Grammar]) -> bool:
    """Whether trying again may help: the constraint was not to blame."""
    error = future.exception() if future.done() and not future.cancelled() else None
    return future.cancelled() or (error is not None and not isinstance(error, GrammarError))


def _close(pool: ThreadPoolExecutor, checkers: _Checkers) -> None:
    pool.shutdown(wait=False, cancel_futures=True)
    checkers.close()
