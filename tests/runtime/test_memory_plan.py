"""What fits, to the block."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.config import CacheConfig
from ramet.runtime.errors import ConfigError
from ramet.runtime.memory_plan import (
    MemoryPlan,
    available_memory,
    blocks_for,
    longest_length,
    plan_memory,
)

MIB = 1024**2
# SmolLM2-135M in float32: 2 x 30 layers x 3 heads x 64 x 4 bytes.
KV_BYTES = 46_080
WEIGHTS = 538_060_032


def plan(**changes: Any) -> MemoryPlan:
    """The plan for SmolLM2-135M on a machine with 4 GiB to spare, unless changed."""
    cache = {
        key: changes.pop(key)
        for key in ("block_size", "memory_fraction", "kv_cache_memory")
        if key in changes
    }
    arguments: dict[str, Any] = {
        "kv_bytes_per_token": KV_BYTES,
        "weight_bytes": WEIGHTS,
        "model_max_len": 8192,
        "max_model_len": None,
        "available_bytes": 4096 * MIB,
    }
    return plan_memory(cache=CacheConfig(**cache), **(arguments | changes))


@pytest.mark.parametrize(
    ("changes", "num_blocks", "max_len", "num_requests"),
    [
        ({}, 2547, 8192, 4),
        ({"memory_fraction": 1.0}, 5095, 8192, 9),
        ({"max_model_len": 1000}, 2547, 1000, 39),
        ({"kv_cache_memory": 513 * 16 * KV_BYTES}, 513, 8192, 1),
        ({"kv_cache_memory": 1026 * 16 * KV_BYTES}, 1026, 8192, 2),
        ({"block_size": 1}, 40765, 8192, 4),
        ({"kv_cache_memory": 100 * 16 * KV_BYTES, "auto_length": True}, 100, 1584, 1),
        ({"auto_length": True}, 2547, 8192, 4),
    ],
)
def test_numbers_of_known_cases(
    changes: dict[str, Any], num_blocks: int, max_len: int, num_requests: int
) -> None:
    made = plan(**changes)
    assert (made.num_blocks, made.max_model_len) == (num_blocks, max_len)
    assert made.num_max_len_requests == num_requests
    assert made.num_tokens == num_blocks * made.block_size
    assert made.kv_cache_bytes == made.num_tokens * KV_BYTES
    assert (made.weight_bytes, made.model_max_len) == (WEIGHTS, 8192)


def test_one_block_too_few_is_an_error_with_every_number() -> None:
    with pytest.raises(ConfigError) as caught:
        plan(kv_cache_memory=512 * 16 * KV_BYTES)
    text = str(caught.value)
    assert "8192 tokens" in text
    assert "needs 360.70 MiB" in text and "360.00 MiB are available" in text
    assert "would fit has 8176 tokens" in text
    assert "--max-model-len" in text and "--kv-cache-memory" in text
    assert caught.value.param == "max_model_len"


def test_the_flag_that_mends_it_is_the_one_that_decided() -> None:
    with pytest.raises(ConfigError, match="raise --gpu-memory-utilization"):
        plan(memory_fraction=0.01)


def test_nothing_fits_without_auto_and_with_it() -> None:
    for auto in (False, True):
        with pytest.raises(ConfigError, match="Not even one block"):
            plan(kv_cache_memory=16 * KV_BYTES, auto_length=auto)


def test_auto_does_not_shorten_what_the_user_asked_for() -> None:
    with pytest.raises(ConfigError, match="one request of 4096 tokens"):
        plan(kv_cache_memory=100 * 16 * KV_BYTES, max_model_len=4096, auto_length=True)


def test_limit_above_the_models_names_both() -> None:
    with pytest.raises(ConfigError, match=r"max_model_len \(8193\).*\(8192 tokens\)") as caught:
        plan(max_model_len=8193)
    assert caught.value.param == "max_model_len"


def test_weights_that_do_not_fit_are_told() -> None:
    with pytest.raises(ConfigError, match=r"weights take 513.13 MiB and 512.00 MiB of memory"):
        plan(available_bytes=512 * MIB)


def test_kv_cache_that_does_not_fit_beside_the_weights_is_told() -> None:
    with pytest.raises(ConfigError, match=r"kv_cache_memory is 3.91 GiB, but only 3.50 GiB"):
        plan(kv_cache_memory=4000 * MIB)


@given(
    length=st.integers(1, 10_000),
    block_size=st.sampled_from([1, 7, 16, 32]),
    num_blocks=st.integers(0, 700),
    kv_bytes=st.integers(1, 5000),
)
def test_the_length_that_is_offered_passes_and_one_more_does_not(
    length: int, block_size: int, num_blocks: int, kv_bytes: int
) -> None:
    def made(max_model_len: int) -> MemoryPlan:
        return plan_memory(
            cache=CacheConfig(
                block_size=block_size, kv_cache_memory=num_blocks * block_size * kv_bytes + 1
            ),
            kv_bytes_per_token=kv_bytes,
            weight_bytes=0,
            model_max_len=20_000,
            max_model_len=max_model_len,
            available_bytes=10**12,
        )

    try:
        assert made(length).num_max_len_requests >= 1
    except ConfigError as error:
        offered = re.search(r"would fit has (\d+) tokens", error.message)
        if offered is None:
            assert num_blocks < 2
            return
        assert made(int(offered[1])).max_model_len == int(offered[1])
        with pytest.raises(ConfigError):
            made(int(offered[1]) + 1)


@given(length=st.integers(1, 10**6), block_size=st.integers(1, 256))
def test_longest_length_inverts_blocks_for(length: int, block_size: int) -> None:
    num_blocks = blocks_for(length, block_size)
    assert longest_length(num_blocks, block_size) >= length
    assert longest_length(num_blocks - 1, block_size) < length


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine with 8 GiB available and no control groups."""
    write(tmp_path, "proc/meminfo", f"MemTotal: 16 kB\nMemAvailable: {8 * 1024**2} kB\n")
    return tmp_path


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_available_memory_is_the_kernels(machine: Path) -> None:
    assert available_memory(machine) == 8 * 1024**3


