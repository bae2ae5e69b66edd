"""/v1/completions: prompts in, the text that follows each of them out."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from fastapi import Request, Response

from ..errors import InvalidRequest
from ..request import SamplingParams
from .answer import answer_head, choice_end
from .body import convert, read_object
from .generation import Delta, Generation, Job, Prompt, Sample
from .intake import ServerContext, begin, prepare_job
from .logprobs import CompletionLogprobs, TokenNames, joined, prompt_logprobs
from .protocol import CompletionRequest, check_completion, parse_prompts, sampling_params
from .refusals import COMPLETION, refuse
from .stream import ChunkSkeleton, respond

DEFAULT_MAX_TOKENS = 16
MAX_CHOICES = 1024

_encode = msgspec.json.encode


class CompletionRoute:
    """Answers completion requests for the served model."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    async def create(self, request: Request) -> Response:
        """Answer one request, whole or as a stream."""
        arrived = time.perf_counter()
        context = self._context
        raw = await read_object(request)
        body = convert(raw, CompletionRequest)
        context.model.check_name(body.model)
        refuse(raw, COMPLETION)
        check_completion(body)
        prompts = parse_prompts(body.prompt)
        if len(prompts) * body.num_samples > MAX_CHOICES:
            raise InvalidRequest(
                f"prompt and n ask for {len(prompts) * body.num_samples} choices; "
                f"at most {MAX_CHOICES} fit one request.",
                param="prompt",
            )
        params = completion_params(body)
        context.lifecycle.check_accepting()
        job = await prepare_job(
            context,
            request,
            body,
            params=params,
            encode=lambda: [_encoded(context, body, prompt) for prompt in prompts],
            param="prompt",
            arrived=arrived,
        )
        answer = CompletionAnswer(context, body, job)
        context.lifecycle.check_accepting()
        generation = begin(context, job, is_patient=not body.stream)
        return await respond(request, generation, answer, stream=bool(body.stream))


def completion_params(body: CompletionRequest) -> SamplingParams:
    """How `body` wants its tokens chosen; an echo with log-probabilities scores the prompt too."""
    max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    if body.echo and body.logprobs is not None:
        scored = max(body.logprobs, body.prompt_logprobs or 0)
        body = msgspec.structs.replace(body, prompt_logprobs=scored)
    return sampling_params(body, max_tokens=max_tokens, logprobs=body.logprobs)


def _encoded(context: ServerContext, body: CompletionRequest, prompt: str | list[int]) -> Prompt:
    tokenizer = context.model.tokenizer
    if isinstance(prompt, str):
        return Prompt(tokenizer.encode(prompt, body.add_special_tokens is not False), prompt)
    if not body.echo:
        return Prompt(prompt, "")
    valid = [token_id for token_id in prompt if token_id >= 0]
    return Prompt(prompt, tokenizer.decode(valid, body.skip_special_tokens is not False))


class CompletionAnswer:
    """The JSON of one answer, as a whole or in chunks."""

    def __init__(self, context: ServerContext, body: CompletionRequest, job: Job) -> None:
        self._body = body
        self._job = job
        self._names = TokenNames(
            context.model.tokenizer, as_ids=bool(body.return_tokens_as_token_ids)
        )
        self._logprobs = [CompletionLogprobs(self._names, echo=bool(body.echo)) for _ in job.params]
        self._head = answer_head(context, body, job, prefix="cmpl", kind="text_completion")

    async def whole(self, generation: Generation) -> bytes:
        """Wait for all samples, and return the answer."""
        deltas: list[list[Delta]] = [[] for _ in generation.samples]
        async with aclosing(generation.deltas()) as steps:
            async for sample, delta in steps:
                if delta is not None:
                    deltas[sample.index].append(delta)
        choices = [
            self._whole_choice(sample, deltas[sample.index]) for sample in generation.samples
        ]
        answer = {**self._head, "choices": choices, "usage": generation.usage.as_dict()}
        if self._body.metadata is not None:
            answer["metadata"] = self._body.metadata
        return _encode(answer)

    def _whole_choice(self, sample: Sample, deltas: Sequence[Delta]) -> dict[str, Any]:
        text, pieces = self._echo(sample)
        text += "".join([delta.text for delta in deltas])
        if self._body.logprobs is not None:
            builder = self._logprobs[sample.index]
            tokens = [token for delta in deltas for token in delta.logprobs]
            pieces += [builder.extend(tokens, ends=True)]
        choice: dict[str, Any] = {
            "index": sample.index,
            "text": text,
            "logprobs": joined(pieces) if pieces else None,
            "finish_reason": sample.finish_reason,
            "stop_reason": sample.stop_reason,
        }
        if self._body.return_token_ids:
            choice["token_ids"] = [i for delta in deltas for i in delta.token_ids]
            choice["prompt_token_ids"] = sample.prompt.ids
        if self._body.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(self._names, sample.prompt_logprobs)
        return choice

    async def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """Yield the answer's events.

        A choice opens with a chunk of its own only if there is something to say before its text:
        an echo of the prompt, or the prompt's tokens. What adds nothing to a choice is an empty event.
        """
        skeleton = ChunkSkeleton(self._head, self._body.continuous_usage)
        prefixes = [b'{"index":%d,"text":' % sample.index for sample in generation.samples]
        opened: set[int] = set()
        async with aclosing(generation.deltas()) as steps:
            async for sample, delta in steps:
                if sample.index not in opened:
                    opened.add(sample.index)
                    if self._body.echo or self._body.return_token_ids:
                        yield skeleton.chunk(self._opening(sample), generation)
                if delta is None:
                    yield b""
                else:
                    choice = self._choice(prefixes[sample.index], sample, delta)
                    yield skeleton.chunk(choice, generation)
        if self._body.include_usage:
            yield skeleton.last(generation)

    def _echo(self, sample: Sample) -> tuple[str, list[dict[str, Any]]]:
        """What stands before a choice's own text: the echoed prompt and its log-probabilities."""
        if not self._body.echo:
            return "", []
        if self._body.logprobs is None:
            return sample.prompt.text, []
        echoed = self._logprobs[sample.index].echo(sample.prompt.ids, sample.prompt_logprobs)
        return sample.prompt.text, [echoed]

    def _opening(self, sample: Sample) -> bytes:
        text, pieces = self._echo(sample)
        choice: dict[str, Any] = {
            "index": sample.index,
            "text": text,
            "logprobs": pieces[0] if pieces else None,
            "finish_reason": None,
        }
        if self._body.return_token_ids:
            choice["prompt_token_ids"] = sample.prompt.ids
        return _encode(choice)

    def _choice(self, prefix: bytes, sample: Sample, delta: Delta) -> bytes:
        parts = [prefix, _encode(delta.text), b',"logprobs":']
        if self._body.logprobs is not None and delta.logprobs:
            ends = delta.finish_reason is not None
            parts.append(_encode(self._logprobs[sample.index].extend(delta.logprobs, ends=ends)))
        else:
            parts.append(b"null")
        parts += choice_end(delta, sample, with_ids=bool(self._body.return_token_ids))
        return b"".join(parts)
