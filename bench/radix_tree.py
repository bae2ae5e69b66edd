"""How long match, insert and evict take as the tree grows.

Requests of 1,260 tokens: one of 64 system prompts of 1,200 tokens and 60 tokens of their own, so that
a tree of n leaves holds about n * 60 tokens more than the system prompts. All memory is in use when
evictions are timed: each makes room for one request's own tokens.

    python -m ramet.bench.radix_tree [num_leaves ...]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ramet.radix import PrefixCache

NUM_SYSTEM_PROMPTS = 64
SYSTEM_LENGTH = 1200
OWN_LENGTH = 60
BLOCK_SIZE = 16
VOCAB_SIZE = 50_000
NUM_TIMED = 2000
LENGTH = SYSTEM_LENGTH + OWN_LENGTH
TABLE_HEADER = f"{'leaves':>8} {'operation':<24} {'mean us':>9} {'p50 us':>9} {'p99 us':>9}"


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of each of many calls of one operation."""

    num_leaves: int
    operation: str
    seconds: NDArray[np.float64]

    def __str__(self) -> str:
        mean, p50, p99 = (
            1e6 * value for value in (self.seconds.mean(), *np.percentile(self.seconds, [50, 99]))
        )
        return f"{self.num_leaves:>8} {self.operation:<24} {mean:>9.1f} {p50:>9.1f} {p99:>9.1f}"


class Workload:
    """Prompts that share system prompts, and the cache that serves them."""

    def __init__(self, num_leaves: int, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        self._systems = self._draw(NUM_SYSTEM_PROMPTS, SYSTEM_LENGTH)
        blocks_per_prompt = -(-SYSTEM_LENGTH // BLOCK_SIZE)
        blocks_per_leaf = -(-OWN_LENGTH // BLOCK_SIZE)
        self.cache = PrefixCache(
            NUM_SYSTEM_PROMPTS * blocks_per_prompt + num_leaves * blocks_per_leaf, BLOCK_SIZE
        )
        self.num_leaves = num_leaves
        self.prompts = [self._prompt() for _ in range(num_leaves)]
        for prompt in self.prompts:
            self.serve(prompt)

    def _draw(self, *shape: int) -> NDArray[np.int32]:
        return self._random.integers(VOCAB_SIZE, size=shape, dtype=np.int32)

    def _prompt(self) -> NDArray[np.int32]:
        system = self._systems[self._random.integers(NUM_SYSTEM_PROMPTS)]
        return np.concatenate((system, self._draw(OWN_LENGTH)))

    def serve(self, prompt: NDArray[np.int32]) -> dict[str, float]:
        """One request's life. Returns the seconds of each operation."""
        cache, clock = self.cache, time.perf_counter
        times = [clock()]
        handle = cache.acquire(prompt, max_tokens=LENGTH - 1)
        times.append(clock())
        table = handle.block_ids
        blocks = cache.allocate(-(-LENGTH // BLOCK_SIZE) - len(table))
        times.append(clock())
        if blocks is None:
            raise RuntimeError("the pool is too small for one request")
        table += blocks
        start = clock()
        handle = cache.commit(handle, prompt, table, num_tokens=LENGTH)
        committed = clock()
        cache.release(handle)
        cache.free(table[LENGTH // BLOCK_SIZE :])
        released = clock()
        return {
            "acquire": times[1] - times[0],
            "evict + allocate": times[2] - times[1],
            "insert (commit)": committed - start,
            "release + free": released - committed,
        }

    def run(self) -> list[Timing]:
        """Time matches of known prompts, then whole requests with unknown ones."""
        matches = []
        for index in self._random.integers(self.num_leaves, size=NUM_TIMED):
            prompt = self.prompts[index]
            start = time.perf_counter()
            self.cache.match(prompt)
            matches.append(time.perf_counter() - start)
        fresh = [self._prompt() for _ in range(NUM_TIMED)]
        served = [self.serve(prompt) for prompt in fresh]
        columns = {"match": matches} | {
            name: [times[name] for times in served] for name in served[0]
        }
        return [Timing(self.num_leaves, name, np.array(t)) for name, t in columns.items()]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table of times per operation and size of the tree."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("num_leaves", type=int, nargs="*", default=[1000, 10_000, 40_000])
    print(TABLE_HEADER)
    for num_leaves in parser.parse_args(arguments).num_leaves:
        workload = Workload(num_leaves)
        for timing in workload.run():
            print(timing)
        stats = workload.cache.stats
        print(
            f"{'':>8} {stats.num_nodes} nodes, {stats.num_tokens} tokens, "
            f"{stats.evicted_blocks} blocks evicted"
        )


if __name__ == "__main__":
    main()
