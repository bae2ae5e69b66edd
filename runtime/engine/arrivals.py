"""From a message to a request: what is checked before the scheduler hears of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..errors import ContextLengthExceeded, InvalidRequest, RequestError
from ..execution.randomness import derive_seed
from ..request import FinishReason, Request, RequestOutput, TokenArray
from .messages import EngineInfo, GenerateRequest, Retain


def make_request(
    message: GenerateRequest, info: EngineInfo, *, arrival: int, seed: int, now: float
) -> Request:
    """The request that a message asks for.

    Args:
        arrival: its running number.
        seed: of the engine, from which a request without a seed of its own gets one.
        now: time.monotonic() of its arrival.

    Raises:
        RequestError: the prompt, an id or a time does not fit the engine; names the field.
    """
    ids = check_prompt(message.prompt_ids, info)
    message.params.check_vocabulary(info.vocab_size)
    if message.timeout is not None and math.isnan(message.timeout):
        raise RequestError("timeout must be a number of seconds, not NaN.", param="timeout")
    if message.retain is not None:
        check_retain(message.retain, info)
    own_seed = message.params.seed
    return Request.create(
        request_id=message.request_id,
        prompt_ids=ids,
        params=message.params,
        seed=derive_seed(seed, arrival) if own_seed is None else own_seed,
        arrival=arrival,
        max_model_len=info.max_model_len,
        namespace=message.namespace,
        group=message.group,
        priority=message.priority,
        deadline=None if message.timeout is None else now + message.timeout,
    )


def refusal(message: GenerateRequest, error: str, *, invalid: bool = False) -> RequestOutput:
    """The only output of a request that was not taken; `invalid` if its sender is to blame."""
    return RequestOutput(
        request_id=message.request_id,
        finish_reason=FinishReason.ERROR,
        num_prompt_tokens=len(message.prompt_ids),
        error=error,
        invalid=invalid,
    )


def check_retain(seconds: float, info: EngineInfo, param: str = "retain") -> None:
    """Pass if the engine retains a prefix for so long.

    Raises:
        InvalidRequest: it does not; names the limit.
    """
    limit = info.max_retain_seconds
    if not limit:
        raise InvalidRequest(
            f"{param} cannot be granted: this engine retains nothing.",
            param=param,
            hint="The options retain_memory and retain_seconds switch it on.",
        )
    if not 0 < seconds <= limit:
        raise InvalidRequest(
            f"{param} must be above 0 and at most {limit:g} seconds, not {seconds}.", param=param
        )


def check_retention(message: Retain, info: EngineInfo) -> TokenArray:
    """The tokens that are to be retained; raises as `check_prompt` and `check_retain`."""
    if message.seconds is not None:
        check_retain(message.seconds, info, "seconds")
    return check_prompt(message.token_ids, info, "input_ids")


def check_logprob_start(start: int, num_tokens: int) -> None:
    """Pass if a prompt of so many tokens has one at `start`.

    Raises:
        InvalidRequest: it has not.
    """
    if not 0 <= start < num_tokens:
        raise InvalidRequest(
            f"logprob_start_len is {start}, and the prompt has {num_tokens} tokens.",
            param="logprob_start_len",
        )


def check_prompt(
    prompt_ids: Sequence[int], info: EngineInfo, param: str = "prompt", *, num_new: int = 0
) -> TokenArray:
    """The prompt as an array, if it leaves room for so many new tokens.

    Raises:
        InvalidRequest: it is empty, or has an id outside the vocabulary; `param` is its field.
        ContextLengthExceeded: it is too long.
    """
    num_tokens, limit = len(prompt_ids), info.max_model_len
    if num_tokens == 0:
        raise InvalidRequest("The prompt has no tokens; it needs at least 1.", param=param)
    if num_tokens + num_new > limit:
        raise ContextLengthExceeded(num_tokens, limit, param=param)
    low, high = min(prompt_ids), max(prompt_ids)
    if low < 0 or high >= info.vocab_size:
        raise InvalidRequest(
            f"The prompt has token id {low if low < 0 else high}, outside the vocabulary of "
            f"{info.vocab_size} tokens.",
            param=param,
        )
    return np.array(prompt_ids, dtype=np.int32)
