"""Running the samples of one HTTP request, and joining what comes back.

    Prompt       what the samples continue
    Job          prompts x samples with everything that the engine must know
    Sample       one answer as it grows: text, tokens, log-probabilities
    Generation   all samples of a job, while the engine runs them

Knows the engine's seam and the text layer; knows no JSON and no route.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace

import msgspec

from ..engine.client import EngineClient
from ..engine.messages import GenerateRequest
from ..errors import (
    CapacityError,
    DeadlineExceeded,
    EngineError,
    InvalidRequest,
    ServerDraining,
)
from ..execution.randomness import derive_seed
from ..request import FinishReason, RequestOutput, SamplingParams, TokenLogprobs
from ..structured.constraint import Constraint
from ..text.detokenizer import IncrementalDetokenizer
from ..text.tokenizer import Tokenizer
from .metrics import ServerMetrics

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a sample continues: token ids, and the text that an echo shows for them."""

    ids: list[int]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One HTTP request, ready for the engine.

    Attributes:
        request_id: unique; the samples' ids start with it.
        prompts: at least one.
        params: of each sample of each prompt: `num_samples` per prompt, prompt after prompt.
        num_samples: samples per prompt.
        arrived: when the HTTP request came, on `time.perf_counter`'s clock.
        namespace, tenant, priority, timeout: as in `GenerateRequest`.
        session, retain: as there; `retain` only with a single sample.
        shown_ids: special tokens that are text of the answers all the same.
        group: of all samples, as there; "" makes the samples of each prompt a group.
    """

    request_id: str
    prompts: tuple[Prompt, ...]
    params: tuple[SamplingParams, ...]
    num_samples: int
    arrived: float
    namespace: str
    group: str = ""
    session: str = ""
    retain: float | None = None
    tenant: str = ""
    priority: int = 0
    timeout: float | None = None
    shown_ids: frozenset[int] = frozenset()


class Delta(msgspec.Struct, frozen=True):
    """What is new of one sample.

    Attributes:
        text: whole characters; with the tokens below it makes a chunk.
        token_ids: the tokens that the text comes from.
        logprobs: one entry per token, if they were asked for.
        finish_reason: None while the sample goes on.
    """

    text: str
    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprobs]
    finish_reason: FinishReason | None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one HTTP request; each prompt counts once, however many samples it has."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    def as_dict(self) -> dict[str, object]:
        """As OpenAI's clients read it."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": 0},
        }


class Sample:
    """One answer, as it grows.

    Tokens whose text is held back (part of a character, or the possible start of a stop string) are
    held back with it, and their log-probabilities too: clients drop those of chunks without text.

    Attributes:
        index: its place among the choices of the answer.
        prompt: what it continues.
        finish_reason: None while it goes on.
        stop_reason: the stop string, pattern or stop token id that ended it, if one did.
        prompt_logprobs: of all prompt tokens but the first, if they were asked for.
        num_cached_tokens: prompt tokens whose KV the engine found.
        num_output_tokens: tokens sampled so far.
    """

    def __init__(
        self,
        index: int,
        prompt: Prompt,
        params: SamplingParams,
        tokenizer: Tokenizer,
        *,
        shown_ids: frozenset[int] = frozenset(),
    ) -> None:
        self.index = index
        self.prompt = prompt
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None
        self.prompt_logprobs: tuple[TokenLogprobs, ...] = ()
        self.num_cached_tokens = 0
        self.num_output_tokens = 0
        self.last_token_at: float | None = None
        self._keep_stop = params.include_stop_str_in_output
        self._held_ids: list[int] = []
        self._held_logprobs: list[TokenLogprobs] = []
        self._detokenizer = IncrementalDetokenizer(
            tokenizer,
            stop=params.stop_strings,
            include_stop=params.include_stop_str_in_output,
            skip_special_tokens=params.skip_special_tokens,
            shown_ids=shown_ids,
            min_tokens=params.min_tokens,
        )

    def update(self, output: RequestOutput) -> Delta | None:
        """Take in what one step added; return what can be sent of it, or None if all is held."""
        if output.prompt_logprobs:
            self.prompt_logprobs = output.prompt_logprobs
        self.num_cached_tokens = output.num_cached_tokens
        self.num_output_tokens = output.num_output_tokens
        text = self._text_of(output)
        self._held_ids += output.token_ids
        self._held_logprobs += output.logprobs
        if not text and self.finish_reason is None:
            return None
        delta = Delta(text, self._held_ids, self._held_logprobs, self.finish_reason)
        self._held_ids, self._held_logprobs = [], []
        return delta

    def _text_of(self, output: RequestOutput) -> str:
        shown = output.token_ids
        if output.ended_by_token and not self._keep_stop:
            # The last token is the end or stop token itself, which is no part of the answer.
            shown = shown[:-1]
        piece = self._detokenizer.push(shown)
        if piece.stop_match is not None:
            self.finish_reason, self.stop_reason = FinishReason.STOP, piece.stop_match
            return piece.text
        if output.finish_reason is not None:
            self.finish_reason, self.stop_reason = output.finish_reason, output.stop_reason
            return piece.text + self._detokenizer.finish()
        return piece.text


