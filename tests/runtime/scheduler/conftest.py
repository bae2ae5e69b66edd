"""A scheduler under test with a model that can be checked: its KV says which prefix it belongs to.

The simulated model keeps, for every slot of KV memory, the identity of the prefix whose key and value a
real model would have written there. Each step it first checks every slot that the step would read, so
a block freed too early, shared wrongly or copied wrongly shows at once. Its next token is a function of
the whole prefix, as a greedy model's is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from ramet.radix import PrefixCache
from ramet.runtime.config import SchedulerConfig
from ramet.runtime.request import Request, RequestStatus, SamplingParams
from ramet.runtime.scheduler import ScheduleBatch, Scheduler

VOCABULARY = 50
MAX_MODEL_LEN = 256


def next_prefix(prefix: int, token: int) -> int:
    return hash((prefix, token))


def continuation(prompt: list[int], num_tokens: int) -> list[int]:
    """What the simulated model generates, computed without any scheduler."""
    prefix = 0
    for token in prompt:
        prefix = next_prefix(prefix, token)
    output: list[int] = []
    for _ in range(num_tokens):
        output.append(prefix % VOCABULARY)
        prefix = next_prefix(prefix, output[-1])
    return output


@dataclass
class Simulation:
    scheduler: Scheduler
    cache: PrefixCache
    slots: list[int] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    batches: list[ScheduleBatch] = field(default_factory=list)

    def add(
        self,
        prompt: list[int],
        max_tokens: int = 4,
        namespace: str = "",
        priority: int = 0,
        group: str = "",
    ) -> Request:
        request = Request.create(
            request_id=str(len(self.requests)),
            prompt_ids=np.array(prompt, dtype=np.int32),
            params=SamplingParams(max_tokens=max_tokens),
            seed=0,
            arrival=len(self.requests),
            max_model_len=MAX_MODEL_LEN,
            namespace=namespace,
            group=group,
            priority=priority,
        )
        self.requests.append(request)
        self.scheduler.add(request)
        return request

    def step(self) -> ScheduleBatch:
        batch = self.scheduler.schedule()
        copied = [(self._block(source), target) for source, target in batch.block_copies]
        for content, target in copied:
            size = self.cache.block_size
            self.slots[target * size : (target + 1) * size] = content
        sampled = {}
        for item in batch.scheduled:
            prefix = self._compute(item.request, item.start, item.num_new_tokens)
            if item.samples:
                sampled[item.request] = prefix % VOCABULARY
        self.scheduler.update(batch, sampled)
        for item in batch.scheduled:
            request = item.request
            if request.num_tokens >= request.max_total_tokens and request.num_remaining <= 1:
                self.scheduler.finish(request)
        self.batches.append(batch)
        self.check()
        return batch

    def run(self, max_steps: int = 2000) -> None:
        for _ in range(max_steps):
            if not self.scheduler.has_work():
                return
            assert self.step(), "a step with live requests ran nothing"
        raise AssertionError(f"not finished after {max_steps} steps")

    def check(self) -> None:
        cache = self.cache
        cache.check_integrity()
        assert cache.num_free + cache.num_cached + cache.num_private == cache.num_blocks
        if not self.scheduler.running:
            assert cache.num_private == cache.num_pinned == 0
        rows = [r.row for r in self.scheduler.running]
        assert len(set(rows)) == len(rows) and -1 not in rows

    def expect_right_outputs(self) -> None:
        for request in self.requests:
            if request.status is RequestStatus.FINISHED:
                wanted = continuation(request.prompt_ids.tolist(), request.num_output_tokens)
                assert request.output_ids.tolist() == wanted

    def _block(self, block_id: int) -> list[int]:
        size = self.cache.block_size
        return self.slots[block_id * size : (block_id + 1) * size]

    def _compute(self, request: Request, start: int, num_new_tokens: int) -> int:
        size, prefix = self.cache.block_size, 0
        for position, token in enumerate(request.token_ids[: start + num_new_tokens].tolist()):
            prefix = next_prefix(prefix, token)
            slot = request.block_table[position // size] * size + position % size
            if position < start:
                assert self.slots[slot] == prefix, f"foreign KV at position {position}"
            else:
                self.slots[slot] = prefix
        return prefix


@pytest.fixture
def simulate() -> Callable[..., Simulation]:
    def make(
        num_blocks: int = 64, block_size: int = 4, prefix_cache: bool = True, **config: object
    ) -> Simulation:
        options = {"max_num_seqs": 4, "max_num_batched_tokens": 32, **config}
        cache = PrefixCache(num_blocks, block_size, enabled=prefix_cache)
        scheduler = Scheduler(
            SchedulerConfig(**options),  # type: ignore[arg-type]
            cache,
            share_inflight=prefix_cache,
        )
        return Simulation(scheduler, cache, [0] * (num_blocks * block_size))

    return make