def test_control_group_v2_limits_it_and_dropped_cache_counts_as_free(machine: Path) -> None:
    write(machine, "proc/self/cgroup", "0::/a/b\n")
    write(machine, "sys/fs/cgroup/a/b/memory.max", "max\n")
    write(machine, "sys/fs/cgroup/a/b/memory.current", "5\n")
    assert available_memory(machine) == 8 * 1024**3
    write(machine, "sys/fs/cgroup/a/memory.max", f"{1000 * MIB}\n")
    write(machine, "sys/fs/cgroup/a/memory.current", f"{700 * MIB}\n")
    write(machine, "sys/fs/cgroup/a/memory.stat", f"anon 1\ninactive_file {200 * MIB}\n")
    assert available_memory(machine) == 500 * MIB


def test_control_group_of_a_container_is_the_root(machine: Path) -> None:
    write(machine, "proc/self/cgroup", "0::/../../not/mounted\n")
    write(machine, "sys/fs/cgroup/memory.max", f"{100 * MIB}\n")
    write(machine, "sys/fs/cgroup/memory.current", f"{300 * MIB}\n")
    assert available_memory(machine) == 0


def test_control_group_v1_limits_it(machine: Path) -> None:
    write(machine, "proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/job\n")
    base = "sys/fs/cgroup/memory/job"
    write(machine, f"{base}/memory.limit_in_bytes", f"{600 * MIB}\n")
    write(machine, f"{base}/memory.usage_in_bytes", f"{500 * MIB}\n")
    write(machine, f"{base}/memory.stat", f"total_inactive_file {50 * MIB}\n")
    assert available_memory(machine) == 150 * MIB


def test_this_machine_has_memory() -> None:
    assert available_memory() > 64 * MIB


def test_other_systems_tell_all_memory(tmp_path: Path) -> None:
    assert available_memory(tmp_path) > 64 * MIB
