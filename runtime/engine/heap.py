"""What a process of our own does to its memory while it starts, and once it has."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def growing() -> Iterator[None]:
    """Leave the garbage collector off in the block, until `settle` at most.

    Start-up makes hundreds of thousands of objects and drops few, so a tenth of it would be spent on
    walking them again and again.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def settle() -> None:
    """Take what is alive for permanent, and give back to the system what start-up used beside it.

    The collector does not walk the permanent objects again, so no step waits for that.
    """
    gc.collect()
    gc.freeze()
    gc.enable()
    # Loading leaves tens of megabytes free but held; only glibc can be asked to let go of them.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
