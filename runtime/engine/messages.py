"""What crosses between the HTTP process and the engine process, and nothing else does.

msgspec structs, encoded as MessagePack and checked against these types when decoded. Everything that
one step produced travels as one `StepOutputs`.
"""

from __future__ import annotations

import msgspec

from ..request import RequestOutput, SamplingParams


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Generate from token ids.

    Attributes:
        request_id: unique among the live requests; chosen by the sender.
        prompt_ids: at least one token id.
        params: as validated; ids in it lie inside the vocabulary.
        namespace: requests of different namespaces never share KV.
        priority: lower runs first; 0 is normal.
        timeout: seconds from arrival until the request is ended with an error; None for never.
    """

    request_id: str
    prompt_ids: list[int]
    params: SamplingParams
    namespace: str = ""
    priority: int = 0
    timeout: float | None = None


class Abort(msgspec.Struct, frozen=True, tag=True):
    """End these requests, by exact id; ids that are not live are ignored."""

    request_ids: list[str]


class ResetPrefixCache(msgspec.Struct, frozen=True, tag=True):
    """Forget every cached prefix that no running request holds."""


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """End the engine process after the current step."""


ToEngine = GenerateRequest | Abort | ResetPrefixCache | Shutdown


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What the engine resolved from its configuration; sent once, when it is ready.

    Attributes:
        max_model_len: tokens of prompt and output together.
        vocab_size: rows of the embedding; every id is below it.
        num_blocks, block_size: the KV cache.
        dtype, device, kernels: how it computes, as words.
        eos_token_ids: the model's end tokens.
        weight_bytes, kv_cache_bytes: what the two take.
        load_seconds: from the start of loading to ready.
    """

    model_name: str
    max_model_len: int
    vocab_size: int
    num_blocks: int
    block_size: int
    dtype: str
    device: str
    kernels: str
    eos_token_ids: tuple[int, ...]
    weight_bytes: int
    kv_cache_bytes: int
    load_seconds: float


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since the engine started, and gauges of now.

    Blocks: free + cached + private + quarantined == total. `cached` blocks belong to the tree,
    `private` ones to one request; `pinned` are those cached blocks that running requests read.
    """

    num_waiting: int = 0
    num_running: int = 0
    blocks_total: int = 0
    blocks_free: int = 0
    blocks_cached: int = 0
    blocks_private: int = 0
    blocks_pinned: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    prefix_queried_tokens: int = 0
    prefix_hit_tokens: int = 0
    evicted_blocks: int = 0
    copied_blocks: int = 0
    preemptions: int = 0
    aborts: int = 0
    quarantined_blocks: int = 0


class StepOutputs(msgspec.Struct, frozen=True, tag=True):
    """Everything that one step produced for everybody."""

    outputs: list[RequestOutput]
    stats: EngineStats


class StartFailed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The engine could not start: a ConfigError's parts, to be raised again on the other side."""

    message: str
    param: str | None = None
    hint: str | None = None


FromEngine = EngineInfo | StepOutputs | StartFailed
