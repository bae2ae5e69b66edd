"""What the language asks of a backend, and what it gets.

Knows no transport. All methods are called on the language's event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ..params import Params

if TYPE_CHECKING:
    from ..chat import Frames


OnText = Callable[[str, Sequence[Mapping[str, Any]]], None]


@dataclass(frozen=True, slots=True)
class Message:
    """A turn of a conversation."""

    role: str
    content: str

    def as_dict(self) -> dict[str, Any]:
        """As OpenAI's API has it."""
        return {"role": self.role, "content": self.content}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What a request continues, in both forms; a backend reads the one that it can send.

    Attributes:
        ids: tokens that the model has read or written already.
        text: what follows them.
        whole: the text of both.
        messages: the conversation, if the state has roles; the last one is open if `is_open`.
        loose: whether there is text outside of messages.
    """

    ids: tuple[int, ...] = ()
    text: str = ""
    whole: str = ""
    messages: tuple[Message, ...] = ()
    is_open: bool = False
    loose: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GenRequest:
    """Generate.

    Attributes:
        params: merged; `n` samples are wanted.
        on_text: called with new text of the first sample and the log-probabilities of the tokens that
            have come since the call before, if asked for, as in `Sample`; None if nobody looks.
        group: requests with the same group belong to one program, may travel together and are best
            run together; None for one that has no siblings.
        may_restart: where the backend cannot go on with a message that is begun, it may have the message
            written from its start, and take what begins as it was begun.
    """

    prompt: Prompt
    params: Params
    on_text: OnText | None = None
    group: str | None = None
    may_restart: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One answer.

    Attributes:
        text: without the stop string, or the end token, that ended it.
        kept_ids: tokens to go on from; empty for a backend without tokens.
        rest: text of the answer behind them.
        num_tokens: tokens that were sampled.
        finish_reason: "stop" or "length".
        stop_reason: the stop string, pattern or token id, if one ended it.
        logprobs: per token, or None: token (its text), logprob, and where tokens travel token_id,
            top_ids, top_tokens, top_logprobs.
        pieces: `text` by tokens, where a backend without them was asked for log-probabilities and tells;
            a character of several tokens is in its last one.
    """

    text: str
    kept_ids: tuple[int, ...] = ()
    rest: str = ""
    num_tokens: int = 0
    finish_reason: str = "stop"
    stop_reason: str | int | None = None
    logprobs: tuple[Mapping[str, Any], ...] | None = None
    pieces: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """The answers to one request.

    Attributes:
        prompt_ids: tokens of the prompt's text; None for a backend without tokens.
        num_cached_tokens: prompt tokens that did not have to be computed; None if it does not tell.
        prompt_logprobs: as in `Sample`, per prompt token from `logprob_start_len`, of which the first has no
            `logprob`; None if not asked for.
    """

    samples: Sequence[Sample]
    prompt_ids: tuple[int, ...] | None
    num_prompt_tokens: int
    num_cached_tokens: int | None
    prompt_logprobs: tuple[Mapping[str, Any], ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """Score options behind a prompt; see `GenRequest` for the rest."""

    prompt: Prompt
    options: tuple[str, ...]
    unconditional: bool = False
    params: Params = field(default_factory=Params)
    group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionScore:
    """Log-probabilities of one option's tokens, behind the prompt and, if asked for, without it."""

    text: str
    token_ids: tuple[int, ...] = ()
    tokens: tuple[str, ...] = ()
    logprobs: tuple[float, ...]
    unconditional: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """The scores of a request's options, in their order."""

    options: tuple[OptionScore, ...]
    num_prompt_tokens: int
    num_cached_tokens: int | None


class Backend(Protocol):
    """Where tokens come from."""

    @property
    def frames(self) -> Frames | None:
        """What the model's chat template writes around messages, so that roles become text of the prompt;
        None if the server behind it gets messages."""

    @property
    def retains(self) -> bool:
        """Whether it can be asked to keep a prefix for a state that waits."""

    @property
    def restarts(self) -> bool:
        """Whether a message that is begun can only be written from its start."""

    def check(self, params: Params) -> None:
        """Pass if the backend can do what the parameters ask for.

        Raises:
            Unsupported: it cannot; names the parameter.
        """

    async def generate(self, request: GenRequest) -> Generated:
        """Sample; cancelling it ends the request."""

    async def score(self, request: ScoreRequest) -> Scored:
        """Score options; cancelling it ends the request."""

    async def retain(self, session: str, ids: tuple[int, ...], seconds: float | None) -> None:
        """Evict what is cached of these tokens last, in place of what `session` retained before.

        A hint: memory that others need is taken. None is for as long as anything is retained.
        """

    def release(self, session: str) -> None:
        """End what `retain` began; never waits, and never fails."""
