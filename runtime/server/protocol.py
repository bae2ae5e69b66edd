"""The bodies of /v1/chat/completions and /v1/completions, and what they mean for the sampler.

Types and ranges only: no token, no template, no engine. Every field may be null, which is the same as
absent. Fields that are not here pass unread; `refusals.py` has those that must not.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ..errors import InvalidRequest
from ..request import MAX_LOGPROBS, SamplingParams
from ..tools.definitions import ToolDefinition
from .constraints import constraint_of

MAX_SAMPLES = 128
# Beyond every vocabulary, where top_k cuts nothing; larger numbers would not fit a message.
MAX_TOP_K = 2**31 - 1

Role = Literal["system", "developer", "user", "assistant", "tool", "function"]
AtLeastOne = Annotated[int, Meta(ge=1)]
AtLeastZero = Annotated[int, Meta(ge=0)]
Priority = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
SessionName = Annotated[str, Meta(min_length=1, max_length=128)]
CacheSalt = Annotated[str, Meta(min_length=1, max_length=128)]


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream carries beside the text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that both kinds of completion share.

    Attributes:
        top_p: 0 means the likeliest token alone.
        stop_regex: see `SamplingParams`; an empty text is none.
        no_stop_trim: SGLang's name of `include_stop_str_in_output`.
        cache_salt: requests with different salts share no KV.
        priority: lower runs first.
        timeout: seconds from arrival until the request ends with an error.
        session, retain: prompt and answer are evicted last for `retain` seconds, as whoever calls itself
            `session` will come back with them; a call of the session without `retain` ends that.
        truncate_prompt_tokens: keep so many prompt tokens; -1 for as many as fit.
        truncation_side: where they are cut off.
        return_tokens_as_token_ids: log-probabilities name tokens as `token_id:N`.
        request_id, rid: a name for the answer's `id`.
        response_format, structured_outputs, regex, json_schema, ebnf, guided_*: what the answer must
            match; see constraints.py.
    """

    model: str | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_SAMPLES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_regex: str | list[str] | None = None
    include_stop_str_in_output: bool | None = None
    no_stop_trim: bool | None = None
    stop_token_ids: list[int] | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: int | None = None
    cache_salt: CacheSalt | None = None
    priority: Priority | None = None
    timeout: float | None = None
    session: SessionName | None = None
    retain: float | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    add_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    request_id: Annotated[str, Meta(max_length=256)] | None = None
    rid: Annotated[str, Meta(max_length=256)] | None = None
    service_tier: str | None = None
    metadata: dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    regex: str | None = None
    json_schema: str | dict[str, Any] | None = None
    ebnf: str | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_json_object: bool | None = None

    @property
    def num_samples(self) -> int:
        """Answers per prompt."""
        return 1 if self.n is None else self.n

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        """Whether every chunk of a stream carries the usage so far; needs `include_usage` too."""
        options = self.stream_options
        return options is not None and self.include_usage and bool(options.continuous_usage_stats)


class ToolCallFunction(msgspec.Struct, frozen=True, kw_only=True):
    """Which function an earlier answer called; `arguments` is JSON text, or was meant to be."""

    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call in the history of a conversation."""

    function: ToolCallFunction
    id: str | None = None
    type: str | None = None


class ContentPart(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a message; only text is understood."""

    type: str
    text: str | None = None
    refusal: str | None = None


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of a conversation.

    `reasoning_content` and `reasoning` are two names of the same; agents send them back, and some
    templates show them.
    """

    role: Role
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: Any = None
    function_call: ToolCallFunction | None = None


class ChatRequest(GenerationRequest, frozen=True, kw_only=True):
    """Body of /v1/chat/completions. For `tools` and the two fields after it see tools.py."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    tools: list[ToolDefinition] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_tokens: AtLeastOne | None = None
    max_completion_tokens: AtLeastOne | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    reasoning_effort: str | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def token_limit(self) -> int | None:
        """Most tokens to generate; None for as many as fit. The newer of the two names wins."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens
        return self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        """Likeliest tokens to list; None for no log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    """Body of /v1/completions. `prompt` is text, ids, or a list of either."""

    prompt: Any
    max_tokens: AtLeastZero | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: bool | None = None


