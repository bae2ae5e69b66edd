"""Compiles constraints beside the step loop: each once, few at a time, and none for longer than it may.

A constraint goes first through a process that may be killed (checker.py), so that a bomb is an error of
its own request; one that is too plain to be a bomb (estimate.py) is checked on a thread, as a process of
its own would cost several times what it costs. What passes is compiled here, on a thread, which costs no
more than the check did and leaves the interpreter free; the step loop has precedence over the threads where
the system knows priorities of threads. Compiled grammars are kept, least recently used ones forgotten.

There are three lanes. In the quick one checks run side by side: what people write, which takes a few
milliseconds however far it counts, and microseconds a character where it is long, shares the processor with
whatever came before it and does not wait for its end. What takes more is rare among sound constraints. It
goes on in the thorough lane, where a check only runs while a core would rest, or in the few thousandths of
one that the system leaves to such processes; and if that was too little, one after the other with a small
share of a core. What took too much processor time is too complex; what only waited too long may be asked
for again.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Generic, TypeVar

from llguidance import LLTokenizer

from ..errors import CapacityError, EngineError, GrammarError, RametError
from .byte_vocabulary import byte_tokenizer
from .checker import Allowance, Limit, Verdict, check
from .checking import Checker
from .constraint import Constraint
from .estimate import is_plain
from .grammar import Grammar, Vocabulary
from .threads import Threads, start

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_GRAMMARS = 128

PLAIN_SECONDS = 2.0
"""For the check of a plain constraint, which takes some milliseconds of processor time."""

QUICK = Allowance(cpu_seconds=0.02, wall_seconds=5.0, niceness=10)
QUICK_SECONDS_PER_CHARACTER = 4e-6
"""Processor time of a long constraint, which takes half as much if it is sound."""
MAX_QUICK_SECONDS = 0.2
"""Text that costs nothing buys a bomb no more processor time than this."""
NUM_QUICK = 8
"""Quick checks at once; one more waits until one of these has had its time."""

IDLE = Allowance(cpu_seconds=0.5, wall_seconds=5.0, niceness=12, is_idle=True)
NUM_THOROUGH = 3
"""Thorough checks at once."""

PATIENT = Allowance(cpu_seconds=0.5, wall_seconds=30.0, niceness=19)
"""One at a time: whatever waits, the steps miss a hundredth of one core."""

THOROUGH_SECONDS = 60.0
"""Until whoever waits for more than a quick check hears that the machine is too busy."""

NUM_COMPILED = 2
"""Constraints of one lane compiled at once."""


@dataclass(slots=True, eq=False)
class _Entry:
    constraint: Constraint
    future: Future[Grammar] = field(default_factory=Future)
    num_waiting: int = 0
    deadline: float = float("inf")

    def check_wanted(self) -> None:
        """Raise EngineError if nobody waits any more, and CapacityError after the deadline."""
        if self.num_waiting <= 0:
            raise EngineError("Nobody waits for the constraint any more.")
        if time.monotonic() > self.deadline:
            raise _busy(self.constraint)


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
        self._plain = _Plain(self._bytes.get)
        self._patient = _Lane(
            partial(self._checker.check, allowance=PATIENT), Threads(1, "patient-grammar"), {}
        )
        self._thorough = _Lane(
            partial(self._checker.check, allowance=IDLE),
            Threads(NUM_THOROUGH, "thorough-grammar"),
            {Limit.WALL: self._patient},
        )
        self._quick = _Lane(
            partial(check_quickly, self._checker, self._plain),
            Threads(NUM_QUICK, "grammar"),
            dict.fromkeys(Limit, self._thorough),
        )
        # Walking the vocabulary would slow the steps beside the first constrained request.
        for value in (self._vocabulary, self._bytes):
            self._thorough.pool.submit(value.get)
        lanes = (self._quick, self._thorough, self._patient)
        self._finalizer = weakref.finalize(self, _close, self._checker, *lanes)

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
        if entry.num_waiting <= 0:
            entry.future.cancel()
            del self._entries[constraint]  # What has begun ends soon; whoever asks again is served.

    def close(self) -> None:
        """End the processes, and the threads when they can. Safe to call twice."""
        self._finalizer()

    def _evict(self) -> None:
        surplus = len(self._entries) - self._max_grammars
        if surplus > 0:
            done = [c for c, entry in self._entries.items() if entry.future.done()]
            for constraint in done[:surplus]:
                del self._entries[constraint]


class _Plain:
    """Checks plain constraints, each on a thread of its own, as long as none ever takes long."""

    def __init__(
        self, tokenizer: Callable[[], LLTokenizer], seconds: float = PLAIN_SECONDS
    ) -> None:
        self._tokenizer, self._seconds = tokenizer, seconds
        self._is_trusted = True

    def check(self, constraint: Constraint) -> Verdict | None:
        """The verdict on a constraint; None for one that takes a process."""
        if not self._is_trusted or not is_plain(constraint):
            return None
        task = start(lambda: check(constraint, self._tokenizer()), "plain-grammar")
        try:
            return task.result(self._seconds)
        except TimeoutError:
            # It cannot be ended. What was taken for plain is checked in processes from now on.
            self._is_trusted = False
            logger.warning("a constraint took long that should not: %.500s", constraint)
            return None


def check_quickly(
    checker: Checker, plain: _Plain, constraint: Constraint, *, check_wanted: Callable[[], None]
) -> Verdict | Limit:
    """Check on a thread what is plain, and the rest as `QUICK` allows."""
    verdict = plain.check(constraint)
    if verdict is not None:
        return verdict
    allowance = replace(QUICK, cpu_seconds=quick_seconds(constraint))
    return checker.check(constraint, allowance, check_wanted)


def quick_seconds(constraint: Constraint) -> float:
    """Processor time of a quick check."""
    seconds = QUICK_SECONDS_PER_CHARACTER * constraint.length
    return min(max(QUICK.cpu_seconds, seconds), MAX_QUICK_SECONDS)


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
        check: the verdict on a constraint, or which limit it exceeded; calls `check_wanted` meanwhile.
        pool: of the threads.
        slower: the lanes where what exceeded a limit goes on; without one it is refused.
    """

    def __init__(
        self,
        check: Callable[..., Verdict | Limit],
        pool: Threads,
        slower: Mapping[Limit, _Lane],
    ) -> None:
        self.check, self.pool = check, pool
        self._compiling = threading.BoundedSemaphore(NUM_COMPILED)
        self._slower = slower

    def enter(self, entry: _Entry, vocabulary: _Once[Vocabulary]) -> None:
        """Compile in turn. Raises RuntimeError once the lane is closed."""
        task = self.pool.submit(partial(self._compile, entry, vocabulary))
        task.add_done_callback(lambda done: _refuse(entry.future) if done.cancelled() else None)

    def _compile(self, entry: _Entry, vocabulary: _Once[Vocabulary]) -> None:
        future, constraint = entry.future, entry.constraint
        if not future.running() and not future.set_running_or_notify_cancel():
            return
        try:
            entry.check_wanted()
            verdict = self.check(constraint, check_wanted=entry.check_wanted)
            if isinstance(verdict, Limit):
                self._go_on(entry, verdict, vocabulary)
                return
            if verdict.error:
                raise GrammarError(verdict.error, param=constraint.param)
            with self._compiling:
                grammar = Grammar(constraint, verdict.grammar, vocabulary.get())
        except RametError as error:
            future.set_exception(error)
        except BaseException:  # A panic of the grammar engine is no Exception.
            logger.exception("a constraint could not be compiled: %.500s", constraint)
            future.set_exception(EngineError("The engine failed on the constraint."))
        else:
            future.set_result(grammar)

    def _go_on(self, entry: _Entry, limit: Limit, vocabulary: _Once[Vocabulary]) -> None:
        slower = self._slower.get(limit)
        if slower is None and limit is Limit.WALL:
            raise _busy(entry.constraint)
        if slower is None:
            raise GrammarError(
                "The constraint is too complex: it takes too long to compile.",
                param=entry.constraint.param,
            )
        entry.deadline = min(entry.deadline, time.monotonic() + THOROUGH_SECONDS)
        try:
            slower.enter(entry, vocabulary)
        except RuntimeError:
            _refuse(entry.future)


def _busy(constraint: Constraint) -> CapacityError:
    return CapacityError(
        f"The machine was too busy to check the constraint in {THOROUGH_SECONDS:g} s; try again.",
        param=constraint.param,
    )


def _refuse(future: Future[Grammar]) -> None:
    if not future.cancel() and not future.done():
        future.set_exception(EngineError("The engine was closed."))


def _failed_by_accident(future: Future[Grammar]) -> bool:
    """Whether trying again may help: the constraint was not to blame."""
    error = future.exception() if future.done() and not future.cancelled() else None
    return future.cancelled() or (error is not None and not isinstance(error, GrammarError))


def _close(checker: Checker, *lanes: _Lane) -> None:
    for lane in lanes:
        lane.pool.close()
    checker.close()
