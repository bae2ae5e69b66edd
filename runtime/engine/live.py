"""What the engine remembers of a live request beside its scheduling, and when its output ends."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Self

from ..request import FinishReason, Request, RequestOutput, TokenLogprobs
from ..text.detokenizer import IncrementalDetokenizer
from ..text.stop_regex import RegexWatch, stop_patterns
from ..text.tokenizer import Tokenizer

End = tuple[FinishReason | None, str | int | None]
"""Why an output ended, or None; and the stop string, pattern or stop token id that ended it."""


class LiveRequest:
    """One live request.

    Attributes:
        scored: log-probabilities of its prompt that have not been handed out.
        is_queued: whether the scheduler knows it.
        session, retain, tenant: as in `GenerateRequest`.
    """

    def __init__(
        self, request: Request, tokenizer: Tokenizer, eos_token_ids: Collection[int]
    ) -> None:
        self.request = request
        self.scored: list[TokenLogprobs] = []
        self.is_queued = False
        self.session = ""
        self.retain: float | None = None
        self.tenant = ""
        self._eos_token_ids = eos_token_ids
        self._detokenizer = _detokenizer(request, tokenizer)
        self._patterns = _PatternSearch.of(request, tokenizer)

    def end_at(self, token_id: int) -> End:
        """Whether the output ends with this token, which was just appended. Once per token."""
        request, params = self.request, self.request.params
        matched = self._detokenizer.push((token_id,)).stop_match if self._detokenizer else None
        if self._patterns is not None:
            pattern = self._patterns.push(token_id)
            matched = matched or pattern
        if request.num_output_tokens >= params.min_tokens:
            if token_id in params.stop_token_ids:
                return FinishReason.STOP, token_id
            if token_id in self._eos_token_ids and not params.ignore_eos:
                return FinishReason.STOP, None
            if matched is not None:
                return FinishReason.STOP, matched
        if request.num_tokens >= request.max_total_tokens:
            return FinishReason.LENGTH, None
        return None, None

    def output(
        self,
        *,
        token_ids: Sequence[int] = (),
        logprobs: tuple[TokenLogprobs, ...] = (),
        end: End = (None, None),
        ends_with_text: bool = False,
        error: str | None = None,
        invalid: bool = False,
        overloaded: bool = False,
    ) -> RequestOutput:
        """What goes out for one step; hands out `scored` too."""
        request = self.request
        scored, self.scored = tuple(self.scored), []
        return RequestOutput(
            request_id=request.request_id,
            token_ids=tuple(token_ids),
            logprobs=logprobs,
            prompt_logprobs=scored,
            finish_reason=end[0],
            stop_reason=end[1],
            num_prompt_tokens=request.num_prompt_tokens,
            num_cached_tokens=request.num_cached_tokens or 0,
            num_output_tokens=request.num_output_tokens,
            ends_with_text=ends_with_text,
            error=error,
            invalid=invalid,
            overloaded=overloaded,
        )


def _detokenizer(request: Request, tokenizer: Tokenizer) -> IncrementalDetokenizer | None:
    """For requests with stop strings only: their text decides when they end."""
    params = request.params
    if not params.stop_strings:
        return None
    return IncrementalDetokenizer(
        tokenizer,
        stop=params.stop_strings,
        include_stop=params.include_stop_str_in_output,
        skip_special_tokens=params.skip_special_tokens,
        min_tokens=params.min_tokens,
    )


class _PatternSearch:
    """Looks for `stop_regex` in the text of an output, where stop strings hold nothing back."""

    def __init__(self, watch: RegexWatch, text: IncrementalDetokenizer) -> None:
        self._watch = watch
        self._text = text

    @classmethod
    def of(cls, request: Request, tokenizer: Tokenizer) -> Self | None:
        """For a request with patterns that are no plain text."""
        patterns = stop_patterns(request.params.stop_regex)
        if not patterns.names:
            return None
        skip = request.params.skip_special_tokens
        text = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip)
        return cls(RegexWatch(patterns), text)

    def push(self, token_id: int) -> str | None:
        """Add a token; returns the pattern that matches up to somewhere in its text, if one does."""
        return self._watch.push(self._text.push((token_id,)).text)
