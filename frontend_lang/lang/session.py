"""One run of a program: its states, how it ends, and what it raises then."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from uuid import uuid4

from . import nodes
from .backends.base import Backend
from .chat import Frames
from .errors import ProgramCancelled, Unsupported, UsageError
from .executor import Executor
from .params import Params
from .speculation import Speculation
from .waiting import LANGUAGE_LOOP, settled

_RUNNING: ContextVar[Session | None] = ContextVar("running", default=None)


@contextmanager
def running(session: Session) -> Iterator[None]:
    """A plain body of the session runs here."""
    token = _RUNNING.set(session)
    try:
        yield
    finally:
        _RUNNING.reset(token)


def running_here() -> Session | None:
    """The run whose plain body is on this thread, if one is."""
    return _RUNNING.get()


class Session:
    """A run.

    Args:
        backend: where its tokens come from.
        defaults: parameters of every gen that does not say otherwise.
        streams: whether somebody may read the states' text while they grow.
        num_api_spec_tokens: tokens that a gen asks for at least, of a backend where text travels: see
            speculation.py. Where tokens travel a request costs what is new in it, and nothing is guessed.

    Attributes:
        executors: of all its states, the root's first.
        inner: runs of other programs that its body has begun, and that go on beside it.
        is_async: whether its body awaits what it reads.
        is_over: whether the body has ended.
        failure: what the run raised, once it has.
        task: what runs the body, if nobody else holds it.
    """

    def __init__(
        self,
        backend: Backend,
        defaults: Params,
        *,
        streams: bool = False,
        num_api_spec_tokens: int | None = None,
    ) -> None:
        self.backend = backend
        self.defaults = defaults
        self.streams = streams
        self._num_api_spec_tokens = num_api_spec_tokens
        self.is_async = False
        self.is_over = False
        self.failure: BaseException | None = None
        self.task: asyncio.Task[None] | None = None
        self.loop = LANGUAGE_LOOP.get()
        self._name = uuid4().hex
        self._ended = False
        self._cancelled: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        backend.check(defaults)
        self.executors = [Executor(self, "")]
        self.inner: list[Session] = []
        self._is_inner = False
        self._done: Future[None] | None = None

    @property
    def root(self) -> Executor:
        """The executor of the program's own state."""
        return self.executors[0]

    @property
    def frames(self) -> Frames | None:
        """The chat template's frames, or None."""
        return self.backend.frames

    def speculation(self) -> Speculation | None:
        """What writes ahead for a state, if anything shall."""
        if self._num_api_spec_tokens is None or self.frames is not None:
            return None
        return Speculation(self._num_api_spec_tokens)

    @property
    def group(self) -> str | None:
        """What requests that may travel together have in common; None if there is only one state."""
        return self._name if len(self.executors) > 1 else None

    def check_open(self) -> None:
        """Pass if the program still runs.

        Raises:
            ProgramCancelled: it was cancelled.
            UsageError: it has ended.
        """
        if self._cancelled is not None:
            raise ProgramCancelled(self._cancelled)
        if self._ended or (self._is_inner and self.is_over):
            raise UsageError("The program has ended; its state can only be read.")

    def begin(self, inner: Session) -> None:
        """Let another program's run go on beside this one, which does not end before it."""
        inner._is_inner = True
        self.inner.append(inner)

    def observe(self) -> None:
        """Say that somebody has been told of every failure."""
        for executor in self.executors:
            executor.observed = True

    def check(self, node: nodes.Node) -> None:
        """Pass if the backend can run the node; raises Unsupported."""
        if isinstance(node, nodes.Retain) and not self.backend.retains:
            raise Unsupported("This backend cannot be asked to retain anything.")
        if isinstance(node, nodes.SeparateReasoning):
            node = node.gen
        if isinstance(node, nodes.Gen | nodes.ToolLoop):
            self.backend.check(node.params)

    def wake(self, executors: Sequence[Executor]) -> None:
        """Start the work of several states in one turn of the loop. Callable on any thread."""

        def wake() -> None:
            for executor in executors:
                executor.wake()

        self.loop.call_soon_threadsafe(wake)

    def limit(self, seconds: float) -> None:
        """Cancel the program if it has not ended so many seconds from now."""

        def start() -> None:
            reason = f"The program's time limit of {seconds:g} seconds passed."
            self._timer = self.loop.call_later(seconds, self._cancel, reason)

        self.loop.call_soon_threadsafe(start)

    def cancel(self, reason: str = "The program was cancelled.") -> None:
        """End everything that runs. Safe to call twice, on any thread."""
        if not self._ended:
            self._cancelled = self._cancelled or reason
        self.loop.call_soon_threadsafe(self._cancel, reason)

    def _cancel(self, reason: str) -> None:
        if self._ended:
            return
        self._cancelled = self._cancelled or reason
        for executor in self.executors:
            executor.cancel(ProgramCancelled(reason))
            executor.wake()
        for inner in self.inner:
            inner._cancel(reason)

    def finish(self) -> Future[None]:
        """Say that the body has ended; done when everything that was added is done."""
        self.is_over = True
        self._done = LANGUAGE_LOOP.call(self._finish())
        return self._done

    async def _finish(self) -> None:
        for inner in self.inner:
            if inner._done is not None:
                await settled(inner._done)
        for executor in self.executors:
            await executor.idle()
            executor.release()
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
        for executor in self.executors:
            await executor.flush()

    def failed(self) -> Executor | None:
        """The state whose error the run must raise: the root, or a branch, or a program that it has run,
        which nobody asked."""
        if self.root.error is not None:
            return self.root
        unseen = (e for e in self.executors if e.error is not None and not e.observed)
        return next(unseen, None) or self._failed_inside()

    def _failed_inside(self) -> Executor | None:
        """The same of the runs beside it; one that somebody has asked is dealt with."""
        found = (inner.failed() for inner in self.inner)
        return next((e for e in found if e is not None and not e.observed), None)
