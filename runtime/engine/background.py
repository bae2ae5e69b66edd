"""Awaiting what blocks, without a pool of threads that the program would have to wait for at its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def in_background(function: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Call `function` on a daemon thread; returns its result as a future of the running loop.

    Cancelling the future leaves the thread running. A loop that is closed before the function
    returns never learns of the result.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # it is a T if there is no error

    def work() -> None:
        result, error = None, None
        try:
            result = function()
        except BaseException as caught:
            error = caught
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:
            pass  # The loop was closed: nobody waits any more.

    threading.Thread(target=work, name=name, daemon=True).start()
    return future
