"""Compiles constraints beside the step loop: each once, few at a time, and none for longer than it may.

A constraint goes first through a process that may be killed (checker.py), so that a bomb is an error of
its own request; one that is too plain to be a bomb (estimate.py) is checked on the spot, as a process of
its own would cost several times what it costs. What passes is compiled here, on a thread, which costs no
more than the check did and leaves the interpreter free; the step loop has precedence over the threads where
the system knows priorities of threads. Compiled grammars are kept, least recently used ones forgotten.

There are two lanes. In the quick one checks run side by side: what people write, which takes a few
milliseconds however far it counts, shares the processor with whatever came before it and does not wait for
its end. What is not checked within that little time, which costs those beside it no more than any
request does, is a bomb, as good as certainly. It goes on in the other lane, where a check only runs while a
core would rest, or in the few thousandths of one that the system leaves to such processes.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Generic, TypeVar

from llguidance import LLTokenizer

from ..errors import EngineError, GrammarError
from .byte_vocabulary import byte_tokenizer
from .checker import Allowance, Verdict, check
from .checking import Checker
from .constraint import Constraint
from .estimate import is_plain
from .grammar import Grammar, Vocabulary

T = TypeVar("T")

MAX_GRAMMARS = 128

QUICK = Allowance(cpu_seconds=0.02, wall_seconds=5.0, niceness=10)
QUICK_SECONDS_PER_CHARACTER = 1e-6
"""More processor time for a long constraint, which takes half as much if it is sound."""
NUM_QUICK = 8
"""Quick checks at once; one more waits until one of these has had its time."""

IDLE = Allowance(cpu_seconds=0.5, wall_seconds=30.0, niceness=12, is_idle=True)
NUM_THOROUGH = 3
"""Thorough checks at once. Where no core ever rests a bomb takes all the seconds."""

NUM_COMPILED = 2
"""Constraints of one lane compiled at once."""

THREAD_NICENESS = 10
"""Of the threads here. One that the system lets wait while it holds the interpreter finds the core that
the step loop, which waits for it, has left."""


@dataclass(slots=True, eq=False)
class _Entry:
    constraint: Constraint
    future: Future[Grammar] = field(default_factory=Future)
    num_waiting: int = 0

    def check_wanted(self) -> None:
        """Raise EngineError if nobody waits any more."""
        if self.num_waiting <= 0:
            raise EngineError("Nobody waits for the constraint any more.")


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
        self._checker = Checker()
        self._is_asked = False
        self._bytes = _Once(byte_tokenizer)
        self._thorough = _Lane(
            partial(check_thoroughly, self._checker),
            _threads(NUM_THOROUGH, "thorough-grammar"),
            None,
        )
        self._quick = _Lane(
            partial(check_quickly, self._checker, self._bytes.get),
            _threads(NUM_QUICK, "grammar"),
            self._thorough,
        )
        # Walking the vocabulary would slow the steps beside the first constrained request.
        for value in (self._vocabulary, self._bytes):
            self._thorough.pool.submit(value.get)
        self._finalizer = weakref.finalize(self, _close, self._checker, self._quick, self._thorough)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, constraint: Constraint) -> Future[Grammar]:
        """The grammar, now or later; the same future for all who ask meanwhile.

        Whoever asked must either wait until it is done or `leave`. The future's exception is a
        GrammarError if the constraint is at fault.
        """
        if not self._is_asked:
            # The first constraint is hardly the last, and may be one that needs no process.
            self._is_asked = True
            self._thorough.pool.submit(self._checker.start)
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


def check_quickly(
    checker: Checker,
    tokenizer: Callable[[], LLTokenizer],
    constraint: Constraint,
) -> Verdict | None:
    """Check on this thread what is plain, and the rest as `QUICK` allows."""
    if is_plain(constraint):
        return check(constraint, tokenizer())
    seconds = QUICK.cpu_seconds + QUICK_SECONDS_PER_CHARACTER * constraint.length
    return checker.check(constraint, replace(QUICK, cpu_seconds=seconds))


def check_thoroughly(checker: Checker, constraint: Constraint) -> Verdict | None:
    """Check as `IDLE` allows."""
    return checker.check(constraint, IDLE)


def _threads(size: int, name: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(size, thread_name_prefix=name, initializer=yield_to_others)


def yield_to_others() -> None:
    """Give this thread the niceness of those that the steps go before, where threads have one."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with suppress(OSError):
            niceness = max(os.getpriority(os.PRIO_PROCESS, thread), THREAD_NICENESS)
            os.setpriority(os.PRIO_PROCESS, thread, niceness)


class _Once(Generic[T]):
    """A value that is made by whoever asks first."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._value: T | None = None

    def get(self) -> T:
        with self._lock:
            if self._value is None:
                self._value = self._make()
            return self._value


class _Lane:
    """Threads that check and compile.

    Args:
        check: the verdict on a constraint; None for what takes too long in this lane.
        pool: of the threads.
        slower: the lane of what takes too long here; None if that is too complex.
    """

    def __init__(
        self,
        check: Callable[[Constraint], Verdict | None],
        pool: ThreadPoolExecutor,
        slower: _Lane | None,
    ) -> None:
        self.check, self.pool = check, pool
        self._compiling = threading.BoundedSemaphore(NUM_COMPILED)
        self._slower = slower

    def enter(self, entry: _Entry, vocabulary: _Once[Vocabulary]) -> None:
        """Compile in turn. Raises RuntimeError once the lane is closed."""
        task = self.pool.submit(self._compile, entry, vocabulary)
        task.add_done_callback(lambda done: _refuse(entry.future) if done.cancelled() else None)

    def _compile(self, entry: _Entry, vocabulary: _Once[Vocabulary]) -> None:
        future, constraint = entry.future, entry.constraint
        if not future.running() and not future.set_running_or_notify_cancel():
            return
        try:
            entry.check_wanted()
            verdict = self.check(constraint)
            if verdict is None and self._slower is not None:
                self._slower.enter(entry, vocabulary)
                return
            if verdict is None:
                verdict = Verdict(
                    error="The constraint is too complex: it takes too long to compile."
                )
            if verdict.error:
                raise GrammarError(verdict.error, param=constraint.param)
            with self._compiling:
                grammar = Grammar(constraint, verdict.grammar, vocabulary.get())
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(grammar)


def _refuse(future: Future[Grammar]) -> None:
    if not future.cancel() and not future.done():
        future.set_exception(EngineError("The engine was closed."))


def _failed_by_accident(future: Future[Grammar]) -> bool:
    """Whether trying again may help: the constraint was not to blame."""
    error = future.exception() if future.done() and not future.cancelled() else None
    return future.cancelled() or (error is not None and not isinstance(error, GrammarError))


def _close(checker: Checker, *lanes: _Lane) -> None:
    for lane in lanes:
        lane.pool.shutdown(wait=False, cancel_futures=True)
    checker.close()
