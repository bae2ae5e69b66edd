"""Speculation over an API that takes and gives text: one request may write what several gens ask for.

A gen asks for more tokens than it needs, without its stop strings. What the model wrote behind the gen's
end is a guess at what the program will add. While the program's text agrees with it, the next gens take
their text from it and send nothing; where it does not, the guess is dropped. The text that the program
adds is text that the model wrote itself, so what follows it is distributed as if asked for anew. For the
same reason a message that the program has begun may be written from its start, by an API that cannot go on
with it, and is taken if the model begins it alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .backends.base import Backend, Generated, GenRequest, Prompt, Sample
from .errors import BackendError, Unsupported
from .params import Params
from .pieces import pieces_behind

_Place = tuple[int, bool]


@dataclass(frozen=True, slots=True)
class _Guess:
    """What the model wrote beyond what was asked for.

    Attributes:
        whole: all text, the guess included.
        place: the message it stands in.
        params: how it was sampled.
        ended: whether the model ended there by itself.
        pieces: `whole` in parts, of which each but the first is a token's text; None if that is not known.
    """

    whole: str
    place: _Place
    params: Params
    ended: bool
    pieces: tuple[str, ...] | None


class Speculation:
    """The guess of one state.

    Args:
        num_tokens: tokens that a request asks for at least.
    """

    def __init__(self, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        self._guess: _Guess | None = None
        self._lists_tokens = True

    def fork(self) -> Speculation:
        """The same for a branch."""
        branch = Speculation(self.num_tokens)
        branch._guess, branch._lists_tokens = self._guess, self._lists_tokens
        return branch

    async def generate(self, backend: Backend, request: GenRequest) -> Generated:
        """Answer from the guess, or ask the backend; as `Backend.generate`.

        Raises:
            Unsupported: a message that is begun has to be written from its start, for a gen that asks for
                more than text; or it has to be cut at `max_tokens`, and the server does not say where.
        """
        prompt = request.prompt
        restarts = backend.restarts and prompt.is_open and bool(prompt.messages)
        reasons = _why_not_plain(request.params)
        if reasons and restarts and prompt.messages[-1].content:
            raise Unsupported(
                "An assistant's message that is begun is written from its start only for a gen of one "
                f"text and nothing else; this one has {' and '.join(reasons)}. It can stand at the start "
                "of a message."
            )
        if reasons or (request.on_text is not None and not restarts):
            self._guess = None
            return await backend.generate(request)
        generated = self._guessed(request)
        if generated is None:
            self._guess = None
            # What is followed alone would leave no guess, and what comes behind it in a message needs one.
            asked = replace(request, on_text=None, may_restart=restarts)
            generated = await self._ask(backend, asked)
        if request.on_text is not None and generated.samples[0].text:
            request.on_text(generated.samples[0].text, ())
        return generated

    def _guessed(self, request: GenRequest) -> Generated | None:
        prompt, params, guess = request.prompt, request.params, self._guess
        if guess is None or guess.params != _sampled_as(params) or not _agrees(guess, prompt):
            return None
        text = guess.whole[len(prompt.whole) :]
        pieces = None if guess.pieces is None else pieces_behind(guess.pieces, len(prompt.whole))
        sample = _cut(text, params, ended=guess.ended, pieces=pieces)
        if sample is None:
            return None
        return Generated(
            samples=[sample], prompt_ids=None, num_prompt_tokens=0, num_cached_tokens=None
        )

    async def _ask(self, backend: Backend, request: GenRequest) -> Generated:
        params = request.params
        begun = request.prompt.messages[-1].content if request.may_restart else ""
        most = None
        if params.max_tokens is not None:
            # What is begun is written too; a token is at least a byte.
            most = max(params.max_tokens, self.num_tokens) + len(begun.encode())
        free = replace(request, params=replace(params, max_tokens=most, stop=None))
        generated = await self._written(backend, free)
        sample = self._take(generated, request)
        if sample is not None:
            return replace(generated, samples=[sample])
        # Where its own limit would have cut it cannot be told from the text.
        if not begun:
            return await backend.generate(replace(request, may_restart=False))
        raise Unsupported(
            f"The answer may be longer than max_tokens={params.max_tokens}, and the server does not say "
            "where its tokens end (logprobs of chat completions), which a message that is begun needs to "
            "be cut. A larger max_tokens, or a gen at the start of a message, needs no cut."
        )

    async def _written(self, backend: Backend, request: GenRequest) -> Generated:
        """A long answer; with its tokens, if a limit may have to cut one that cannot be asked for anew."""
        if not request.may_restart or request.params.max_tokens is None or not self._lists_tokens:
            return await backend.generate(request)
        try:
            params = replace(request.params, logprobs=0)
            return await backend.generate(replace(request, params=params))
        except BackendError as error:
            if error.status not in (400, 422):
                raise
        generated = await backend.generate(request)
        self._lists_tokens = False
        return generated

    def _take(self, generated: Generated, request: GenRequest) -> Sample | None:
        """What the gen asked for of what was written, the rest becoming the guess; None as in `_cut`."""
        prompt, params = request.prompt, request.params
        (whole,) = generated.samples
        ended = whole.finish_reason == "stop"
        num_tokens = whole.num_tokens if whole.pieces is None else len(whole.pieces)
        fits = params.max_tokens is None or num_tokens <= params.max_tokens
        sample = _cut(whole.text, params, ended=ended, fits=fits, pieces=whole.pieces)
        if sample is None and fits:
            sample = replace(whole, logprobs=None)
        if sample is None:
            return None
        pieces = None if whole.pieces is None else (prompt.whole, *whole.pieces)
        self._guess = _Guess(
            prompt.whole + whole.text, _place(prompt), _sampled_as(params), ended, pieces
        )
        return replace(sample, num_tokens=whole.num_tokens)


def _why_not_plain(params: Params) -> list[str]:
    """What a gen asks for that cannot be had by cutting a longer text."""
    asked = {
        f"n={params.n}": (params.n or 1) != 1,
        params.constraint[0] if params.constraint else "": params.constraint is not None,
        "logprobs": params.logprobs is not None,
        "min_tokens": bool(params.min_tokens),
        "stop_token_ids": bool(params.stop_token_ids),
        "stop_regex": bool(params.stop_regex),
    }
    return [name for name, given in asked.items() if given]


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


def _cut(
    text: str,
    params: Params,
    *,
    ended: bool,
    fits: bool = False,
    pieces: Sequence[str] | None = None,
) -> Sample | None:
    """The text up to its first stop string, the gen's limit, or the model's end; None if there is none of
    them, or where the limit is cannot be told. A token is at least a byte.

    Args:
        ended: whether the model ended it by itself.
        fits: whether all of the text is known to be short enough.
        pieces: the texts of its tokens.
    """
    found = [(at, stop) for stop in params.stop or () if (at := text.find(stop)) >= 0]
    end, stop = min(found) if found else (len(text), None)
    needed = end + len(stop or "")
    if params.max_tokens is not None and not fits:
        if pieces is None:
            if len(text[:needed].encode()) > params.max_tokens:
                return None
        elif len(allowed := "".join(pieces[: params.max_tokens])) < needed or (
            len(pieces) == params.max_tokens and not (stop or ended)
        ):
            return Sample(text=allowed, finish_reason="length")
    if stop is None and not ended:
        return None
    return Sample(text=text[:end], finish_reason="stop", stop_reason=stop)
