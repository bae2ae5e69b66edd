"""Threads that nobody waits for: what they are stuck in keeps no process from ending.

Those of concurrent.futures are joined when the interpreter ends.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

THREAD_NICENESS = 10
"""Of the threads here. One that the system lets wait while it holds the interpreter finds the core that
the step loop, which waits for it, has left."""


def yield_to_others() -> None:
    """Give this thread the niceness of those that the steps go before, where threads have one."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with suppress(OSError):
            niceness = max(os.getpriority(os.PRIO_PROCESS, thread), THREAD_NICENESS)
            os.setpriority(os.PRIO_PROCESS, thread, niceness)


def start(function: Callable[[], T], name: str) -> Future[T]:
    """What a function returns or raises on a thread of its own, whatever becomes of whoever asked."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        yield_to_others()
        _answer(future, function)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


class Threads:
    """So many threads that take tasks in turn; started when there is something to do.

    They hold no reference to this object, and `close` ends them when their tasks are done.
    """

    def __init__(self, size: int, name: str) -> None:
        self._size, self._name = size, name
        self._tasks: queue.SimpleQueue[tuple[Future[object], Callable[[], object]] | None] = (
            queue.SimpleQueue()
        )
        self._lock = threading.Lock()
        self._num_started = 0
        self._closed = False

    def submit(self, function: Callable[[], object]) -> Future[object]:
        """Run a function in turn. Raises RuntimeError once closed."""
        future: Future[object] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("The threads were closed.")
            self._tasks.put((future, function))
            if self._num_started < self._size:
                self._num_started += 1
                threading.Thread(
                    target=_serve,
                    args=(self._tasks,),
                    name=f"{self._name}_{self._num_started}",
                    daemon=True,
                ).start()
        return future

    def close(self) -> None:
        """Cancel what has not begun, and take nothing more. Safe to call twice."""
        with self._lock:
            self._closed = True
            with suppress(queue.Empty):
                while True:
                    task = self._tasks.get_nowait()
                    if task is not None:
                        task[0].cancel()
            for _ in range(self._num_started):
                self._tasks.put(None)


def _serve(tasks: queue.SimpleQueue[tuple[Future[object], Callable[[], object]] | None]) -> None:
    yield_to_others()
    while (task := tasks.get()) is not None:
        future, function = task
        if future.set_running_or_notify_cancel():
            _answer(future, function)
        del task, future, function  # What it held is not to wait for the next one.


def _answer(future: Future[T], function: Callable[[], T]) -> None:
    try:
        result = function()
    except BaseException as error:  # A panic of the grammar engine is no Exception.
        future.set_exception(error)
    else:
        future.set_result(result)
