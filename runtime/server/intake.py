"""From a validated request to a job (tenant, prompt tokens, limits, seeds), and to its generation.

Knows the tokenizer and the engine's facts; knows no JSON and no answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from uuid import uuid4

from fastapi import Request

from ..config import ServerConfig
from ..engine.arrivals import check_retain
from ..engine.client import EngineClient
from ..errors import ContextLengthExceeded, InvalidRequest
from ..request import SamplingParams
from .generation import Generation, Job, Prompt, samples_params
from .lifecycle import Lifecycle
from .metrics import ServerMetrics
from .model import ServedModel
from .protocol import GenerationRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerContext:
    """What the routes share.

    Attributes:
        config: as the user gave it.
        client: the engine.
        model: the one that is served.
        lifecycle: whether new work may start.
        metrics: of the HTTP side.
        seeds: draws the seeds of requests that bring none.
    """

    config: ServerConfig
    client: EngineClient
    model: ServedModel
    lifecycle: Lifecycle
    metrics: ServerMetrics
    seeds: random.Random


def namespace(tenant: str, cache_salt: str | None) -> str:
    """The engine's namespace of an API key's digest and a salt; "" for neither.

    Both parts are hashed with their lengths, so that no other pair gives the same name.
    """
    if not tenant and cache_salt is None:
        return ""
    parts = [part.encode() for part in (tenant, cache_salt or "")]
    framed = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    return hashlib.sha256(framed).hexdigest()


def tenant(request: Request) -> str:
    """The digest of the API key that a request came with; "" without keys."""
    found: str = request.scope.get("state", {}).get("tenant", "")
    return found


async def prepare_job(
    context: ServerContext,
    request: Request,
    body: GenerationRequest,
    *,
    params: SamplingParams,
    encode: Callable[[], list[Prompt]],
    param: str,
    arrived: float,
) -> Job:
    """Encode the prompts in a thread, and check and cut the request to what the engine can hold.

    Args:
        encode: gives the prompts; may take long for long ones.
        param: the field that holds the prompt, for errors.

    Raises:
        InvalidRequest: an id lies outside the vocabulary, a prompt is empty, or nothing is retained for
            so long.
        ContextLengthExceeded: a prompt leaves no room for the answer.
    """
    info = context.client.info
    params.check_vocabulary(info.vocab_size)
    if body.retain is not None:
        check_retain(body.retain, info)
    # A long prompt takes hundreds of milliseconds; other requests' streams must go on meanwhile.
    prompts = await asyncio.to_thread(encode)
    if body.retain is not None and len(prompts) * body.num_samples > 1:
        raise InvalidRequest(
            "retain keeps one answer: there must be one prompt, and n must be 1.", param="retain"
        )
    keep = _kept_tokens(body, params, info.max_model_len)
    if keep is not None:
        prompts = [_truncated(prompt, keep, body, context.model) for prompt in prompts]
    limits = [_limit(prompt, params, info.max_model_len, param) for prompt in prompts]
    for prompt in prompts:
        _check_ids(prompt, info.vocab_size, param)
    seed = params.seed if params.seed is not None else context.seeds.getrandbits(63)
    return Job(
        request_id=uuid4().hex,
        prompts=tuple(prompts),
        params=samples_params(params, body.num_samples, limits, seed),
        num_samples=body.num_samples,
        arrived=arrived,
        namespace=namespace(tenant(request), body.cache_salt),
        session=body.session or "",
        retain=body.retain,
        tenant=tenant(request),
        priority=body.priority or 0,
        timeout=body.timeout,
    )


def begin(context: ServerContext, job: Job, *, is_patient: bool) -> Generation:
    """Submit a job; arguments and errors are those of `Generation`."""
    return Generation(
        job,
        context.client,
        context.model.tokenizer,
        context.metrics,
        is_patient=is_patient,
    )


def _kept_tokens(body: GenerationRequest, params: SamplingParams, max_model_len: int) -> int | None:
    if body.truncate_prompt_tokens == -1:
        return max(1, max_model_len - (1 if params.max_tokens is None else params.max_tokens))
    return body.truncate_prompt_tokens


def _truncated(prompt: Prompt, keep: int, body: GenerationRequest, model: ServedModel) -> Prompt:
    if len(prompt.ids) <= keep:
        return prompt
    ids = prompt.ids[:keep] if body.truncation_side == "right" else prompt.ids[-keep:]
    return Prompt(ids, model.tokenizer.decode(ids, body.skip_special_tokens is not False))


def _limit(prompt: Prompt, params: SamplingParams, max_model_len: int, param: str) -> int:
    room = max_model_len - len(prompt.ids)
    if room < 0 or (room == 0 and params.max_tokens != 0):
        raise ContextLengthExceeded(len(prompt.ids), max_model_len, param=param)
    return room if params.max_tokens is None else min(room, params.max_tokens)


def _check_ids(prompt: Prompt, vocab_size: int, param: str) -> None:
    if not prompt.ids:
        raise InvalidRequest("The prompt is empty: it has no tokens.", param=param)
    low, high = min(prompt.ids), max(prompt.ids)
    if low < 0 or high >= vocab_size:
        raise InvalidRequest(
            f"{param} has token id {low if low < 0 else high}, outside the vocabulary of "
            f"{vocab_size} tokens.",
            param=param,
        )
