"""What the library returns: finished completions, and text as it grows.

Owns the way from outputs (token ids) to text. It knows nothing of how a request reaches the engine.
"""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..errors import (
    CapacityError,
    DeadlineExceeded,
    EngineDead,
    EngineError,
    GrammarError,
    InvalidRequest,
    RametError,
)
from ..request import FinishReason, RequestOutput, TokenLogprobs
from ..text.detokenizer import IncrementalDetokenizer
from ..text.tokenizer import Tokenizer
from .messages import GenerateRequest
from .thread import EngineThread

Item = RequestOutput | EngineDead


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One finished answer.

    Attributes:
        text: without the stop string, or end or stop token, that ended it, unless
            `include_stop_str_in_output` asked for it.
        token_ids: every token that was sampled, the end or stop token included.
        finish_reason: STOP, or LENGTH when `max_tokens` or the context was used up.
        stop_reason: the stop string, the pattern of `stop_regex` or the stop token id that ended it; None
            for the model's end tokens.
        logprobs: one entry per token, or None if they were not asked for.
        prompt_logprobs: one entry per prompt token from `prompt_logprobs_start`, the first token of
            all excepted; or None if not asked for.
        num_prompt_tokens: tokens of the prompt.
        num_cached_tokens: those of them whose KV was found in the cache.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None
    logprobs: tuple[TokenLogprobs, ...] | None
    prompt_logprobs: tuple[TokenLogprobs, ...] | None
    num_prompt_tokens: int
    num_cached_tokens: int


class Answer:
    """One request's answer while it grows."""

    def __init__(self, request: GenerateRequest, tokenizer: Tokenizer) -> None:
        self.completion: Completion | None = None
        self._params = request.params
        self._detokenizer = IncrementalDetokenizer(
            tokenizer,
            stop=request.params.stop_strings,
            include_stop=request.params.include_stop_str_in_output,
            skip_special_tokens=request.params.skip_special_tokens,
            min_tokens=request.params.min_tokens,
        )
        self._text: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._prompt_logprobs: tuple[TokenLogprobs, ...] = ()

    @property
    def logprobs(self) -> Sequence[TokenLogprobs]:
        """Of the tokens so far, if they were asked for."""
        return self._logprobs

    def add(self, output: RequestOutput) -> str:
        """Take in what one step added; returns the new text, which may be empty."""
        self._token_ids += output.token_ids
        self._logprobs += output.logprobs
        self._prompt_logprobs += output.prompt_logprobs
        text = self._detokenizer.push(self._shown(output)).text
        if output.finish_reason is not None:
            text += self._detokenizer.finish()
        self._text.append(text)
        if output.finish_reason is not None:
            self.completion = Completion(
                text="".join(self._text),
                token_ids=tuple(self._token_ids),
                finish_reason=output.finish_reason,
                stop_reason=output.stop_reason,
                logprobs=None if self._params.logprobs is None else tuple(self._logprobs),
                prompt_logprobs=(
                    None if self._params.prompt_logprobs is None else self._prompt_logprobs
                ),
                num_prompt_tokens=output.num_prompt_tokens,
                num_cached_tokens=output.num_cached_tokens,
            )
        return text

    def _shown(self, output: RequestOutput) -> Sequence[int]:
        if output.ended_by_token and not self._params.include_stop_str_in_output:
            return output.token_ids[:-1]
        return output.token_ids


