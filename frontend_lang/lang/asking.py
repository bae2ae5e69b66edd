"""What a state asks of its backend: to write, and to choose. Each adds to the state's content.

Knows requests and answers; the order of things is the executor's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from . import nodes
from .backends.base import Generated, GenRequest, Sample, ScoreRequest
from .errors import ProgramError
from .params import Params
from .report import Step
from .tool_calls import parse_tool_calls

if TYPE_CHECKING:
    from .executor import Executor


async def generate(
    executor: Executor, params: Params, name: str | None
) -> tuple[Generated, dict[str, Any]]:
    """Let the model go on; the content grows by the first sample. Returns it and its facts.

    With `max_tokens` 0 and `logprobs` the next token is sampled for its log-probabilities, and dropped.
    """
    content = executor.content
    resolved = await content.resolve(executor.session.frames, generates=True)
    executor.say(resolved.text[content.num_shown :])
    looks = params.max_tokens == 0 and params.logprobs is not None
    follows = executor.log is not None and (params.n or 1) == 1 and not looks
    started = time.perf_counter()
    request = GenRequest(
        prompt=content.prompt(resolved),
        params=replace(params, max_tokens=1) if looks else params,
        on_text=_Shown(executor, name) if follows else None,
        group=executor.session.group,
    )
    async with _limit(params.timeout):
        generated = await executor.ask(request)
    if looks:
        generated = replace(generated, samples=[_dropped(s) for s in generated.samples])
    if not follows:
        executor.say(generated.samples[0].text, name)
    content.commit(resolved, generated)
    meta = _meta(generated, time.perf_counter() - started)
    executor.events.append(Step.of(name, "gen", meta, generated.samples[0].text))
    return generated, meta


@asynccontextmanager
async def _limit(seconds: float | None) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise TimeoutError(f"The time limit of {seconds:g} seconds passed.") from None


class _Shown:
    """Shows readers a variable as it is written, with SGLang's facts if log-probabilities come."""

    def __init__(self, executor: Executor, name: str | None) -> None:
        self._executor = executor
        self._name = name
        self._num_tokens = 0

    def __call__(self, text: str, entries: Sequence[Mapping[str, Any]]) -> None:
        self._num_tokens += len(entries)
        facts = {}
        if entries:
            facts = {
                "completion_tokens": self._num_tokens,
                "output_token_logprobs_length": self._num_tokens,
                **_sglang_logprobs(entries),
            }
        self._executor.say(text, self._name, facts)


def _dropped(sample: Sample) -> Sample:
    return replace(sample, text="", kept_ids=(), rest="", finish_reason="length", stop_reason=None)


async def run_gen(executor: Executor, node: nodes.Gen) -> None:
    """Let the model write, into a variable if it has a name."""
    value, meta = await _write(executor, node)
    if node.name is not None:
        executor.set(node.name, value, meta)


async def _write(executor: Executor, node: nodes.Gen) -> tuple[Any, dict[str, Any]]:
    params = node.params.over(executor.session.defaults)
    generated, meta = await generate(executor, params, node.name)
    texts = [sample.text for sample in generated.samples]
    if node.tools:
        meta["tool_calls"] = parse_tool_calls(texts[0])[1]
    values = [_converted(node, text) for text in texts]
    return (values if params.n is not None and params.n > 1 else values[0]), meta


async def run_separate_reasoning(executor: Executor, node: nodes.SeparateReasoning) -> None:
    """Let the model write, and keep its thinking apart."""
    value, meta = await _write(executor, replace(node.gen, convert=None))
    texts = value if isinstance(value, list) else [value]
    parts = [_separated(node, text) for text in texts]
    executor.content.amend_last(texts[0], parts[0][1])
    if node.gen.name is None:
        return
    thoughts = [thought for thought, _ in parts]
    answers = [_converted(node.gen, answer) for _, answer in parts]
    many = isinstance(value, list)
    executor.set(node.reasoning_name, thoughts if many else thoughts[0], meta)
    executor.set(node.gen.name, answers if many else answers[0], meta)


