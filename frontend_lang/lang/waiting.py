"""Where the language runs, and how a program waits for it.

One event loop on one daemon thread does the work of all states. A program's body runs somewhere else:

    run        on the caller's thread, which blocks when the body reads what is not there yet
    arun       an async body on the caller's loop; a plain body in a greenlet on it, which is
               suspended at such a read, so that thousands of bodies share one thread
    run_batch  greenlets on the caller's thread

A body that blocks by other means holds up those that share its thread.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable, Coroutine, Generator, Iterable
from concurrent.futures import Future
from typing import Any, TypeVar

import greenlet  # type: ignore[import-untyped]

from .errors import UsageError

T = TypeVar("T")


class LanguageLoop:
    """The event loop, started when it is first needed. One per process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def get(self) -> asyncio.AbstractEventLoop:
        """The running loop."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                # A daemon: it has no end of its own, and must not keep the interpreter from one.
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="ramet-language", daemon=True
                )
                self._thread.start()
            return self._loop

    def is_current(self) -> bool:
        """Whether this is the loop's thread."""
        return threading.current_thread() is self._thread

    def call(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.get())


LANGUAGE_LOOP = LanguageLoop()


class Body(greenlet.greenlet):  # type: ignore[misc]  # it brings no types
    """A plain function that can be suspended; switching to it returns the future it waits for."""

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__(function)
        self.gr_context = contextvars.copy_context()


def wait(future: Future[Any]) -> None:
    """Wait until the future is done, suspending the body or blocking the thread.

    Raises:
        UsageError: the thread is the language's own, whose work would stop.
    """
    if future.done():
        return
    current = greenlet.getcurrent()
    if isinstance(current, Body) and current.parent is not None:
        current.parent.switch(future)
    elif LANGUAGE_LOOP.is_current():
        raise UsageError("An async program must await what it reads: await s.get(name).")
    else:
        done = threading.Event()
        future.add_done_callback(lambda _: done.set())
        done.wait()


async def settled(future: Future[Any]) -> None:
    """Wait for the future on the running loop, without touching its result."""
    if future.done():
        return
    loop = asyncio.get_running_loop()
    here: asyncio.Future[None] = loop.create_future()

    def settle() -> None:
        if not here.done():
            here.set_result(None)

    def wake(_: Future[Any]) -> None:
        try:
            loop.call_soon_threadsafe(settle)
        except RuntimeError:
            pass  # The loop was closed: nobody waits any more.

    future.add_done_callback(wake)
    await here


async def drive(function: Callable[[], T]) -> T:
    """Run a plain function in a greenlet on the running loop; cancelling cancels it at its next read."""
    outcome: Future[T] = Future()
    body = Body(lambda: _keep(function, outcome))
    waiting = body.switch()
    while not body.dead:
        try:
            await settled(waiting)
        except asyncio.CancelledError as cancelled:
            waiting = body.throw(cancelled)
        else:
            waiting = body.switch()
    return outcome.result()


def run_bodies(
    functions: Iterable[Callable[[], T]], limit: int
) -> Generator[tuple[int, Future[T]], None, None]:
    """Run functions in greenlets on this thread, `limit` at once; yields outcomes as they come.

    Closing the iteration ends those that still run.

    Yields:
        The function's place, and its result or exception as a finished future.
    """
    ready: queue.SimpleQueue[tuple[int, Body, Future[T]]] = queue.SimpleQueue()
    live: dict[int, Body] = {}
    waiting = enumerate(functions)
    more = True
    try:
        while True:
            while more and len(live) < limit:
                index, function = next(waiting, (-1, None))
                if function is None:
                    more = False
                    break
                outcome: Future[T] = Future()
                live[index] = Body(_keeping(function, outcome))
                _step(index, live[index], outcome, ready)
            if not live:
                return
            index, body, outcome = ready.get()
            if not body.dead:
                _step(index, body, outcome, ready)
            if body.dead and index in live:
                del live[index]
                yield index, outcome
    finally:
        for body in live.values():
            while not body.dead:
                body.throw(greenlet.GreenletExit())


def _step(index: int, body: Body, outcome: Future[T], ready: queue.SimpleQueue[Any]) -> None:
    future = body.switch()
    if body.dead:
        ready.put((index, body, outcome))
    else:
        future.add_done_callback(lambda _: ready.put((index, body, outcome)))


def _keeping(function: Callable[[], T], outcome: Future[T]) -> Callable[[], None]:
    return lambda: _keep(function, outcome)


def _keep(function: Callable[[], T], outcome: Future[T]) -> None:
    try:
        result = function()
    except BaseException as error:
        outcome.set_exception(error)
    else:
        outcome.set_result(result)
