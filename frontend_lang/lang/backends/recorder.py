"""A backend that remembers what went through another one: for benchmarks, tests and the curious."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass

from ..chat import Frames
from ..params import Params
from .base import Backend, Generated, GenRequest, Prompt, Scored, ScoreRequest


@dataclass(slots=True)
class Call:
    """One request and what became of it.

    Attributes:
        prompt: what it continued; as ids and text, or as text and messages, as the backend has them.
        sent: its place among all sendings and endings of the recorder, from 0.
        ended: the place of its end; None while it runs.
        seconds: from one to the other.
        generated: the answer to a generation.
        scored: the answer to a scoring.
        error: what it failed with.
    """

    prompt: Prompt
    sent: int
    ended: int | None = None
    seconds: float = 0.0
    generated: Generated | None = None
    scored: Scored | None = None
    error: BaseException | None = None


class Recorder:
    """A backend around another one that keeps every call.

    It keeps them until they are taken out of `calls`, so it is not for endless programs. Closing it
    closes the other.

    Args:
        backend: what does the work.

    Attributes:
        calls: in the order in which they were sent.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.calls: list[Call] = []
        self._places = itertools.count()

    @property
    def frames(self) -> Frames | None:
        """The backend's."""
        return self.backend.frames

    @property
    def retains(self) -> bool:
        """The backend's."""
        return self.backend.retains

    @property
    def restarts(self) -> bool:
        """The backend's."""
        return self.backend.restarts

    def check(self, params: Params) -> None:
        """Pass if the backend can do it; see `Backend`."""
        self.backend.check(params)

    async def generate(self, request: GenRequest) -> Generated:
        """Sample; see `Backend`."""
        call = self._send(request.prompt)
        started = time.perf_counter()
        try:
            call.generated = await self.backend.generate(request)
            return call.generated
        except BaseException as error:
            call.error = error
            raise
        finally:
            self._end(call, started)

    async def score(self, request: ScoreRequest) -> Scored:
        """Score options; see `Backend`."""
        call = self._send(request.prompt)
        started = time.perf_counter()
        try:
            call.scored = await self.backend.score(request)
            return call.scored
        except BaseException as error:
            call.error = error
            raise
        finally:
            self._end(call, started)

    async def retain(self, session: str, ids: tuple[int, ...], seconds: float | None) -> None:
        """Keep a prefix; see `Backend`. It is no call."""
        await self.backend.retain(session, ids, seconds)

    def release(self, session: str) -> None:
        """End what `retain` began."""
        self.backend.release(session)

    def close(self) -> None:
        """Close the backend, if it can be closed. Safe to call twice."""
        close = getattr(self.backend, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, prompt: Prompt) -> Call:
        call = Call(prompt, next(self._places))
        self.calls.append(call)
        return call

    def _end(self, call: Call, started: float) -> None:
        call.seconds = time.perf_counter() - started
        call.ended = next(self._places)
