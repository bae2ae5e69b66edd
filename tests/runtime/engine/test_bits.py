"""Invariant: with the native kernels the logits of a token depend on its prefix alone, to the bit.

Log-probabilities of ten candidates stand for the logits: if any bit of them differs, so does what was
computed. Every instruction set of this machine is compared with itself, in bfloat16 and float32, with
weights of 8 and 4 bits, and with a KV cache of 8 bits.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ramet.kernels import ops
from ramet.kernels.kv_rows import row_bytes
from ramet.runtime.config import CacheConfig, EngineConfig, ModelOptions, SchedulerConfig
from ramet.runtime.engine.core import EngineCore
from ramet.runtime.engine.loading import load_core
from ramet.runtime.engine.messages import GenerateRequest
from ramet.runtime.request import RequestOutput, SamplingParams

if not ops.is_built():
    pytest.skip("the native kernels were not built", allow_module_level=True)

from ramet.kernels.cpu import _native

Bits = list[tuple[Any, ...]]


def prompt(seed: int, size: int) -> list[int]:
    return random.Random(seed).choices(range(3, 259), k=size)


class Runner:
    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.outputs: dict[str, list[RequestOutput]] = {}

    def add(self, name: str, prompt_ids: list[int], **params: Any) -> None:
        options: dict[str, Any] = {
            "temperature": 0.0,
            "max_tokens": 12,
            "ignore_eos": True,
            **params,
        }
        self.core.add(
            GenerateRequest(
                request_id=name,
                prompt_ids=prompt_ids,
                params=SamplingParams(logprobs=10, **options),
            )
        )

    def step(self) -> None:
        for output in self.core.step():
            self.outputs.setdefault(output.request_id, []).append(output)

    def run(self) -> None:
        for _ in range(3000):
            if not self.core.has_work():
                return
            self.step()
        raise AssertionError("not finished")

    def bits(self, name: str) -> Bits:
        return [
            (lp.token_id, lp.logprob, lp.top_ids, lp.top_logprobs)
            for output in self.outputs[name]
            for lp in output.logprobs
        ]

    def alone(self, prompt_ids: list[int], **params: Any) -> Bits:
        name = f"alone-{len(self.outputs)}"
        self.add(name, prompt_ids, **params)
        self.run()
        return self.bits(name)


Load = Callable[..., Runner]


@pytest.fixture(params=_native.available_isas())
def isa(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(
    params=[
        ("bfloat16", None, "bfloat16"),
        ("float32", None, "float32"),
        ("bfloat16", "int8", "bfloat16"),
        ("bfloat16", "int4", "bfloat16"),
        ("float32", "int4", "float32"),
        ("bfloat16", None, "int8"),
        ("float32", None, "int8"),
        ("bfloat16", "int4", "int8"),
        ("bfloat16", None, "float32"),
        ("float32", None, "bfloat16"),
    ],
    ids=lambda precision: "-".join(filter(None, precision)),
)
def load(request: pytest.FixtureRequest, isa: str, tiny_source: Any) -> Load:
    dtype, quantization, kv_cache_dtype = request.param
    kv_bytes_per_token = 2 * 2 * 2 * row_bytes(8, getattr(torch, kv_cache_dtype))

    def make(
        num_tokens: int = 4096,
        max_model_len: int = 512,
        prefix_cache: bool = True,
        **scheduler: Any,
    ) -> Runner:
        config = EngineConfig(
            model=ModelOptions(
                model="tiny",
                dtype=dtype,
                quantization=quantization,
                kernels=f"cpu:{isa}",
                max_model_len=max_model_len,
                num_threads=2,
            ),
            cache=CacheConfig(
                block_size=4,
                kv_cache_dtype=kv_cache_dtype,
                kv_cache_memory=num_tokens * kv_bytes_per_token,
                enable_prefix_cache=prefix_cache,
            ),
            scheduler=SchedulerConfig(
                **{"max_num_seqs": 8, "max_num_batched_tokens": 512, **scheduler}
            ),
        )
        return Runner(load_core(config, tiny_source))

    return make


def test_warm_is_cold(load: Load) -> None:
    warm = load()
    for size in (200, 203, 260):
        ids = prompt(1, size)
        assert warm.alone(ids) == load(prefix_cache=False).alone(ids)
        assert warm.alone(ids) == load(prefix_cache=False).alone(ids)
    assert warm.core.stats().prefix_hit_tokens > 800


def test_chunked_is_whole(load: Load) -> None:
    ids = prompt(2, 300)
    whole = load().alone(ids)
    for budget in (8, 37, 129):
        assert load(max_num_batched_tokens=budget).alone(ids) == whole


def test_batched_is_alone(load: Load) -> None:
    prompts = [prompt(i, 5 + 33 * i) for i in range(8)]
    solo = load(prefix_cache=False)
    alone = [solo.alone(p) for p in prompts]
    together = load(max_num_batched_tokens=64)
    for i, ids in enumerate(prompts):
        together.add(str(i), ids)
        together.step()
    together.run()
    assert [together.bits(str(i)) for i in range(8)] == alone


def test_forked_is_alone(load: Load) -> None:
    """Samples of one prompt read its blocks together; each computes what it would have alone."""
    ids = prompt(3, 290)
    forked = load()
    for i in range(8):
        forked.add(str(i), ids, temperature=1.0, seed=i)
    forked.run()
    solo = load(prefix_cache=False)
    for i in range(8):
        assert forked.bits(str(i)) == solo.alone(ids, temperature=1.0, seed=i)
    assert len({tuple(forked.bits(str(i))) for i in range(8)}) == 8


def test_preempted_is_not(load: Load) -> None:
    prompts = [prompt(1, 30) + prompt(i, 10 + i) for i in range(8)]
    tight = load(num_tokens=180, max_model_len=160)
    for i, ids in enumerate(prompts):
        tight.add(str(i), ids, max_tokens=50)
    tight.run()
    assert tight.core.stats().preemptions > 0 and tight.core.stats().evicted_blocks > 0
    solo = load(prefix_cache=False)
    for i, ids in enumerate(prompts):
        assert tight.bits(str(i)) == solo.alone(ids, max_tokens=50)