def _separated(node: nodes.SeparateReasoning, text: str) -> tuple[str, str]:
    before, found, after = text.partition(node.closing)
    if not found:
        return "", text
    return before.strip().removeprefix(node.opening).strip(), after.lstrip()


async def run_select(executor: Executor, node: nodes.Select) -> None:
    """Score the options, and add the one that the method takes."""
    content = executor.content
    resolved = await content.resolve(executor.session.frames, generates=True)
    executor.say(resolved.text[content.num_shown :])
    started = time.perf_counter()
    params = Params(timeout=node.timeout, priority=node.priority).over(executor.session.defaults)
    request = ScoreRequest(
        prompt=content.prompt(resolved),
        options=node.options,
        unconditional=node.method.needs_unconditional,
        params=params,
        group=executor.session.group,
    )
    async with _limit(params.timeout):
        scored = await executor.session.backend.score(request)
    logprobs = [option.logprobs for option in scored.options]
    scores = node.method.score(logprobs, [option.unconditional for option in scored.options])
    best = max(range(len(scores)), key=scores.__getitem__)
    chosen = node.options[best]
    content.commit_option(resolved, chosen)
    executor.say(chosen, node.name)
    meta = {
        "method": node.method.name,
        "scores": dict(zip(node.options, scores, strict=True)),
        "options": scored.options,
        "normalized_prompt_logprobs": scores,
        "input_token_logprobs": [
            list(zip(option.logprobs, option.token_ids, option.tokens, strict=True))
            for option in scored.options
        ],
        "prompt_tokens": scored.num_prompt_tokens,
        "cached_tokens": scored.num_cached_tokens,
        "completion_tokens": 0,
        "latency": time.perf_counter() - started,
    }
    executor.events.append(Step.of(node.name, "select", meta, chosen))
    if node.name is not None:
        executor.set(node.name, chosen, meta)


async def retain(executor: Executor, seconds: float | None) -> None:
    """Have the prefix that the model has read kept while the state waits; 0 seconds end that."""
    if seconds == 0:
        executor.release()
    elif executor.content.ids:
        if executor.retained_as is None:
            executor.retained_as = uuid4().hex
        backend = executor.session.backend
        await backend.retain(executor.retained_as, executor.content.ids, seconds)


def _converted(node: nodes.Gen, text: str) -> Any:
    if node.convert is None:
        return text
    try:
        return node.convert(text)
    except Exception as error:
        raise ProgramError(f"{text!r} is no value of the type asked for: {error}") from error


def _meta(generated: Generated, seconds: float) -> dict[str, Any]:
    first = generated.samples[0]
    meta: dict[str, Any] = {
        "prompt_tokens": generated.num_prompt_tokens,
        "cached_tokens": generated.num_cached_tokens,
        "completion_tokens": sum(sample.num_tokens for sample in generated.samples),
        "finish_reason": first.finish_reason,
        "stop_reason": first.stop_reason,
        "latency": seconds,
    }
    if len(generated.samples) > 1:
        meta["finish_reasons"] = [sample.finish_reason for sample in generated.samples]
    if first.logprobs is not None:
        meta |= {
            "logprobs": first.logprobs,
            "output_token_logprobs_length": len(first.logprobs),
            **_sglang_logprobs(first.logprobs),
        }
    if generated.prompt_logprobs is not None:
        meta |= _sglang_logprobs(generated.prompt_logprobs, "input")
        meta["input_top_logprobs"][0] = None
    return meta


def _sglang_logprobs(entries: Sequence[Mapping[str, Any]], side: str = "output") -> dict[str, Any]:
    """SGLang's layout: triples of log-probability, token id and text."""
    return {
        f"{side}_token_logprobs": [
            (entry["logprob"], entry.get("token_id"), entry["token"]) for entry in entries
        ],
        f"{side}_top_logprobs": [
            list(
                zip(
                    entry["top_logprobs"],
                    entry.get("top_ids") or [None] * len(entry["top_tokens"]),
                    entry["top_tokens"],
                    strict=True,
                )
            )
            for entry in entries
        ],
    }
