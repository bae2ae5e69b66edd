"""The engine itself: requests in, token ids out, one step at a time.

    add / abort ─▶ Scheduler.schedule ─▶ ModelRunner.run ─▶ Sampler.sample ─▶ Scheduler.update ─▶ outputs

Single-threaded and without I/O: whoever owns it calls `step` while `has_work`. It knows token ids only,
except that requests with stop strings get a detokenizer, since their text decides when they end.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping

import torch

from ramet.radix import IntegrityError, PrefixCache

from ..config import SchedulerConfig
from ..errors import CapacityError, OutOfBlocks, RametError, RequestError
from ..execution.model_runner import ModelRunner
from ..execution.sampler import Sampler, prompt_logprobs
from ..request import (
    FinishReason,
    Request,
    RequestOutput,
    RequestStatus,
    TokenLogprobs,
)
from ..scheduler import ScheduleBatch, ScheduledRequest, Scheduler
from ..structured.grammar import Vocabulary
from ..structured.service import GrammarService
from ..text.tokenizer import Tokenizer
from .arrivals import check_retention, make_request, refusal
from .constrained import ConstrainedRequests, Progress
from .deadlines import Deadlines
from .live import End, LiveRequest
from .messages import EngineInfo, EngineStats, GenerateRequest, Release, Retain
from .retention import Retention

logger = logging.getLogger(__name__)

AUDIT_INTERVAL = 60.0
"""Seconds between two recounts of the cache; they take place when the last request has ended."""

GRAMMAR_WAIT = 0.002
"""Seconds that a step with nothing to run waits for a grammar, and a new message therefore too."""


class EngineCore:
    """One model, its cache and its live requests.

    Args:
        info: what was resolved while loading.
        retention: over the same cache.
        tokenizer: for stop strings.
        clock: seconds, monotonic; measures steps and deadlines.
    """

    def __init__(
        self,
        *,
        info: EngineInfo,
        config: SchedulerConfig,
        cache: PrefixCache,
        retention: Retention,
        runner: ModelRunner,
        sampler: Sampler,
        tokenizer: Tokenizer,
        seed: int,
        share_inflight: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.info = info
        self.scheduler = Scheduler(config, cache, share_inflight=share_inflight)
        self._cache = cache
        self._retention = retention
        self._runner = runner
        self._sampler = sampler
        self._tokenizer = tokenizer
        self._seed = seed
        self._clock = clock
        self._live: dict[str, LiveRequest] = {}
        self._outputs: list[RequestOutput] = []
        self._deadlines = Deadlines()
        grammars = GrammarService(
            lambda: Vocabulary(tokenizer, info.vocab_size, info.eos_token_ids)
        )
        self._constrained = ConstrainedRequests(grammars, info.vocab_size)
        self._audited = clock()
        self._num_arrived = 0
        self._num_steps = 0
        self._num_aborts = 0

    def add(self, message: GenerateRequest) -> None:
        """Take a request. One that cannot be served ends with an ERROR output of the next step."""
        try:
            self._add(message)
        except RequestError as error:
            self._outputs.append(refusal(message, str(error), invalid=True))
        except Exception as error:
            # Whatever is wrong with one request is no reason to end the others with the engine.
            logger.exception("request %s could not be taken", message.request_id)
            reason = f"The engine could not take this request: {error}"
            self._outputs.append(refusal(message, reason))

    def abort(self, request_ids: Iterable[str]) -> None:
        """End these requests now, by exact id; ids that are not live are ignored."""
        for request_id in request_ids:
            live = self._live.get(request_id)
            if live is not None:
                self._num_aborts += 1
                self._end(live, FinishReason.ABORT, "The request was aborted.")

    def retain(self, message: Retain) -> None:
        """Keep what is cached of a sequence from being evicted before other things, for a time."""
        try:
            token_ids = check_retention(message, self.info)
        except RequestError as error:  # Its sender should have checked it, and waits for no answer.
            logger.error("session %s retains nothing: %s", message.session, error)
            return
        self._retention.keep(
            message.namespace, message.session, token_ids, message.seconds, message.tenant
        )

    def release(self, message: Release) -> None:
        """Let what a session retains be evicted like anything else."""
        self._retention.release(message.namespace, message.session)

    def has_work(self) -> bool:
        """Whether `step` has anything to do or to hand out."""
        waits = self._constrained.num_compiling > 0
        return bool(self._outputs) or waits or self.scheduler.has_work()

    def step(self) -> list[RequestOutput]:
        """Run one step and return what it produced, with what was ended since the last one."""
        self._expire()
        self._resume()
        batch = self._schedule()
        if batch:
            started = self._clock()
            self._run(batch)
            self._num_steps += 1
            self.scheduler.step_time.observe(
                self._clock() - started, batch.num_decodes, batch.num_prefill_tokens
            )
        elif not self._outputs:
            self._constrained.wait(GRAMMAR_WAIT)
        outputs, self._outputs = self._outputs, []
        return outputs

    def rest(self) -> float | None:
        """Housekeeping, for when there is no work: recounts the cache now and then.

        Returns:
            Seconds until a retained prefix expires, or None.
        """
        self._retention.expire()
        if self._clock() - self._audited > AUDIT_INTERVAL:
            self._audit()
        return self._retention.seconds_left

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix that no running request holds."""
        self._cache.reset()

    def stats(self) -> EngineStats:
        """Counters since the start, and gauges of now."""
        counters, cache = self.scheduler.counters, self._cache.stats
        return EngineStats(
            num_waiting=len(self.scheduler.waiting) + self._constrained.num_compiling,
            num_running=len(self.scheduler.running),
            blocks_total=self._cache.num_blocks,
            blocks_free=self._cache.num_free,
            blocks_cached=self._cache.num_cached,
            blocks_private=self._cache.num_private,
            blocks_pinned=self._cache.num_pinned,
            steps=self._num_steps,
            prompt_tokens=counters.prompt_tokens,
            computed_tokens=counters.computed_tokens,
            generated_tokens=counters.generated_tokens,
            prefix_queried_tokens=counters.prompt_tokens,
            prefix_hit_tokens=counters.prefix_hit_tokens,
            evicted_blocks=cache.evicted_blocks,
            copied_blocks=counters.copied_blocks,
            preemptions=counters.preemptions,
            aborts=self._num_aborts,
            quarantined_blocks=cache.quarantined_blocks,
            blocks_retained=self._cache.num_retained,
            retentions_expired=self._retention.num_expired,
            retentions_given_up=self._retention.num_displaced + cache.num_retractions,
        )

    def check_integrity(self) -> None:
        """Raise if a block is lost or held twice: the cache's own check, and nothing private when idle."""
        self._cache.check_integrity()
        held = sum(
            len(r.block_table) - len(r.handle.block_ids)
            for r in self.scheduler.running
            if r.handle is not None
        )
        if not self.scheduler.running and self._cache.num_private:
            raise AssertionError(f"{self._cache.num_private} private blocks without an owner")
        if self._cache.num_private > held:
            raise AssertionError(f"{self._cache.num_private} private blocks, {held} owned")

    def _add(self, message: GenerateRequest) -> None:
        if message.request_id in self._live:
            raise RequestError(
                f"request_id {message.request_id!r} is live already.", param="request_id"
            )
        request = make_request(
            message,
            self.info,
            arrival=self._num_arrived + 1,
            seed=self._seed,
            now=self._clock(),
        )
        self._num_arrived += 1
        live = LiveRequest(request, self._tokenizer, self.info.eos_token_ids)
        live.session, live.retain, live.tenant = message.session, message.retain, message.tenant
        self._sampler.add(request.request_id, request.params, request.prompt_ids, request.seed)
        try:
            if request.params.constraint is None:
                self._queue(live)
            else:
                self._constrained.add(request, request.params.constraint)
        except Exception:
            self._sampler.remove(request.request_id)
            raise
        self._live[request.request_id] = live
        self._deadlines.add(request)

    def _queue(self, live: LiveRequest) -> None:
        self.scheduler.add(live.request)
        live.is_queued = True

    def _expire(self) -> None:
        self._retention.expire()
        for request in self._deadlines.expired(self._clock()):
            live = self._live[request.request_id]
            self._end(live, FinishReason.ABORT, "The request's time limit passed.")

    def _resume(self) -> None:
        """Let those run whose grammar is compiled, or has caught up with their last token."""
        for request, error in self._constrained.compiled():
            if error is None:
                self._queue(self._live[request.request_id])
            else:
                self._end_failed(request, error)
        for progress in self._constrained.caught_up():
            progress.request.is_paused = False
            self._deliver(progress.request, None, progress)

    def _schedule(self) -> ScheduleBatch | None:
        """The next step; None if the cache's accounting had to be repaired first.

        With blocks in quarantine a request may not fit even alone: then only that one ends.
        """
        try:
            return self.scheduler.schedule()
        except (IntegrityError, OutOfBlocks) as error:
            if self._audit():
                return None
            if isinstance(error, IntegrityError) or not self.scheduler.running:
                raise
            self._discard(self.scheduler.running[-1], f"The request does not fit: {error}")
            return None

    def _audit(self) -> int:
        """Recount the cache, and take out of circulation what cannot be trusted."""
        self._audited = self._clock()
        return self.scheduler.audit()

    def _run(self, batch: ScheduleBatch) -> None:
        """Compute a step. A fault in it ends the requests of this step, and only those."""
        try:
            logits = self._runner.run(batch)
            sampled = self._sample(batch, logits)
        except (RametError, RuntimeError, ValueError, IndexError) as error:
            logger.exception("a step of %d requests failed", len(batch.scheduled))
            for item in batch.scheduled:
                self._discard(item.request, f"The step that ran this request failed: {error}")
            return
        tokens = {request: token for request, (token, _) in sampled.items()}
        self.scheduler.update(batch, tokens)
        progress = self._constrained.advance(tokens)
        for item in batch.scheduled:
            self._emit(item, sampled.get(item.request), progress)

    def _sample(
        self, batch: ScheduleBatch, logits: torch.Tensor
    ) -> dict[Request, tuple[int, TokenLogprobs | None]]:
        """Sample for every request whose last token was run; those with broken logits are ended."""
        rows: list[int] = []
        sampling: list[Request] = []
        row = 0
        for item in batch.scheduled:
            if item.scores_prompt:
                self._score(item, logits[row : row + item.num_new_tokens])
                row += item.num_new_tokens
            elif item.samples:
                row += 1
            if item.samples and item.request.status is RequestStatus.RUNNING:
                rows.append(row - 1)
                sampling.append(item.request)
        if not sampling:
            return {}
        chosen = logits if len(rows) == len(logits) else logits[torch.tensor(rows)]
        request_ids = [request.request_id for request in sampling]
        masks = self._constrained.masks(request_ids)
        result = self._sampler.sample(chosen, request_ids, masks)
        for index, message in result.errors.items():
            self._discard(sampling[index], message)
        return {
            request: (result.token_ids[i], result.logprobs[i])
            for i, request in enumerate(sampling)
            if i not in result.errors
        }

    def _score(self, item: ScheduledRequest, logits: torch.Tensor) -> None:
        """Keep the log-probabilities of the prompt tokens that these rows predict.

        Ends the request if they are not finite.
        """
        request = item.request
        num_top = request.params.prompt_logprobs
        assert num_top is not None
        targets = request.prompt_ids[item.start + 1 : item.start + item.num_new_tokens + 1]
        skipped = max(0, request.params.prompt_logprobs_start - 1 - item.start)
        scored = prompt_logprobs(logits[skipped : len(targets)], targets[skipped:], num_top)
        if any(math.isnan(token.logprob) for token in scored):
            self._discard(
                request, "The model's logits are not finite, so the prompt has no scores."
            )
            return
        # Put at its place, not at the end: a preempted prompt comes by a second time.
        place = item.start + skipped + 1 - max(1, request.params.prompt_logprobs_start)
        self._live[request.request_id].scored[place:] = scored

    def _emit(
        self,
        item: ScheduledRequest,
        sampled: tuple[int, TokenLogprobs | None] | None,
        progress: Mapping[Request, Progress | None],
    ) -> None:
        request = item.request
        if request.status is not RequestStatus.RUNNING:
            return
        if sampled is not None:
            request.is_paused = request in progress and progress[request] is None
            self._deliver(request, sampled, progress.get(request))
        elif request.num_remaining == 0:  # max_tokens is 0: only the prompt was wanted
            live = self._live[request.request_id]
            self._end(live, FinishReason.LENGTH, None)
            self._settle(live)

    def _deliver(
        self,
        request: Request,
        sampled: tuple[int, TokenLogprobs | None] | None,
        progress: Progress | None,
    ) -> None:
        """Hand out a sampled token with those that its grammar forces after it, and end what has ended."""
        if progress is not None and progress.error is not None:
            self._end_failed(request, progress.error)
            return
        live = self._live[request.request_id]
        token_ids: list[int] = []
        end: End = (None, None)
        if sampled is not None:
            token_ids.append(sampled[0])
            end = live.end_at(sampled[0])
        num_forced = 0
        for token_id in () if progress is None else progress.forced:
            if end[0] is not None:
                break
            self.scheduler.append_forced(request, token_id)
            token_ids.append(token_id)
            num_forced += 1
            end = live.end_at(token_id)
        if num_forced:
            self._sampler.record_forced(request.request_id, token_ids[-num_forced:])
        is_complete = (
            progress is not None
            and progress.terminated
            and num_forced == len(progress.forced)
            and end[0] in (None, FinishReason.LENGTH)
        )
        if is_complete:
            end = (FinishReason.STOP, None)
        if end[0] is not None:
            self._forget(live)
            self._settle(live)
        elif not token_ids:
            return
        logprobs = () if sampled is None or sampled[1] is None else (sampled[1],)
        self._outputs.append(
            live.output(token_ids=token_ids, logprobs=logprobs, end=end, ends_with_text=is_complete)
        )

    def _end_failed(self, request: Request, error: RametError) -> None:
        live = self._live[request.request_id]
        self._end(
            live,
            FinishReason.ERROR,
            str(error),
            invalid=isinstance(error, RequestError),
            overloaded=isinstance(error, CapacityError),
        )

    def _end(
        self,
        live: LiveRequest,
        reason: FinishReason,
        error: str | None,
        *,
        keep: bool = True,
        invalid: bool = False,
        overloaded: bool = False,
    ) -> None:
        self._forget(live, keep=keep)
        end = (reason, None)
        self._outputs.append(
            live.output(end=end, error=error, invalid=invalid, overloaded=overloaded)
        )

    def _forget(self, live: LiveRequest, *, keep: bool = True) -> None:
        request = live.request
        self._constrained.remove(request)
        if live.is_queued:
            self.scheduler.finish(request, keep=keep)
        self._sampler.remove(request.request_id)
        del self._live[request.request_id]

    def _settle(self, live: LiveRequest) -> None:
        """An answer of a session is complete: it is what the session retains now, if anything."""
        request = live.request
        if live.retain is not None:
            ids = request.token_ids
            self._retention.keep(request.namespace, live.session, ids, live.retain, live.tenant)
        elif live.session:
            self._retention.release(request.namespace, live.session)

    def _discard(self, request: Request, error: str) -> None:
        """End a request whose newest tokens may be wrong: nothing that this step computed is kept."""
        live = self._live.get(request.request_id)
        if live is not None:
            self._end(live, FinishReason.ERROR, error, keep=False)
