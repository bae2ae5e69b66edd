"""Something that is done now and then beside a block of code, by a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def calling_every(seconds: float, function: Callable[[], None], *, name: str) -> Iterator[None]:
    """Call `function` every so many seconds while the block runs, from a daemon thread of that name.

    The thread has ended when the block ends.
    """
    done = threading.Event()

    def run() -> None:
        while not done.wait(seconds):
            function()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