class Generation:
    """All samples of a job, submitted to the engine."""

    def __init__(
        self,
        job: Job,
        client: EngineClient,
        tokenizer: Tokenizer,
        metrics: ServerMetrics,
        *,
        is_patient: bool = False,
    ) -> None:
        """Submit the job, all of it or nothing.

        With `is_patient` deltas may come late, as long as all have come when a sample has finished.

        Raises:
            QueueFull: the engine holds as many requests as it is willing to.
            EngineDead: the engine is not ready.
        """
        self._job = job
        self._metrics = metrics
        self.samples = [
            Sample(
                index,
                job.prompts[index // job.num_samples],
                params,
                tokenizer,
                shown_ids=job.shown_ids,
            )
            for index, params in enumerate(job.params)
        ]
        requests = [
            GenerateRequest(
                request_id=f"{job.request_id}-{sample.index}",
                prompt_ids=sample.prompt.ids,
                params=params,
                namespace=job.namespace,
                group=job.group or f"{job.request_id}-{sample.index // job.num_samples}",
                session=job.session,
                retain=job.retain,
                tenant=job.tenant,
                priority=job.priority,
                timeout=job.timeout,
            )
            for sample, params in zip(self.samples, job.params, strict=True)
        ]
        self._by_id = {
            request.request_id: sample
            for request, sample in zip(requests, self.samples, strict=True)
        }
        self._num_running = len(self.samples)
        self._stream = client.submit(requests, is_patient=is_patient)

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        firsts = self.samples[:: self._job.num_samples]
        return Usage(
            prompt_tokens=sum(len(prompt.ids) for prompt in self._job.prompts),
            completion_tokens=sum(sample.num_output_tokens for sample in self.samples),
            cached_tokens=sum(sample.num_cached_tokens for sample in firsts),
        )

    @property
    def may_be_refused(self) -> bool:
        """Whether only the engine can say that the request is valid."""
        return self._constraint is not None

    @property
    def is_ahead(self) -> bool:
        """Whether what `deltas` does next, yield or end, takes no waiting."""
        return self._num_running == 0 or self._stream.has_unread

    @property
    def _constraint(self) -> Constraint | None:
        return self._job.params[0].constraint

    def abort(self) -> None:
        """End what still runs. Safe to call twice, and after the end."""
        # A patient stream holds nearly all outputs until its end, and its client may leave before.
        for output, arrived in self._stream.abort():
            self._observe(self._by_id[output.request_id], output, arrived)

    async def deltas(self) -> AsyncGenerator[tuple[Sample, Delta | None], None]:
        """Yield what each step adds, until all samples have finished. Aborts nothing by itself.

        A delta is None when the step's text is still held back, or comes after a sample's end.

        Raises:
            DeadlineExceeded: the request's own time limit passed.
            ServerDraining: the engine was stopped.
            InvalidRequest: the engine cannot serve the request; mostly, its constraint is no good.
            CapacityError: the machine was too busy.
            EngineError: the engine failed on a sample, or died.
        """
        async for output in self._stream:
            sample = self._by_id[output.request_id]
            if sample.finish_reason is not None:
                yield sample, None
                continue
            if output.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
                raise self._failure(output)
            self._observe(sample, output, self._stream.arrived)
            delta = sample.update(output)
            self._num_running -= sample.finish_reason is not None
            if self._num_running == 0:
                self._observe_end()
            yield sample, delta
            if self._num_running == 0:
                return
        raise EngineError("The engine's answer ended before all samples had finished.")

    def _failure(self, output: RequestOutput) -> Exception:
        if output.invalid:
            constraint = self._constraint
            param = None if constraint is None else constraint.param
            return InvalidRequest(output.error or "The request is not valid.", param=param)
        if output.overloaded:
            return CapacityError(output.error or "The request cannot be served now.")
        timeout = self._job.timeout
        if timeout is not None and time.perf_counter() - self._job.arrived >= timeout:
            return DeadlineExceeded(
                f"The request's time limit of {timeout:g} seconds passed.", param="timeout"
            )
        if output.finish_reason is FinishReason.ABORT:
            return ServerDraining("The server shut down before the answer was finished.")
        logger.error("request %s failed in the engine: %s", output.request_id, output.error)
        return EngineError(output.error or "The engine failed on this request.")

    def _observe(self, sample: Sample, output: RequestOutput, arrived: float) -> None:
        if not output.token_ids:
            return
        if sample.last_token_at is None:
            self._metrics.observe_first_token(arrived - self._job.arrived)
        else:
            self._metrics.observe_inter_token(arrived - sample.last_token_at, len(output.token_ids))
        sample.last_token_at = arrived

    def _observe_end(self) -> None:
        usage = self.usage
        self._metrics.observe_finished(
            time.perf_counter() - self._job.arrived,
            usage.prompt_tokens,
            usage.cached_tokens,
            usage.completion_tokens,
        )


def samples_params(
    params: SamplingParams, num_samples: int, limits: Sequence[int], seed: int
) -> tuple[SamplingParams, ...]:
    """`params` for every sample of every prompt, each with its own seed.

    Sample i of every prompt has the same seed, so that a prompt's answers do not depend on which
    other prompts came with it.

    Args:
        limits: most tokens to generate, per prompt.
        seed: of the request.
    """
    seeds = [derive_seed(seed, index) for index in range(num_samples)]
    return tuple(replace(params, max_tokens=limit, seed=s) for limit in limits for s in seeds)
