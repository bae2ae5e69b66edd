"""What a request asks for, what it is, and what it gets.

Token ids only: this module knows nothing of tensors or the network, and of text what may end it.

    SamplingParams   how to choose tokens and when to stop; frozen and validated
    Request          a sequence in the engine: its tokens, its blocks, its state; the scheduler owns it
    RequestOutput    what one step added to a request; the only thing that leaves the engine
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

from ramet.radix import PrefixHandle

from .errors import InvalidRequest
from .structured.constraint import Constraint
from .text.regex_automaton import PatternError
from .text.stop_regex import stop_patterns

TokenArray = NDArray[np.int32]

MAX_LOGPROBS = 20
MIN_SEED, MAX_SEED = -(2**63), 2**64 - 1


class RequestStatus(StrEnum):
    """Where a request is in its life. PREEMPTED requests wait too, keeping their age and tokens."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class FinishReason(StrEnum):
    """Why a request ended. ABORT and ERROR never reach an OpenAI client as a finish_reason."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to choose tokens, and when to stop.

    Raises InvalidRequest, naming the field and its limits, for every value out of range (NaN
    included). Ids (`stop_token_ids`, `logit_bias`) are checked against the vocabulary later, by
    `check_vocabulary`, since only the engine knows its size.

    Attributes:
        max_tokens: most tokens to generate; None means to the end of the context.
        min_tokens: no end token, stop string or match is honoured before so many tokens.
        temperature: 0 is greedy; otherwise logits are divided by it. 0 to 2.
        top_k: keep the k likeliest tokens; 0 or -1 keeps all.
        top_p: keep the smallest set of tokens whose probability reaches it. Above 0, up to 1.
        min_p: keep tokens at least this likely relative to the likeliest. 0 to 1.
        presence_penalty: subtracted once from the logit of each token already generated. -2 to 2.
        frequency_penalty: subtracted per occurrence in the generated tokens. -2 to 2.
        repetition_penalty: divides positive and multiplies negative logits of tokens in the prompt
            or the output (Keskar et al. 2019, "CTRL", section 4.1). Above 0, up to 2; 1 is off.
        logit_bias: token id -> value added to its logit, -100 to 100.
        seed: None draws one from the engine's own; samples of one request derive theirs from it.
        stop: strings that end the output when they appear in its text.
        stop_regex: regular expressions; the output ends with the first token up to which one matches,
            and keeps all of its text. One that is plain text is a stop string; no other may be in `stop` too.
        include_stop_str_in_output: keep the stop string in the text.
        stop_token_ids: ids that end the output, beside the model's end tokens.
        ignore_eos: go on past the model's end tokens.
        skip_special_tokens: leave special tokens out of the text.
        logprobs: None for no log-probabilities; otherwise how many of the likeliest tokens are
            listed beside the sampled one, 0 to 20.
        prompt_logprobs: the same for each prompt token but the first.
        prompt_logprobs_start: prompt tokens before this one are not scored, and may come from the
            cache; the rest of the prompt is computed whole.
        constraint: what the whole output must match; masks all other tokens out.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_regex: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_logprobs_start: int = 0
    constraint: Constraint | None = None

    def __post_init__(self) -> None:
        _check_range("temperature", self.temperature, 0.0, 2.0)
        _check_range("top_p", self.top_p, 0.0, 1.0, above=True)
        _check_range("min_p", self.min_p, 0.0, 1.0)
        _check_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_range("repetition_penalty", self.repetition_penalty, 0.0, 2.0, above=True)
        if self.top_k < -1:
            raise InvalidRequest(
                f"top_k must be -1 or 0 (off) or positive, not {self.top_k}.", param="top_k"
            )
        if self.max_tokens is not None and self.max_tokens < 0:
            raise InvalidRequest(
                f"max_tokens must be at least 0, not {self.max_tokens}.", param="max_tokens"
            )
        if self.min_tokens < 0 or (
            self.max_tokens is not None and self.min_tokens > self.max_tokens
        ):
            raise InvalidRequest(
                f"min_tokens must be between 0 and max_tokens ({self.max_tokens}), "
                f"not {self.min_tokens}.",
                param="min_tokens",
            )
        if self.seed is not None and not MIN_SEED <= self.seed <= MAX_SEED:
            raise InvalidRequest(f"seed must fit 64 bits, not {self.seed}.", param="seed")
        if any(not text for text in self.stop):
            raise InvalidRequest("stop must not contain an empty string.", param="stop")
        self._check_patterns()
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(self, name)
            if count is not None and not 0 <= count <= MAX_LOGPROBS:
                raise InvalidRequest(
                    f"{name} must be between 0 and {MAX_LOGPROBS}, not {count}.", param=name
                )
        if self.prompt_logprobs_start < 0:
            raise InvalidRequest(
                f"prompt_logprobs_start must be at least 0, not {self.prompt_logprobs_start}.",
                param="prompt_logprobs_start",
            )
        for token_id, bias in self.logit_bias.items():
            _check_range(f"logit_bias[{token_id}]", bias, -100.0, 100.0, param="logit_bias")

    def _check_patterns(self) -> None:
        if not self.stop_regex:
            return
        try:
            names = [name for _, name in stop_patterns(self.stop_regex).names]
        except PatternError as error:
            raise InvalidRequest(f"stop_regex: {error}", param="stop_regex") from None
        for text in self.stop:
            if text in names:
                raise InvalidRequest(
                    f"{text!r} is in stop and in stop_regex, where it means two things, and the reason for "
                    "the end could not tell which of them it was.",
                    param="stop_regex",
                )

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise InvalidRequest if an id lies outside the vocabulary."""
        for name in ("logit_bias", "stop_token_ids"):
            for token_id in getattr(self, name):
                if not 0 <= token_id < vocab_size:
                    raise InvalidRequest(
                        f"{name} has token id {token_id}, outside the vocabulary of "
                        f"{vocab_size} tokens.",
                        param=name,
                    )

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Texts that end the output: `stop`, and what of `stop_regex` is plain text."""
        if not self.stop_regex:
            return self.stop
        return (*self.stop, *stop_patterns(self.stop_regex).literals)

    @property
    def needs_penalties(self) -> bool:
        """Whether any penalty depends on the tokens seen so far."""
        return (
            self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or self.repetition_penalty != 1.0
        )


def _check_range(
    name: str,
    value: float,
    low: float,
    high: float,
    *,
    above: bool = False,
    param: str | None = None,
) -> None:
    inside = low < value <= high if above else low <= value <= high
    if math.isnan(value) or not inside:
        bounds = f"above {low:g} and at most {high:g}" if above else f"between {low:g} and {high:g}"
        raise InvalidRequest(f"{name} must be {bounds}, not {value}.", param=param or name)


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Log-probability of one token, and of the likeliest ones at its position.

    Natural logarithms of the model's own distribution, before temperature, penalties and cuts.

    Attributes:
        token_id: the token that stands at the position.
        logprob: its log-probability.
        rank: 1 for the likeliest token of the vocabulary.
        top_ids: the likeliest tokens, best first; as many as were asked for.
        top_logprobs: their log-probabilities, descending.
    """

    token_id: int
    logprob: float
    rank: int
    top_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]


