"""The engine's process before it knows what to load: an interpreter, importing.

It can be started long before anything else is known, so that its imports, which take as long as loading a
small model, go on beside the caller's own. This file imports next to nothing for that reason. What the
process then does is in worker.py; what its caller does with it, in launch.py.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

DEFAULT_CORE = "ramet.runtime.engine.loading:open_core"


def spawn(core: str = DEFAULT_CORE) -> subprocess.Popen[bytes]:
    """Start a process that imports what `core` needs, and then waits for `WorkerOptions` on stdin.

    It ends by itself when its stdin does. It inherits no descriptor but stderr and stdout, and gets a
    process group of its own, so that a Ctrl-C in the terminal reaches the parent alone. It stays in the
    parent's session: Linux shares processors among sessions first (autogroup), and where the two weigh
    differently it packs the engine's threads onto one core, beside a core that is idle. SIGTTOU is blocked
    in it from its first moment: a terminal may stop whoever writes from behind it, even a warning at import.

    Args:
        core: `module:function`; the options that it is sent must name the same.
    """
    with _blocking(signal.SIGTTOU):
        # A plain Popen, since some event loops let their child processes inherit descriptors.
        return subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.worker", core.partition(":")[0]],
            stdin=subprocess.PIPE,
            bufsize=0,
            process_group=0,
        )


@contextmanager
def _blocking(number: signal.Signals) -> Iterator[None]:
    """Block a signal in this thread, and in what it starts in the block for good."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process from `spawn`, unless it has ended, and wait for that. Safe to call twice."""
    process.kill()
    if process.stdin is not None:
        process.stdin.close()
    process.wait()


@contextmanager
def spawned(core: str = DEFAULT_CORE) -> Iterator[subprocess.Popen[bytes]]:
    """A process from `spawn` for as long as the block runs, whoever uses it in there."""
    process = spawn(core)
    try:
        yield process
    finally:
        end(process)
