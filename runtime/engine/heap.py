"""What a process does to its memory once, between start-up and work."""

from __future__ import annotations

import ctypes
import gc


def settle() -> None:
    """Take what is alive for permanent, and give back to the system what start-up used beside it.

    The collector does not walk the permanent objects again, so no step waits for that.
    """
    gc.collect()
    gc.freeze()
    # Loading leaves tens of megabytes free but held; only glibc can be asked to let go of them.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
