"""Who runs in the next step: continuous batching with chunked prefill over the prefix cache.

It knows tokens, blocks and ages; nothing of tensors, text or time of day. One step:

    1. every running request that decodes gets one token; prefills share what is left of the budget
    2. blocks are found for them, by evicting cached prefixes, then by preempting the youngest
    3. waiting requests are admitted in policy order, on top of what the cache holds of them
    4. after the forward pass, `update` takes the new tokens and commits computed prompts to the tree
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from ramet.radix import IntegrityError, PrefixCache, PrefixHandle

from ..config import SchedulerConfig
from ..errors import OutOfBlocks
from ..request import Request, RequestStatus
from .chunking import StepTimeModel, split_budget
from .inflight import must_wait
from .policy import POLICIES
from .waiting import WaitingQueue

logger = logging.getLogger(__name__)

ADMISSION_WINDOW = 128
"""Waiting requests looked at per step, oldest first: what bounds the cost of ordering them."""

MAX_SCORED_TOKENS = 256
"""Prompt tokens whose log-probabilities one step computes: what bounds the size of their logits."""


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """One request's share of a step: run its tokens `[start, start + num_new_tokens)`.

    Attributes:
        samples: whether the step reaches its last token, so that a new one is sampled.
        scores_prompt: whether the log-probabilities of these prompt tokens are wanted.
    """

    request: Request
    start: int
    num_new_tokens: int
    samples: bool
    scores_prompt: bool


@dataclass(frozen=True, slots=True)
class ScheduleBatch:
    """What one step runs. Holds no tensors.

    Attributes:
        scheduled: the requests with their shares, decodes and prefills mixed.
        block_copies: (source, destination) blocks to copy before anything is computed.
    """

    scheduled: Sequence[ScheduledRequest]
    block_copies: Sequence[tuple[int, int]]
    num_decodes: int
    num_prefill_tokens: int

    def __bool__(self) -> bool:
        return bool(self.scheduled)


@dataclass(slots=True)
class SchedulerCounters:
    """Events since the start."""

    preemptions: int = 0
    copied_blocks: int = 0
    prompt_tokens: int = 0
    prefix_hit_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0


@dataclass(slots=True)
class _StepPlan:
    scheduled: list[ScheduledRequest] = field(default_factory=list)
    num_decodes: int = 0
    num_prefill_tokens: int = 0


class Scheduler:
    """Decides what runs. Owns every live request and, through `cache`, every block.

    Args:
        cache: holds at least ceil(max_model_len / block_size) + 1 blocks, so that one request alone
            always fits.
    """

    def __init__(
        self, config: SchedulerConfig, cache: PrefixCache, *, share_inflight: bool = True
    ) -> None:
        self.config = config
        self.cache = cache
        self.waiting = WaitingQueue()
        self.running: list[Request] = []
        self.counters = SchedulerCounters()
        self.step_time = StepTimeModel()
        # Outlives a step that fails half planned: a request counts on its copy from admission on.
        self._block_copies: dict[Request, tuple[int, int]] = {}
        self._free_rows = list(range(config.max_num_seqs - 1, -1, -1))
        self._order = POLICIES[config.schedule_policy]
        self._share_inflight = share_inflight

    def add(self, request: Request) -> None:
        """Let a request wait for admission."""
        self.waiting.add(request)

    def finish(self, request: Request, *, keep: bool = True) -> None:
        """End a live request, in whatever state, and give up its memory.

        Its computed tokens stay cached, unless `keep` is false, because the step that ran it failed and
        nothing is known of what it wrote.
        """
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
            self._give_up_blocks(request, keep=keep)
        elif request.status is not RequestStatus.FINISHED:
            self.waiting.remove(request)
        request.leader = None
        request.status = RequestStatus.FINISHED

    def append_forced(self, request: Request, token_id: int) -> None:
        """Add a token to a running or paused request that nobody had to sample; it is run with the next."""
        request.append(token_id)
        request.match_generation = -1
        self.counters.generated_tokens += 1

    def audit(self) -> int:
        """Recount the cache, and take out of circulation what cannot be trusted; returns how many blocks."""
        num_blocks = self.cache.audit()
        if num_blocks:
            logger.error(
                "the KV cache's accounting was damaged: %d blocks are out of use",
                num_blocks,
                exc_info=sys.exc_info()[0] is not None,
            )
        return num_blocks

    def has_work(self) -> bool:
        """Whether any request is live."""
        return bool(self.running or self.waiting)

    def schedule(self) -> ScheduleBatch:
        """Choose the next step and take the blocks it needs. Empty only if no request is live and unpaused.

        Raises:
            OutOfBlocks: not even one request fits, which the size of the pool rules out unless blocks
                were quarantined.
            IntegrityError: the accounting of the cache is damaged. Either way nothing is lost: after
                `PrefixCache.audit` the next call goes on.
        """
        plan = _StepPlan()
        candidates = self._candidates()
        shares = self._shares(candidates)
        # Oldest first, so that whoever has to give way has no share of this step yet.
        for request in sorted(self.running, key=lambda r: r.age):
            share = shares.get(request, 0)
            if share and request.status is RequestStatus.RUNNING and self._reserve(request, share):
                self._plan(plan, request, share)
        if candidates:
            self._admit(candidates, plan)
        copies = list(self._block_copies.values())
        self._block_copies.clear()
        return ScheduleBatch(plan.scheduled, copies, plan.num_decodes, plan.num_prefill_tokens)

    def update(self, batch: ScheduleBatch, sampled: dict[Request, int]) -> None:
        """Take a finished step: its tokens are computed, and `sampled` holds the new ones.

        Every request of the batch that `samples` has an entry in `sampled`, unless it was finished
        meanwhile. Prompts become visible to other requests here, chunk by chunk.
        """
        for item in batch.scheduled:
            request = item.request
            if request.status is not RequestStatus.RUNNING:
                continue
            in_prompt = request.num_computed < request.num_prompt_tokens
            request.num_computed = item.start + item.num_new_tokens
            self.counters.computed_tokens += item.num_new_tokens
            if in_prompt:
                self._commit(request)
            if item.samples:
                request.append(sampled[request])
                self.counters.generated_tokens += 1

    def _candidates(self) -> list[Request]:
        """Waiting requests that could be admitted now, best first; none while all rows are taken."""
        if not self.waiting or not self._free_rows:
            return []
        window = [r for r in self.waiting.head(ADMISSION_WINDOW) if not r.is_paused]
        families = {(r.namespace, r.group) for r in self.running if r.group}
        for request in window:
            self._refresh_match(request)
            request.has_running_sibling = (request.namespace, request.group) in families
        return self._order(window, self.config.max_overtakes)

    def _shares(self, candidates: Sequence[Request]) -> dict[Request, int]:
        """Tokens that each running request gets in this step."""
        ready = [r for r in self.running if not r.is_paused]
        decodes = [r for r in ready if r.num_remaining == 1]
        prefills = sorted((r for r in ready if r.num_remaining > 1), key=lambda r: r.age)
        shares: dict[Request, int] = dict.fromkeys(decodes, 1)
        if prefills:
            budget = self._prefill_budget(len(decodes))
            budget -= self._set_aside(candidates, budget // 2)
            wanted = [_limit_scored(r, r.num_remaining) for r in prefills]
            shares.update(zip(prefills, split_budget(wanted, budget), strict=True))
        return shares

    def _set_aside(self, candidates: Sequence[Request], most: int) -> int:
        """Tokens kept for waiting prompts so short that they need not stand behind a long one.

        Only for those whose blocks `_start` is likely to find: what is kept in vain is lost to the step.
        """
        kept = 0
        room = self.cache.num_available - self._promised() - len(self.running)
        for request in candidates:
            need = request.num_tokens - request.num_matched
            blocks = (
                self._num_missing_blocks(request) - request.num_matched // self.cache.block_size
            )
            if need <= most - kept and blocks <= room and not self._waits_for_leader(request):
                kept += need
                room -= blocks + 1
        return kept

    def _promised(self) -> int:
        """Blocks that the running requests still need for the tokens they have, and for the next ones."""
        return sum(self._num_missing_blocks(r) for r in self.running)

    def _prefill_budget(self, num_decodes: int) -> int:
        budget = self.config.max_num_batched_tokens - num_decodes
        if num_decodes:
            within = self.step_time.prefill_tokens_within(self.config.step_latency_target)
            if within is not None:
                budget = min(budget, within)
        return budget

    def _plan(self, plan: _StepPlan, request: Request, share: int) -> None:
        start = request.num_computed
        samples = share == request.num_remaining and request.num_tokens < request.max_total_tokens
        if request.is_decoding:
            plan.num_decodes += 1
        else:
            plan.num_prefill_tokens += share
        plan.scheduled.append(
            ScheduledRequest(request, start, share, samples, request.scores_prompt)
        )

    def _reserve(self, request: Request, num_new_tokens: int) -> bool:
        """Get the blocks that `num_new_tokens` more need, at the cost of younger requests if need be.

        False if `request` itself, being the youngest, had to give way.
        """
        block_size = self.cache.block_size
        num_blocks = -(-(request.num_computed + num_new_tokens) // block_size)
        missing = num_blocks - len(request.block_table)
        while missing > 0:
            blocks = self.cache.allocate(missing)
            if blocks is not None:
                request.block_table.extend(blocks)
                break
            victim = max(self.running, key=lambda r: r.age)
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def _preempt(self, request: Request) -> None:
        """Send a running request back to wait; what it computed stays cached until it is evicted."""
        self.running.remove(request)
        self._give_up_blocks(request)
        request.status = RequestStatus.PREEMPTED
        request.match_generation = -1
        self.waiting.add(request)
        self.counters.preemptions += 1

    def _give_up_blocks(self, request: Request, *, keep: bool = True) -> None:
        never_copied = self._block_copies.pop(request, None) is not None
        if keep and not never_copied:
            self._commit(request)
        assert request.handle is not None
        num_shared = request.handle.num_tokens // self.cache.block_size
        try:
            self.cache.free(request.block_table[num_shared:])
            self.cache.release(request.handle)
        except (IntegrityError, ValueError):
            self.audit()
            _give_up_what_is_left(self.cache, request.handle, request.block_table[num_shared:])
        request.handle = None
        request.block_table = []
        request.num_computed = 0
        self._free_rows.append(request.row)
        request.row = -1
        request.num_synced_blocks = 0

    def _commit(self, request: Request) -> None:
        """Make the computed tokens of a running request visible in the tree."""
        assert request.handle is not None
        if request.num_computed > request.handle.num_tokens:
            # Commit may replace blocks that others computed too, from the old handle's end on.
            num_shared = request.handle.num_tokens // self.cache.block_size
            request.num_synced_blocks = min(request.num_synced_blocks, num_shared)
            try:
                request.handle = self.cache.commit(
                    request.handle,
                    request.token_ids,
                    request.block_table,
                    num_tokens=request.num_computed,
                )
            except (IntegrityError, ValueError):
                self.audit()  # the request goes on with its own blocks, unshared

    def _admit(self, candidates: Sequence[Request], plan: _StepPlan) -> None:
        """Admit waiting requests while there are rows, tokens and blocks for them.

        Rows are kept for those who wait for a sibling that computes their prefix: it takes a few steps,
        and strangers that took the rows meanwhile would part the family for as long as they run.
        """
        budget = self._prefill_budget(plan.num_decodes) - plan.num_prefill_tokens
        promised = self._promised()
        num_kept_rows = 0
        for request in candidates:
            if budget <= 0 or len(self._free_rows) <= num_kept_rows:
                return
            if self._waits_for_leader(request):
                num_kept_rows += self._waits_for_sibling(request)
                continue
            if not self._start(request, promised):
                if request.num_overtaken >= self.config.max_overtakes:
                    return  # nobody passes it again: running requests will make room
                continue
            share = self._first_share(request, budget, plan)
            promised += self._num_missing_blocks(request)
            budget -= share
            if _count_overtaking(request, candidates, self.config.max_overtakes):
                return

    def _refresh_match(self, request: Request) -> None:
        if request.match_generation != self.cache.generation:
            request.match_generation = self.cache.generation
            usable = request.token_ids[: request.num_reusable]
            request.num_matched = self.cache.match(usable, request.namespace)

    def _waits_for_leader(self, request: Request) -> bool:
        if not self._share_inflight:
            return False
        self._refresh_match(request)
        return must_wait(request, self.running, self.cache.block_size)

    def _waits_for_sibling(self, request: Request) -> bool:
        leader = request.leader
        return leader is not None and request.group != "" and leader.group == request.group

    def _num_missing_blocks(self, request: Request) -> int:
        """Blocks that a request still needs for the tokens it has, and for the next one."""
        needed = -(-(request.num_tokens + 1) // self.cache.block_size)
        return max(0, needed - len(request.block_table))

    def _start(self, request: Request, promised: int) -> bool:
        """Let a waiting request run on top of its cached prefix, if its blocks can be had.

        `promised` blocks stay reserved for the running requests, and one more for each of them, so
        that an admission is not paid for with a preemption in the next steps. Alone, a request always
        fits: the pool holds one of the greatest length.
        """
        handle = self.cache.acquire(
            request.token_ids,
            request.namespace,
            max_tokens=request.num_reusable,
            count=not request.queried,
        )
        request.queried = True
        request.block_table = list(handle.block_ids)
        needed = self._num_missing_blocks(request) + promised + len(self.running)
        if self.running and needed > self.cache.num_available:
            self.cache.release(handle)
            request.block_table = []
            return False
        request.handle = handle
        request.num_computed = handle.num_tokens
        request.row = self._free_rows.pop()
        request.status = RequestStatus.RUNNING
        self.waiting.remove(request)
        self.running.append(request)
        return True

    def _first_share(self, request: Request, budget: int, plan: _StepPlan) -> int:
        """Plan the first step of a request that was just admitted; returns its tokens."""
        handle = request.handle
        assert handle is not None
        if handle.tail_block is not None:
            # The match ends inside a block: that block is copied, and the copy written on.
            copied = self._take(1)
            request.block_table.extend(copied)
            self._block_copies[request] = (handle.tail_block, copied[0])
            request.num_computed += handle.tail_len
            self.counters.copied_blocks += 1
        if request.num_cached_tokens is None:
            request.num_cached_tokens = request.num_computed
            self.counters.prompt_tokens += request.num_prompt_tokens
            self.counters.prefix_hit_tokens += request.num_computed
        share = _limit_scored(request, min(request.num_remaining, budget))
        num_blocks = -(-(request.num_computed + share) // self.cache.block_size)
        request.block_table.extend(self._take(num_blocks - len(request.block_table)))
        self._plan(plan, request, share)
        return share

    def _take(self, num_blocks: int) -> list[int]:
        """Blocks that admission has made sure of."""
        blocks = self.cache.allocate(num_blocks)
        if blocks is None:
            raise OutOfBlocks(
                f"The KV cache cannot give {num_blocks} blocks that admission counted on "
                f"({self.cache.num_available} of {self.cache.num_blocks} are available)."
            )
        return blocks


def _limit_scored(request: Request, num_tokens: int) -> int:
    return min(num_tokens, MAX_SCORED_TOKENS) if request.scores_prompt else num_tokens


def _count_overtaking(admitted: Request, candidates: Sequence[Request], limit: int) -> bool:
    """Note who was overtaken; whether that took anyone to the limit, so that the order has changed."""
    reached = False
    for request in candidates:
        if request.status is not RequestStatus.RUNNING and request.arrival < admitted.arrival:
            request.num_overtaken += 1
            reached = reached or request.num_overtaken == limit
    return reached


def _give_up_what_is_left(cache: PrefixCache, handle: PrefixHandle, block_ids: list[int]) -> None:
    """Return blocks and a handle to a cache that was repaired: what it does not know of is its own."""
    for block_id in block_ids:
        with suppress(ValueError):
            cache.free([block_id])
    with suppress(ValueError):
        cache.release(handle)
