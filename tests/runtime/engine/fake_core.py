"""A core without a model: it answers with canned tokens, at a pace and with faults that the test asks for.

It is imported by name, in the test's process and in the worker's, so it stands outside of conftest.py.
What it shall do travels in the prompt (see `Order`) or, for loading, in the configured model's name.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from ramet.runtime.config import EngineConfig
from ramet.runtime.engine.messages import (
    EngineInfo,
    EngineStats,
    GenerateRequest,
    Release,
    Retain,
)
from ramet.runtime.errors import ConfigError
from ramet.runtime.request import FinishReason, RequestOutput, TokenLogprobs

VOCAB_SIZE = 1000
MAX_MODEL_LEN = 50_000
EOS = 2


class Order(IntEnum):
    """First id of a prompt: what to do with the request. Else its output is the prompt, repeated."""

    COUNT = 900  # output 0, 1, 2, ... modulo 256
    FAIL_STEP = 901  # every step with it raises
    FAIL_STEP_AND_LEAK = 902  # the same, and the core cannot let go of it
    EXIT = 903  # the process ends at once
    ERROR = 904  # ends with an ERROR output
    NEVER = 905  # stays live and produces nothing


@dataclass(slots=True)
class _Live:
    request: GenerateRequest
    num_output_tokens: int = 0


class FakeCore:
    """Gives every live request one token a step."""

    def __init__(self, step_seconds: float = 0.0) -> None:
        self.info = EngineInfo(
            model_name="fake",
            max_model_len=MAX_MODEL_LEN,
            vocab_size=VOCAB_SIZE,
            num_blocks=1000,
            block_size=16,
            dtype="float32",
            kv_cache_dtype="float32",
            device="cpu",
            kernels="none",
            eos_token_ids=(EOS,),
            weight_bytes=1,
            kv_cache_bytes=1,
            load_seconds=0.0,
        )
        self.step_seconds = step_seconds
        self.live: dict[str, _Live] = {}
        self.outputs: list[RequestOutput] = []
        self.num_steps = 0
        self.num_rests = 0
        self.num_aborts = 0
        self.num_resets = 0
        self.num_leaked_blocks = 0
        self.retained: dict[str, Retain] = {}

    def add(self, request: GenerateRequest) -> None:
        self.live[request.request_id] = _Live(request)

    def abort(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            live = self.live.get(request_id)
            if live is None or live.request.prompt_ids[0] == Order.FAIL_STEP_AND_LEAK:
                continue
            del self.live[request_id]
            self.num_aborts += 1
            self.outputs.append(
                RequestOutput(
                    request_id=request_id,
                    finish_reason=FinishReason.ABORT,
                    num_output_tokens=live.num_output_tokens,
                    error="aborted",
                )
            )

    def has_work(self) -> bool:
        return bool(self.live or self.outputs)

    def step(self) -> list[RequestOutput]:
        time.sleep(self.step_seconds)
        self.num_steps += 1
        outputs, self.outputs = self.outputs, []
        for live in list(self.live.values()):
            outputs += self._advance(live)
        return outputs

    def rest(self) -> float | None:
        self.num_rests += 1
        return None

    def retain(self, message: Retain) -> None:
        self.retained[message.session] = message

    def release(self, message: Release) -> None:
        self.retained.pop(message.session, None)

    def stats(self) -> EngineStats:
        return EngineStats(
            num_running=len(self.live),
            steps=self.num_steps,
            aborts=self.num_aborts,
            evicted_blocks=self.num_resets,
            blocks_retained=len(self.retained),
            blocks_private=len(self.live) + self.num_leaked_blocks,
        )

    def reset_prefix_cache(self) -> None:
        self.num_resets += 1

    def _advance(self, live: _Live) -> list[RequestOutput]:
        request = live.request
        match request.prompt_ids[0]:
            case Order.FAIL_STEP | Order.FAIL_STEP_AND_LEAK:
                raise RuntimeError("this step was asked to fail")
            case Order.EXIT:
                os._exit(7)
            case Order.ERROR:
                del self.live[request.request_id]
                return [
                    RequestOutput(
                        request_id=request.request_id,
                        finish_reason=FinishReason.ERROR,
                        error="asked to fail",
                    )
                ]
            case Order.NEVER:
                time.sleep(0.001)
                return []
            case Order.COUNT:
                token_id = live.num_output_tokens % 256
            case _:
                token_id = request.prompt_ids[live.num_output_tokens % len(request.prompt_ids)]
        live.num_output_tokens += 1
        max_tokens = request.params.max_tokens
        finished = max_tokens is not None and live.num_output_tokens >= max_tokens
        if finished:
            del self.live[request.request_id]
        logprobs = (
            (TokenLogprobs(token_id, -0.5, 1, (), ()),)
            if request.params.logprobs is not None
            else ()
        )
        return [
            RequestOutput(
                request_id=request.request_id,
                token_ids=(token_id,),
                logprobs=logprobs,
                finish_reason=FinishReason.LENGTH if finished else None,
                num_prompt_tokens=len(request.prompt_ids),
                num_cached_tokens=len(request.prompt_ids) - 1,
                num_output_tokens=live.num_output_tokens,
            )
        ]


def create(config: EngineConfig, cache_dir: Path) -> FakeCore:
    """The worker's entry point; the model's name says how loading goes.

    `steady` and `slow` load; `refused` raises ConfigError, `broken` something else, `endless` takes
    longer than any test. `once` loads the first time only: it leaves a mark in the cache folder.
    """
    name = config.model.model
    if name == "refused":
        raise ConfigError("too big", param="max_model_len", hint="Make it smaller.")
    if name == "broken":
        raise RuntimeError("broken on purpose")
    if name == "endless":
        time.sleep(600)
    if name == "once":
        mark = cache_dir / "mark"
        if mark.exists():
            raise RuntimeError("a second time is not possible")
        mark.touch()
    return FakeCore(step_seconds=0.02 if name == "slow" else 0.0)
