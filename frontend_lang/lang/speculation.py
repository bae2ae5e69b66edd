"""Speculation over an API that takes and gives text: one request may write what several gens ask for.

A gen asks for more tokens than it needs, without its stop strings. What the model wrote behind the gen's
end is a guess at what the program will add. While the program's text agrees with it, the next gens take
their text from it and send nothing; where it does not, the guess is dropped. The text that the program
adds is text that the model wrote itself, so what follows it is distributed as if asked for anew. For the
same reason a message that the program has begun may be written from its start, by an API that cannot go on
with it, and is taken if the model begins it alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .backends.base import Backend, Generated, GenRequest, Prompt, Sample
from .params import Params

_Place = tuple[int, bool]


@dataclass(frozen=True, slots=True)
class _Guess:
    """What the model wrote beyond what was asked for.

    Attributes:
        whole: all text, the guess included.
        place: the message it stands in.
        params: how it was sampled.
        ended: whether the model ended there by itself.
    """

    whole: str
    place: _Place
    params: Params
    ended: bool


class Speculation:
    """The guess of one state.

    Args:
        num_tokens: tokens that a request asks for at least.
    """

    def __init__(self, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        self._guess: _Guess | None = None

    def fork(self) -> Speculation:
        """The same for a branch."""
        branch = Speculation(self.num_tokens)
        branch._guess = self._guess
        return branch

    async def generate(self, backend: Backend, request: GenRequest) -> Generated:
        """Answer from the guess, or ask the backend; as `Backend.generate`."""
        if not _is_plain(request):
            self._guess = None
            return await backend.generate(request)
        prompt, params = request.prompt, request.params
        guess = self._guess
        if guess is not None and guess.params == _sampled_as(params) and _agrees(guess, prompt):
            sample = _cut(guess.whole[len(prompt.whole) :], params, ended=guess.ended)
            if sample is not None:
                return Generated(
                    samples=[sample], prompt_ids=None, num_prompt_tokens=0, num_cached_tokens=None
                )
        self._guess = None
        return await self._ask(backend, request)

    async def _ask(self, backend: Backend, request: GenRequest) -> Generated:
        prompt, params = request.prompt, request.params
        most = None if params.max_tokens is None else max(params.max_tokens, self.num_tokens)
        free = replace(params, max_tokens=most, stop=None)
        asked = replace(request, params=free, may_restart=True)
        generated = await backend.generate(asked)
        (whole,) = generated.samples
        fits = params.max_tokens is None or whole.num_tokens <= params.max_tokens
        ended = whole.finish_reason == "stop"
        sample = _cut(whole.text, params, ended=ended, fits=fits)
        if sample is None and fits:
            sample = whole
        if sample is None:
            # Where its own limit would have cut it cannot be told from the text.
            return await backend.generate(request)
        self._guess = _Guess(
            prompt.whole + whole.text, _place(prompt), _sampled_as(params), ended=ended
        )
        return replace(generated, samples=[replace(sample, num_tokens=whole.num_tokens)])


def _is_plain(request: GenRequest) -> bool:
    params = request.params
    return (
        request.on_text is None
        and (params.n or 1) == 1
        and params.constraint is None
        and params.logprobs is None
        and not params.min_tokens
        and not params.stop_token_ids
    )


def _sampled_as(params: Params) -> Params:
    return replace(params, max_tokens=None, stop=None, timeout=None, priority=None)


def _place(prompt: Prompt) -> _Place:
    return len(prompt.messages), prompt.is_open


def _agrees(guess: _Guess, prompt: Prompt) -> bool:
    return (
        guess.place == _place(prompt)
        and guess.whole.startswith(prompt.whole)
        and len(guess.whole) > len(prompt.whole)
    )


def _cut(text: str, params: Params, *, ended: bool, fits: bool = False) -> Sample | None:
    """The text up to its first stop string, or all of it if the model ended; None if it is neither, or
    may be longer than the gen allows. A token is at least a byte.

    Args:
        fits: whether all of the text is known to be short enough.
    """
    found = [(at, stop) for stop in params.stop or () if (at := text.find(stop)) >= 0]
    end, stop = min(found) if found else (len(text), None)
    if stop is None and not ended:
        return None
    if not fits and params.max_tokens is not None and len(text[:end].encode()) > params.max_tokens:
        return None
    return Sample(text=text[:end], finish_reason="stop", stop_reason=stop)
