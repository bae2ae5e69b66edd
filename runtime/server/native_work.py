"""One request of /generate, from its fields to its result. Knows no HTTP and no stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Annotated, Any

import msgspec
from fastapi import Request
from msgspec import Meta

from ..engine.arrivals import check_logprob_start
from ..errors import InvalidRequest
from ..request import MAX_LOGPROBS, FinishReason, SamplingParams, TokenLogprobs
from ..text.seams import kept_tokens, option_prompts
from ..text.tokenizer import Tokenizer
from .generation import Generation, Job, Prompt, Sample
from .intake import ServerContext, prepare_job
from .protocol import AtLeastZero, GenerationRequest, check_common, sampling_params

DEFAULT_MAX_TOKENS = 128
MAX_OPTIONS = 256

# Fields of the shared base that mean nothing here: what they ask for is always, or never, so.
_REFUSED = (
    "stream_options",
    "truncate_prompt_tokens",
    "truncation_side",
    "add_special_tokens",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "service_tier",
    "metadata",
    "rid",
    "prompt_logprobs",
)

ShowText = Callable[[int, str, list[dict[str, Any]]], None]


class GenerateItem(GenerationRequest, frozen=True, kw_only=True):
    """One request of /generate; see there.

    Attributes:
        group: a name for requests of several calls that are siblings; those of one call always are.
        options: score these instead of generating.
        unconditional: score each option without the prompt, too.
        logprobs: likeliest tokens to list beside each sampled one.
        logprob_start_len: the prompt's tokens from this position on are scored too; -1 is none. Means
            nothing without `logprobs`.
    """

    input_ids: list[int] | None = None
    text: str | None = None
    group: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    options: Annotated[list[str], Meta(min_length=1, max_length=MAX_OPTIONS)] | None = None
    unconditional: bool | None = None
    max_tokens: AtLeastZero | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    logprob_start_len: Annotated[int, Meta(ge=-1)] | None = None

    @property
    def scored_from(self) -> int | None:
        """The position from which the prompt is scored; None if it is not."""
        start = self.logprob_start_len
        return None if start in (None, -1) or self.logprobs is None else start


@dataclass(frozen=True, slots=True)
class Work:
    """A request that is ready for the engine.

    Attributes:
        job: its prompts and samples.
        run: waits for the generation of `job` and makes the result; shows text as it comes.
    """

    job: Job
    run: Callable[[Generation, ShowText], Any]


async def prepare_work(
    context: ServerContext, request: Request, item: GenerateItem, arrived: float
) -> Work:
    """Check a request and tokenize it.

    Raises:
        InvalidRequest: its fields contradict each other or do not apply.
        ContextLengthExceeded: the prompt leaves no room for the answer.
    """
    for name in _REFUSED:
        if getattr(item, name) is not None:
            raise InvalidRequest(f"{name} does not apply to /generate.", param=name)
    check_common(item)
    if not item.input_ids and not item.text and item.options is None:
        raise InvalidRequest("text or input_ids must be given.", param="text")
    if item.unconditional and item.options is None:
        raise InvalidRequest("unconditional needs options.", param="unconditional")
    if item.options is not None:
        return await _scoring(context, request, item, arrived)
    return await _generating(context, request, item, arrived)


async def _generating(
    context: ServerContext, request: Request, item: GenerateItem, arrived: float
) -> Work:
    tokenizer = context.model.tokenizer
    ids, text = item.input_ids or [], item.text or ""
    max_tokens = DEFAULT_MAX_TOKENS if item.max_tokens is None else item.max_tokens
    params = sampling_params(item, max_tokens=max_tokens, logprobs=item.logprobs)
    job = await prepare_job(
        context,
        request,
        item,
        params=params,
        encode=lambda: [Prompt([*ids, *tokenizer.encode(text, not ids)], text)],
        param="text",
        arrived=arrived,
    )
    job = _scoring_prompt(job, item)

    async def run(generation: Generation, show: ShowText) -> dict[str, Any]:
        answers = [_Answer(sample, params) for sample in generation.samples]
        async with aclosing(generation.deltas()) as steps:
            async for sample, delta in steps:
                if delta is None:
                    continue
                answer = answers[sample.index]
                answer.text += delta.text
                answer.token_ids += delta.token_ids
                answer.logprobs += [_entry(tokenizer, entry) for entry in delta.logprobs]
                if delta.text:
                    show(sample.index, delta.text, answer.logprobs[answer.num_shown :])
                    answer.num_shown = len(answer.logprobs)
        return {
            "prompt_ids": job.prompts[0].ids[len(ids) :],
            "num_prompt_tokens": len(job.prompts[0].ids),
            "num_cached_tokens": generation.usage.cached_tokens,
            "samples": [answer.as_dict(context) for answer in answers],
            **_prompt_entries(tokenizer, item, generation.samples[0]),
        }

    return Work(job, run)


def _scoring_prompt(job: Job, item: GenerateItem) -> Job:
    """The job with the log-probabilities that the item wants of its prompt, which one sample is to bring."""
    start = item.scored_from
    if start is None:
        return job
    check_logprob_start(start, len(job.prompts[0].ids))
    first = replace(job.params[0], prompt_logprobs=item.logprobs, prompt_logprobs_start=start + 1)
    return replace(job, params=(first, *job.params[1:]))


def _prompt_entries(tokenizer: Tokenizer, item: GenerateItem, sample: Sample) -> dict[str, Any]:
    start = item.scored_from
    if start is None:
        return {}
    token_id = sample.prompt.ids[start]
    unscored = {"token_id": token_id, "token": tokenizer.token_text(token_id), "logprob": None}
    unscored |= {"top_ids": [], "top_tokens": [], "top_logprobs": []}
    scored = [_entry(tokenizer, entry) for entry in sample.prompt_logprobs]
    return {"prompt_logprobs": [unscored, *scored]}


def _entry(tokenizer: Tokenizer, entry: TokenLogprobs) -> dict[str, Any]:
    return {
        "token_id": entry.token_id,
        "token": tokenizer.token_text(entry.token_id),
        "logprob": entry.logprob,
        "top_ids": entry.top_ids,
        "top_tokens": [tokenizer.token_text(token_id) for token_id in entry.top_ids],
        "top_logprobs": entry.top_logprobs,
    }


class _Answer:
    """What one sample has said so far; `num_shown` of its log-probabilities have been sent."""

    def __init__(self, sample: Sample, params: SamplingParams) -> None:
        self.text = ""
        self.token_ids: list[int] = []
        self.logprobs: list[dict[str, Any]] = []
        self.num_shown = 0
        self._sample = sample
        self._params = params

    def as_dict(self, context: ServerContext) -> dict[str, Any]:
        sample, params = self._sample, self._params
        num_kept, rest = len(self.token_ids), ""
        if sample.stop_reason in params.stop_strings:
            num_kept, rest = kept_tokens(
                context.model.tokenizer,
                self.token_ids,
                self.text,
                skip_special_tokens=params.skip_special_tokens,
            )
        elif self._ended_by_token(context) and not params.include_stop_str_in_output:
            num_kept -= 1
        return {
            "text": self.text,
            "token_ids": self.token_ids,
            "num_kept": num_kept,
            "rest": rest,
            "finish_reason": sample.finish_reason,
            "stop_reason": sample.stop_reason,
            "logprobs": None if params.logprobs is None else self.logprobs,
        }

    def _ended_by_token(self, context: ServerContext) -> bool:
        sample = self._sample
        if sample.finish_reason is not FinishReason.STOP or isinstance(sample.stop_reason, str):
            return False
        return self.token_ids[-1] in (*context.client.info.eos_token_ids, sample.stop_reason)


async def _scoring(
    context: ServerContext, request: Request, item: GenerateItem, arrived: float
) -> Work:
    allowed = {"input_ids", "text", "options", "unconditional", "model", "stream"}
    allowed |= {"cache_salt", "group", "priority", "timeout", "request_id"}
    for field in msgspec.structs.fields(item):
        if field.name not in allowed and getattr(item, field.name) is not None:
            raise InvalidRequest(
                f"{field.name} does not apply to a request with options.", param=field.name
            )
    tokenizer = context.model.tokenizer
    options = item.options or []
    scored = await asyncio.to_thread(
        option_prompts, tokenizer, item.input_ids or [], item.text or "", options
    )
    prompts = [Prompt(ids, "") for ids in scored.ids]
    bare_start = len(tokenizer.encode("", True))
    if item.unconditional:
        bare = [[*tokenizer.encode("", True), *ids[scored.start :]] for ids in scored.ids]
        prompts += [Prompt(ids, "") for ids in bare if ids]
    job = await prepare_job(
        context,
        request,
        item,
        params=SamplingParams(
            max_tokens=0, temperature=0.0, prompt_logprobs=0, prompt_logprobs_start=scored.start
        ),
        encode=lambda: prompts,
        param="options",
        arrived=arrived,
    )
    # Without the prompt nearly every token of an option counts.
    bare_params = [replace(p, prompt_logprobs_start=0) for p in job.params[len(options) :]]
    job = replace(job, params=(*job.params[: len(options)], *bare_params))

    async def run(generation: Generation, show: ShowText) -> dict[str, Any]:
        async with aclosing(generation.deltas()) as steps:
            async for _ in steps:
                pass
        return {
            "num_prompt_tokens": sum(len(ids) for ids in scored.ids),
            "num_cached_tokens": sum(
                sample.num_cached_tokens for sample in generation.samples[: len(options)]
            ),
            "options": [
                {
                    "text": option,
                    "token_ids": scored.ids[index][scored.start :],
                    "tokens": [
                        tokenizer.token_text(id_) for id_ in scored.ids[index][scored.start :]
                    ],
                    "logprobs": _tail(generation.samples[index], scored.start),
                    **(
                        {
                            "unconditional_logprobs": _tail(
                                generation.samples[len(options) + index], bare_start
                            )
                        }
                        if item.unconditional
                        else {}
                    ),
                }
                for index, option in enumerate(options)
            ],
        }

    return Work(job, run)


def _tail(sample: Sample, start: int) -> list[float]:
    """Log-probabilities of the prompt's tokens from `start`; the very first token has none, or 0."""
    num_tokens = len(sample.prompt.ids) - start
    values = [entry.logprob for entry in sample.prompt_logprobs]
    values = values[len(values) - min(num_tokens, len(values)) :]
    return [0.0] * (num_tokens - len(values)) + values