class RequestOutput(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """What one step added to a request. Deltas: joined in order they are the whole answer.

    Attributes:
        request_id: whose output this is.
        token_ids: newly sampled tokens, the end or stop token included.
        logprobs: one entry per new token if asked for, else empty.
        prompt_logprobs: in the first output only, one entry per prompt token from
            `prompt_logprobs_start`, the first token of all excepted.
        finish_reason: None while the request goes on.
        stop_reason: the stop string, the pattern of `stop_regex` or the stop token id that ended it; None
            for end tokens.
        num_prompt_tokens: tokens of the prompt.
        num_cached_tokens: prompt tokens whose KV was found, at first admission.
        num_output_tokens: tokens sampled so far.
        ends_with_text: with finish_reason STOP, the last token is text: no end or stop token ended the
            output, but the constraint, which allows nothing more.
        error: what went wrong, with finish_reason ERROR or ABORT.
        invalid: with finish_reason ERROR, the request was at fault, not the engine.
        overloaded: with finish_reason ERROR, nobody was at fault: the same request may succeed later.
    """

    request_id: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    ends_with_text: bool = False
    error: str | None = None
    invalid: bool = False
    overloaded: bool = False

    @property
    def finished(self) -> bool:
        """Whether this is the request's last output."""
        return self.finish_reason is not None

    @property
    def ended_by_token(self) -> bool:
        """Whether the last token is an end or stop token, and so no text."""
        stopped = self.finish_reason is FinishReason.STOP and not isinstance(self.stop_reason, str)
        return stopped and not self.ends_with_text


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """A sequence in the engine. Only the scheduler changes one; identity is the object's own.

    The life of its tokens: `[0, num_computed)` have their KV in `block_table`, of which the first
    `handle.num_tokens` lie in blocks of the tree that the handle pins; the blocks behind them are its
    own. `[num_computed, num_tokens)` are still to be run: one token while it decodes, more while it
    prefills or comes back from preemption.

    Attributes:
        seed: 64-bit seed of its random stream, resolved.
        arrival: running number; smaller is older. Kept through preemption.
        group: requests of one namespace with the same group are siblings; "" for one that has none.
        deadline: time.monotonic() after which it is ended, or None.
        num_prompt_tokens: tokens of the prompt; the rest of `token_ids` was sampled.
        num_cached_tokens: prompt tokens found in the cache at first admission.
        queried: whether the cache's statistics have counted it.
        num_overtaken: how many younger requests were admitted before it.
        match_generation, num_matched: the last cache match and the cache generation it holds for.
        leader, leader_target: it waits until `leader` has computed that many tokens of their prefix.
        has_running_sibling: whether another of its group ran when this step began.
        row: its row in the runner's tables while it runs, else -1.
        is_paused: it cannot be run now, as what its next token must match is not known yet.
        num_synced_blocks: how many entries of `block_table` that row holds already.
    """

    request_id: str
    params: SamplingParams
    namespace: str
    group: str
    priority: int
    seed: int
    arrival: int
    deadline: float | None
    num_prompt_tokens: int
    max_total_tokens: int
    _buffer: TokenArray
    num_tokens: int
    handle: PrefixHandle | None = None
    status: RequestStatus = RequestStatus.WAITING
    num_computed: int = 0
    block_table: list[int] = field(default_factory=list)
    num_cached_tokens: int | None = None
    queried: bool = False
    num_overtaken: int = 0
    match_generation: int = -1
    num_matched: int = 0
    leader: Request | None = None
    leader_target: int = 0
    has_running_sibling: bool = False
    row: int = -1
    is_paused: bool = False
    num_synced_blocks: int = 0

    @classmethod
    def create(
        cls,
        *,
        request_id: str,
        prompt_ids: TokenArray,
        params: SamplingParams,
        seed: int,
        arrival: int,
        max_model_len: int,
        namespace: str = "",
        group: str = "",
        priority: int = 0,
        deadline: float | None = None,
    ) -> Request:
        """A waiting request; `max_total_tokens` is what max_tokens and the context length allow.

        Raises:
            ValueError: the prompt is empty or longer than max_model_len.
        """
        num_prompt = len(prompt_ids)
        if not 0 < num_prompt <= max_model_len:
            raise ValueError(f"prompt of {num_prompt} tokens, want 1 to {max_model_len}")
        limit = max_model_len
        if params.max_tokens is not None:
            limit = min(limit, num_prompt + params.max_tokens)
        return cls(
            request_id=request_id,
            params=params,
            namespace=namespace,
            group=group,
            priority=priority,
            seed=seed,
            arrival=arrival,
            deadline=deadline,
            num_prompt_tokens=num_prompt,
            max_total_tokens=limit,
            _buffer=np.array(prompt_ids, dtype=np.int32),
            num_tokens=num_prompt,
        )

    @property
    def token_ids(self) -> TokenArray:
        """Prompt and output: `[num_tokens]` int32, a view that later appends may leave behind."""
        return self._buffer[: self.num_tokens]

    @property
    def prompt_ids(self) -> TokenArray:
        """The prompt: `[num_prompt_tokens]` int32, a view."""
        return self._buffer[: self.num_prompt_tokens]

    @property
    def output_ids(self) -> TokenArray:
        """What was sampled so far: `[num_output_tokens]` int32, a view."""
        return self._buffer[self.num_prompt_tokens : self.num_tokens]

    @property
    def last_token_id(self) -> int:
        """The newest token."""
        return int(self._buffer[self.num_tokens - 1])

    @property
    def num_output_tokens(self) -> int:
        """Tokens sampled so far."""
        return self.num_tokens - self.num_prompt_tokens

    @property
    def num_remaining(self) -> int:
        """Tokens still to be run before the next one can be sampled."""
        return self.num_tokens - self.num_computed

    @property
    def is_decoding(self) -> bool:
        """Whether exactly the token that was sampled last is still to be run."""
        return self.num_remaining == 1 and self.num_tokens > self.num_prompt_tokens

    @property
    def scores_prompt(self) -> bool:
        """Whether log-probabilities of prompt tokens are wanted and still to be computed."""
        return (
            self.params.prompt_logprobs is not None
            and self.num_computed < self.num_prompt_tokens
            and self.num_output_tokens == 0
        )

    @property
    def num_reusable(self) -> int:
        """Tokens that may come from the cache: not the last, nor any whose logits are wanted."""
        if self.scores_prompt:
            return min(max(self.params.prompt_logprobs_start, 1), self.num_tokens) - 1
        return self.num_tokens - 1

    @property
    def age(self) -> tuple[int, int]:
        """Sort key: the request that may be overtaken last comes first."""
        return (self.priority, self.arrival)

    def append(self, token_id: int) -> None:
        """Add a sampled token."""
        if self.num_tokens == len(self._buffer):
            grown = np.empty(max(16, self.num_tokens * 2), dtype=np.int32)
            grown[: self.num_tokens] = self._buffer
            self._buffer = grown
        self._buffer[self.num_tokens] = token_id
        self.num_tokens += 1
