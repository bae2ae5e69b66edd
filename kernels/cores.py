"""How many threads make sense: the physical cores that this process may run on."""

from __future__ import annotations

import os
from pathlib import Path


def num_physical_cores() -> int:
    """Physical cores available to the process, at least 1; where the system does not tell, all CPUs."""
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(_num_cpus()))
    return max(1, len({_siblings(cpu) for cpu in cpus}))


def _num_cpus() -> int:
    return os.cpu_count() or 1


def _siblings(cpu: int) -> str:
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        return path.read_text().strip()
    except OSError:
        return str(cpu)
