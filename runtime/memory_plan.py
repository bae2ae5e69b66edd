"""What fits into memory, worked out before anything is loaded.

Plain arithmetic on plain numbers, so that `ramet plan` and start-up cannot disagree; only
`available_memory` looks at the machine. It knows no model and no tensor.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from .config import CacheConfig
from .errors import ConfigError

GIB = 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """What the engine will hold.

    Attributes:
        weight_bytes: what the weights take.
        kv_bytes_per_token: keys and values of one token, in all layers.
        block_size: tokens per block.
        num_blocks: blocks of the KV cache.
        max_model_len: tokens of prompt and output together, at most.
        model_max_len: the same as the model's configuration has it.
    """

    weight_bytes: int
    kv_bytes_per_token: int
    block_size: int
    num_blocks: int
    max_model_len: int
    model_max_len: int

    @property
    def num_tokens(self) -> int:
        """Tokens that the KV cache holds."""
        return self.num_blocks * self.block_size

    @property
    def kv_cache_bytes(self) -> int:
        """What the KV cache takes."""
        return self.num_tokens * self.kv_bytes_per_token

    @property
    def num_max_len_requests(self) -> int:
        """Requests of the maximum length that fit at once, sharing nothing."""
        return self.num_blocks // blocks_for(self.max_model_len, self.block_size)


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that one request of that length needs.

    One more than its tokens fill: when the last block of a shared prefix is copied, the original is held
    until the copy is made.
    """
    return -(-num_tokens // block_size) + 1


def longest_length(num_blocks: int, block_size: int) -> int:
    """The longest request that so many blocks hold; 0 if they hold none."""
    return max(num_blocks - 1, 0) * block_size


def plan_memory(
    *,
    cache: CacheConfig,
    kv_bytes_per_token: int,
    weight_bytes: int,
    model_max_len: int,
    max_model_len: int | None,
    available_bytes: int,
    auto_length: bool = False,
) -> MemoryPlan:
    """Decide how many blocks there are and how long a request may be.

    Args:
        cache: block size, and how much memory the KV cache may take.
        kv_bytes_per_token: keys and values of one token, in all layers.
        weight_bytes: what the weights will take.
        model_max_len: the longest context that the model is made for.
        max_model_len: the user's own limit; None means the model's.
        available_bytes: memory that is free now, before the weights are loaded.
        auto_length: where no limit is given and the model's does not fit, take what fits.

    Raises:
        ConfigError: the weights do not fit, the user's limit is above the model's, or the KV cache cannot
            hold one request of the maximum length.
    """
    if max_model_len is not None and max_model_len > model_max_len:
        raise ConfigError(
            f"max_model_len ({max_model_len}) is above what the model is made for "
            f"({model_max_len} tokens).",
            param="max_model_len",
            hint=f"Use --max-model-len {model_max_len} or less.",
        )
    budget = _kv_budget(cache, weight_bytes, available_bytes)
    num_blocks = budget // (cache.block_size * kv_bytes_per_token)
    length = model_max_len if max_model_len is None else max_model_len
    fitting = min(longest_length(num_blocks, cache.block_size), length)
    if fitting < length and not (auto_length and max_model_len is None and fitting > 0):
        needed = blocks_for(length, cache.block_size) * cache.block_size * kv_bytes_per_token
        raise _too_long(cache, length=length, needed=needed, budget=budget, fitting=fitting)
    return MemoryPlan(
        weight_bytes=weight_bytes,
        kv_bytes_per_token=kv_bytes_per_token,
        block_size=cache.block_size,
        num_blocks=num_blocks,
        max_model_len=fitting,
        model_max_len=model_max_len,
    )


def _kv_budget(cache: CacheConfig, weight_bytes: int, available_bytes: int) -> int:
    """Bytes that the KV cache may take."""
    free = available_bytes - weight_bytes
    if free <= 0:
        raise ConfigError(
            f"The weights take {_gib(weight_bytes)} and {_gib(available_bytes)} of memory are "
            "available.",
            hint="Take a smaller model, a smaller --dtype, or a machine with more memory.",
        )
    if cache.kv_cache_memory is None:
        return int(free * cache.memory_fraction)
    if cache.kv_cache_memory > free:
        raise ConfigError(
            f"kv_cache_memory is {_gib(cache.kv_cache_memory)}, but only {_gib(free)} of the "
            f"{_gib(available_bytes)} available are left beside the weights ({_gib(weight_bytes)}).",
            param="kv_cache_memory",
            hint="Lower --kv-cache-memory.",
        )
    return cache.kv_cache_memory


def _too_long(
    cache: CacheConfig, *, length: int, needed: int, budget: int, fitting: int
) -> ConfigError:
    more = (
        "raise --gpu-memory-utilization"
        if cache.kv_cache_memory is None
        else "raise --kv-cache-memory"
    )
    if fitting:
        longest = f" The longest request that would fit has {fitting} tokens."
        hint = f"Lower --max-model-len to {fitting} or less, or {more}."
    else:
        longest = " Not even one block for a request fits."
        hint = f"Lower --max-model-len or --block-size, or {more}."
    return ConfigError(
        f"The KV cache cannot hold one request of {length} tokens: it needs {_gib(needed)}, and "
        f"{_gib(budget)} are available for it.{longest}",
        param="max_model_len",
        hint=hint,
    )


def _gib(num_bytes: int) -> str:
    # Small models need hundredths of a GiB; those are told in MiB.
    if num_bytes < GIB:
        return f"{num_bytes / 1024**2:.2f} MiB"
    return f"{num_bytes / GIB:.2f} GiB"


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that this process can still take without swapping or being killed for it.

    The least of what the kernel counts as available and what every control group (v1 or v2) above this
    process leaves; page cache that can be dropped counts as free.

    Args:
        root: where proc/ and sys/ lie.
    """
    limits = [_system_memory(root)]
    limits += _cgroup_rooms(root)
    return max(min(limits), 0)


def _system_memory(root: Path) -> int:
    meminfo = root / "proc/meminfo"
    if not meminfo.is_file():
        # Not Linux: all memory is the only portable number.
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
    return int(fields["MemAvailable"].split()[0]) * 1024


def _cgroup_rooms(root: Path) -> list[int]:
    membership = root / "proc/self/cgroup"
    if not membership.is_file():
        return []
    rooms = []
    for line in membership.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        for folder in _with_parents(base, path):
            room = _room(folder, *names)
            if room is not None:
                rooms.append(room)
    return rooms


def _with_parents(base: Path, path: str) -> list[Path]:
    # In a container the path may be the host's, which is not there; the base is then our own group.
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return [base.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]


def _room(folder: Path, limit_name: str, usage_name: str, cache_key: str) -> int | None:
    """What one control group leaves, or None if it sets no limit."""
    limit_file, usage_file = folder / limit_name, folder / usage_name
    if not (limit_file.is_file() and usage_file.is_file()):
        return None
    limit = limit_file.read_text().strip()
    if limit == "max":
        return None
    return int(limit) - int(usage_file.read_text()) + _droppable(folder / "memory.stat", cache_key)


def _droppable(stat: Path, key: str) -> int:
    if not stat.is_file():
        return 0
    fields = dict(line.split() for line in stat.read_text().splitlines() if line.strip())
    return int(fields.get(key, 0))
