"""Compiles constraints beside the step loop: each once, few at a time, and none for longer than it may.

A constraint goes first through a process that may be killed (checker.py), so that a bomb is an error of
its own request; what passes is compiled here, on a thread, which costs no more than the check did and
leaves the interpreter free. (The threads keep their priority: one that the system let wait while it held
the interpreter would stop the step loop.) Compiled grammars are kept, least recently used ones forgotten.

There are two lanes. In the quick one checks run side by side: what is cheap, which is nearly everything,
shares the processor with whatever came before it and does not wait for its end. What is not checked within a
tenth of a second of processor time goes on in the other lane, where a check only runs while a core would
rest; what looks costly (estimate.py) starts there, as steps would feel that tenth of a second. Where no core
rests for some seconds a check begins again with a small share of one: sound constraints that take long are
not refused because the machine is busy.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from ..errors import EngineError, GrammarError
from .checker import Allowance, Verdict
from .checking import Checker
from .constraint import Constraint
from .estimate import looks_costly
from .grammar import Grammar, Vocabulary

MAX_GRAMMARS = 128


QUICK = Allowance(cpu_seconds=0.1, wall_seconds=5.0, niceness=10)
NUM_QUICK = 8
"""Quick checks at once; one more waits until one of these has had its time."""

IDLE = Allowance(cpu_seconds=1.0, wall_seconds=5.0, niceness=12, is_idle=True)
PATIENT = Allowance(cpu_seconds=1.0, wall_seconds=30.0, niceness=15)
NUM_THOROUGH = 3
"""Thorough checks at once. Where no core ever rests a bomb takes all the seconds of both."""

NUM_COMPILED = 2
"""Constraints of the quick lane compiled at once, as that is done at the priority of the steps."""


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
        self._thorough = _Lane(
            partial(check_thoroughly, self._checker),
            ThreadPoolExecutor(NUM_THOROUGH, thread_name_prefix="thorough-grammar"),
            None,
        )
        self._quick = _Lane(
            partial(check_quickly, self._checker),
            ThreadPoolExecutor(NUM_QUICK, thread_name_prefix="grammar"),
            self._thorough,
        )
        # Walking the vocabulary would slow the steps beside the first constrained request.
        self._thorough.pool.submit(self._vocabulary.get)
        self._finalizer = weakref.finalize(self, _close, self._checker, self._quick, self._thorough)

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


def check_quickly(
    checker: Checker, constraint: Constraint, check_wanted: Callable[[], None]
) -> Verdict | None:
    """Check as `QUICK` allows, which is over too soon for `check_wanted` to be asked."""
    return checker.check(constraint, QUICK)


def check_thoroughly(
    checker: Checker,
    constraint: Constraint,
    check_wanted: Callable[[], None],
    *,
    idle: Allowance = IDLE,
    patient: Allowance = PATIENT,
) -> Verdict | None:
    """Check as `idle` allows, and if it was time that did not suffice, as `patient` does.

    `check_wanted` is called between the two; what it raises ends the check.
    """
    started = time.monotonic()
    verdict = checker.check(constraint, idle)
    if verdict is None and time.monotonic() - started >= idle.wall_seconds:
        check_wanted()
        verdict = checker.check(constraint, patient)
    return verdict


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
    """Threads that check and compile.

    Args:
        check: the verdict on a constraint; None for what takes too long in this lane. It is also given what
            raises if nobody waits for it any more.
        pool: of the threads.
        slower: the lane of what takes too long here, or looks as if it would; None if that is too complex.
    """

    def __init__(
        self,
        check: Callable[[Constraint, Callable[[], None]], Verdict | None],
        pool: ThreadPoolExecutor,
        slower: _Lane | None,
    ) -> None:
        self.check, self.pool = check, pool
        self._compiling = threading.BoundedSemaphore(NUM_COMPILED)
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
            entry.check_wanted()
            skips = self._slower is not None and looks_costly(constraint)
            verdict = None if skips else self.check(constraint, entry.check_wanted)
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
