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
        group: requests of one namespace with the same group, such as the samples of a prompt or the
            branches of a fork, are admitted together where that is possible; "" for none.
        priority: lower runs first; 0 is normal.
        timeout: seconds from arrival until the request is ended with an error; None for never.
        session: the name, within the namespace, of whoever comes back with the answer in its prompt.
        retain: seconds to retain prompt and answer for the session, in place of what it retained before;
            None retains nothing for it any more once the answer is complete.
        tenant: whose share of what may be retained that takes; "" is one too.
    """

    request_id: str
    prompt_ids: list[int]
    params: SamplingParams
    namespace: str = ""
    group: str = ""
    priority: int = 0
    timeout: float | None = None
    session: str = ""
    retain: float | None = None
    tenant: str = ""


class Abort(msgspec.Struct, frozen=True, tag=True):
    """End these requests, by exact id; ids that are not live are ignored."""

    request_ids: list[str]


class Retain(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Retain what is cached of these tokens for a session, in place of what it retained before.

    Attributes:
        namespace, session, tenant: as in `GenerateRequest`.
        token_ids: from the start of a sequence.
        seconds: for how long; None for as long as the engine retains anything.
    """

    namespace: str
    session: str
    token_ids: list[int]
    seconds: float | None = None
    tenant: str = ""


class Release(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Retain nothing for this session any more; one that is not known is ignored."""

    namespace: str
    session: str


class ResetPrefixCache(msgspec.Struct, frozen=True, tag=True):
    """Forget every cached prefix that no running request holds."""


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """End the engine process after the current step."""


ToEngine = GenerateRequest | Abort | Retain | Release | ResetPrefixCache | Shutdown


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What the engine resolved from its configuration; sent once, when it is ready.

    Attributes:
        max_model_len: tokens of prompt and output together.
        vocab_size: rows of the embedding; every id is below it.
        num_blocks, block_size: the KV cache.
        dtype, device, kernels: how it computes, as words.
        quantization: int8 or int4 where the weights are in that many bits, else None.
        kv_cache_dtype: of cached keys and values.
        eos_token_ids: the model's end tokens.
        weight_bytes: what the weights take at most; kernels may hold them in less.
        kv_cache_bytes: what the KV cache takes.
        load_seconds: from the start of loading to ready.
        max_retain_seconds: most seconds for which a prefix is retained; 0 if none is.
    """

    model_name: str
    max_model_len: int
    vocab_size: int
    num_blocks: int
    block_size: int
    dtype: str
    quantization: str | None = None
    kv_cache_dtype: str
    device: str
    kernels: str
    eos_token_ids: tuple[int, ...]
    weight_bytes: int
    kv_cache_bytes: int
    load_seconds: float
    max_retain_seconds: float = 0.0


class EngineStats(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Counters since the engine started, and gauges of now.

    Blocks: free + cached + private + quarantined == total. `cached` blocks belong to the tree,
    `private` ones to one request; `pinned` are those cached blocks that running requests read, and
    `retained` those that are kept for sessions.
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
    blocks_retained: int = 0
    retentions_expired: int = 0
    retentions_given_up: int = 0


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