_SAME_NAME = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "seed",
    "min_tokens",
    "ignore_eos",
    "skip_special_tokens",
    "prompt_logprobs",
)


def sampling_params(
    request: GenerationRequest, *, max_tokens: int | None, logprobs: int | None
) -> SamplingParams:
    """How `request` wants its tokens chosen; null fields take the defaults.

    Raises:
        InvalidRequest: a value is out of range; names the field.
    """
    values: dict[str, Any] = {
        name: value for name in _SAME_NAME if (value := getattr(request, name)) is not None
    }
    if values.get("top_p") == 0:
        values.update(top_p=1.0, top_k=1)
    if "top_k" in values:
        values["top_k"] = min(values["top_k"], MAX_TOP_K)
    for name in ("stop", "stop_regex"):
        texts = getattr(request, name)
        if texts is not None and (texts or name == "stop"):
            values[name] = (texts,) if isinstance(texts, str) else tuple(texts)
    if request.stop_token_ids is not None:
        values["stop_token_ids"] = tuple(request.stop_token_ids)
    keep_stop = request.include_stop_str_in_output or request.no_stop_trim
    return SamplingParams(
        max_tokens=max_tokens,
        logprobs=logprobs,
        include_stop_str_in_output=bool(keep_stop),
        constraint=constraint_of(request),
        **values,
    )


def check_common(request: GenerationRequest) -> None:
    """Pass if the fields that both kinds share fit together.

    Raises:
        InvalidRequest: they contradict each other; names the field.
    """
    if request.stream_options not in (None, StreamOptions()) and not request.stream:
        raise InvalidRequest(
            "stream_options is only allowed when stream is true.", param="stream_options"
        )
    if request.prompt_logprobs is not None and request.stream:
        raise InvalidRequest(
            "prompt_logprobs is not available in a stream.", param="prompt_logprobs"
        )
    if request.timeout is not None and not request.timeout > 0:
        raise InvalidRequest(
            f"timeout must be above 0 seconds, not {request.timeout}.", param="timeout"
        )
    if request.retain is not None and request.session is None:
        raise InvalidRequest("retain needs a session, which comes back.", param="session")
    if request.truncate_prompt_tokens == 0:
        raise InvalidRequest(
            "truncate_prompt_tokens must be at least 1, or -1 for as many as fit, not 0.",
            param="truncate_prompt_tokens",
        )


def check_chat(request: ChatRequest) -> None:
    """Pass if the fields of a chat request fit together; raises as `check_common`."""
    check_common(request)
    if request.top_logprobs is not None and not request.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs to be true.", param="top_logprobs")
    if request.add_generation_prompt and request.continue_final_message:
        raise InvalidRequest(
            "continue_final_message and add_generation_prompt cannot both be true.",
            param="continue_final_message",
        )
    _check_results(request.messages)


def _check_results(messages: list[ChatMessage]) -> None:
    """Refuse the result of a call that nobody has made; one that names no call may be in any form."""
    called: set[str | None] = set()
    for index, message in enumerate(messages):
        called.update(call.id for call in message.tool_calls or ())
        name = message.tool_call_id
        if message.role == "tool" and name is not None and name not in called:
            raise InvalidRequest(
                f"messages[{index}].tool_call_id is {name[:100]!r}, and no message before it has a "
                "tool call with this id.",
                param=f"messages[{index}].tool_call_id",
            )


def check_completion(request: CompletionRequest) -> None:
    """Pass if the fields of a completion request fit together; raises as `check_common`."""
    check_common(request)
    if request.max_tokens == 0 and not request.echo:
        raise InvalidRequest("max_tokens may only be 0 together with echo.", param="max_tokens")


def parse_prompts(prompt: Any) -> list[str | list[int]]:
    """The prompts of a completion request, one by one.

    Raises:
        InvalidRequest: it is neither text, ids, nor a list of either; or there is none.
    """
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and prompt:
        if all(type(item) is int for item in prompt):
            return [prompt]
        if all(isinstance(item, str) for item in prompt):
            return prompt
        if all(isinstance(item, list) and all(type(i) is int for i in item) for item in prompt):
            return prompt
    raise InvalidRequest(
        "prompt must be a string, a list of token ids, or a non-empty list of either.",
        param="prompt",
    )