class Call:
    """The requests of one call into the library, and their answers in the same order.

    Args:
        num_samples: requests of each prompt, one after the other. The first alone has the prompt scored, for
            all of them.
    """

    def __init__(
        self,
        requests: Sequence[GenerateRequest],
        tokenizer: Tokenizer,
        engine: EngineThread,
        *,
        num_samples: int = 1,
    ) -> None:
        self.requests = requests
        self._num_samples = num_samples
        self._engine = engine
        self._answers = {request.request_id: Answer(request, tokenizer) for request in requests}
        self._unfinished = dict.fromkeys(self._answers)
        self._timeout = requests[0].timeout
        self._started = time.monotonic()

    @property
    def finished(self) -> bool:
        """Whether every request has got its last output."""
        return not self._unfinished

    def take(self, item: RequestOutput | EngineDead) -> str:
        """Take in an output; returns its new text.

        Raises:
            EngineDead: the engine ended.
            DeadlineExceeded: the call's own time limit passed.
            InvalidRequest: the request cannot be served; GrammarError if its constraint is at fault.
            CapacityError: the machine was too busy.
            EngineError: the engine failed on the request.
        """
        if isinstance(item, EngineDead):
            self._unfinished.clear()
            raise item
        if item.finished:
            self._unfinished.pop(item.request_id, None)
        if item.finish_reason in (FinishReason.ABORT, FinishReason.ERROR):
            raise self._failure(item)
        return self._answers[item.request_id].add(item)

    def abort(self) -> None:
        """End what has not finished. Safe to call twice, on any thread."""
        unfinished, self._unfinished = self._unfinished, {}
        if unfinished:
            self._engine.abort(unfinished)

    @property
    def logprobs(self) -> Sequence[TokenLogprobs]:
        """Of the first answer's tokens so far, if they were asked for."""
        return next(iter(self._answers.values())).logprobs

    def completions(self) -> list[Completion]:
        """The answers; all must have finished."""
        done = [a.completion for a in self._answers.values() if a.completion is not None]
        firsts = (done[i - i % self._num_samples] for i in range(len(done)))
        return [
            one if first is one else replace(one, prompt_logprobs=first.prompt_logprobs)
            for one, first in zip(done, firsts, strict=True)
        ]

    def _failure(self, output: RequestOutput) -> RametError:
        if output.invalid:
            message = output.error or "The request is not valid."
            if self.requests[0].params.constraint is not None:
                return GrammarError(message, param="constraint")
            return InvalidRequest(message)
        if output.overloaded:
            return CapacityError(output.error or "The request cannot be served now.")
        if self._timeout is not None and time.monotonic() - self._started >= self._timeout:
            return DeadlineExceeded(
                f"The time limit of {self._timeout:g} seconds passed.", param="timeout"
            )
        return EngineError(output.error or "The engine failed on this request.")


class TextStream:
    """Iterates over an answer's text as it is generated; leaving it early aborts the request.

    The pieces joined are the completion's text. Close it, use it as a context manager, or just drop it.
    """

    def __init__(self, call: Call, submit: Callable[[queue.SimpleQueue[Item]], None]) -> None:
        self._call = call
        self._items: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._completion: Completion | None = None
        submit(self._items)

    @property
    def completion(self) -> Completion | None:
        """The whole answer, once the iteration has ended; None before."""
        return self._completion

    @property
    def logprobs(self) -> Sequence[TokenLogprobs]:
        """Of the tokens so far, if they were asked for. A token's text may come later than it."""
        return self._call.logprobs

    def __iter__(self) -> TextStream:
        return self

    def __next__(self) -> str:
        while not self._call.finished:
            text = self._call.take(self._items.get())
            if self._call.finished:
                self._completion = self._call.completions()[0]
            if text:
                return text
        raise StopIteration

    def close(self) -> None:
        """End the request if it still runs. Safe to call twice."""
        self._call.abort()

    def __enter__(self) -> TextStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class AsyncTextStream:
    """`TextStream` for asyncio; cancelling the task that reads it aborts the request too."""

    def __init__(self, call: Call, submit: Callable[[asyncio.Queue[Item]], None]) -> None:
        self._call = call
        self._items: asyncio.Queue[Item] = asyncio.Queue()
        self._completion: Completion | None = None
        submit(self._items)

    @property
    def completion(self) -> Completion | None:
        """The whole answer, once the iteration has ended; None before."""
        return self._completion

    @property
    def logprobs(self) -> Sequence[TokenLogprobs]:
        """Of the tokens so far, if they were asked for. A token's text may come later than it."""
        return self._call.logprobs

    def __aiter__(self) -> AsyncTextStream:
        return self

    async def __anext__(self) -> str:
        while not self._call.finished:
            try:
                item = await self._items.get()
            except asyncio.CancelledError:
                self._call.abort()
                raise
            text = self._call.take(item)
            if self._call.finished:
                self._completion = self._call.completions()[0]
            if text:
                return text
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """End the request if it still runs. Safe to call twice."""
        self._call.abort()

    async def __aenter__(self) -> AsyncTextStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        self._call.abort()
