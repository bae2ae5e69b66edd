"""Requests whose output must match something: waiting for their grammars, then walking them.

Between the engine and the package `structured`: knows requests and time, nothing of grammars' insides.
Walking a grammar takes microseconds as a rule and up to a tenth of a second for a hostile one, so it
happens on threads, and the step waits only so long; a request that is late misses steps, alone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import GrammarError, RametError
from ..request import Request
from ..structured.constraint import Constraint
from ..structured.grammar import Grammar, Matcher, allowed
from ..structured.service import GrammarService
from ..structured.threads import yield_to_others

GRACE_SECONDS = 0.005
"""How long a step waits for the grammars of its requests."""

SLOW_SECONDS = 0.002
"""A grammar that took this much processor time for a token is no longer waited for."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a grammar got with a token.

    Attributes:
        forced: the tokens that must follow; they are taken already.
        terminated: nothing may follow any more.
        error: why the request cannot go on, or None.
    """

    request: Request
    forced: Sequence[int] = ()
    terminated: bool = False
    error: RametError | None = None


@dataclass(slots=True, eq=False)
class _Walk:
    """One request's place in its grammar."""

    request: Request
    matcher: Matcher
    is_slow: bool = False
    progress: Progress | None = None

    def advance(self, token_id: int, most_forced: int) -> None:
        """Take a token; leaves the outcome in `progress`."""
        started = time.thread_time()
        forced: list[int] = []
        error = None
        try:
            self.matcher.advance(token_id)
            forced = self.matcher.take_forced(most_forced)
        except GrammarError as caught:
            error = caught
        self.is_slow = time.thread_time() - started > SLOW_SECONDS
        self.progress = Progress(self.request, forced, self.matcher.is_terminated, error)


class ConstrainedRequests:
    """The live requests with a constraint. Called by the engine's thread alone."""

    def __init__(self, grammars: GrammarService, vocab_size: int) -> None:
        self._grammars = grammars
        self._vocab_size = vocab_size
        self._compiling: dict[Request, tuple[Constraint, Future[Grammar]]] = {}
        self._walks: dict[str, _Walk] = {}
        self._late: dict[Request, _Walk] = {}
        self._fast = ThreadPoolExecutor(1, thread_name_prefix="masks")
        self._slow = ThreadPoolExecutor(
            2, thread_name_prefix="slow-masks", initializer=yield_to_others
        )

    @property
    def num_compiling(self) -> int:
        """Requests that cannot be scheduled yet."""
        return len(self._compiling)

    def is_compiling(self, request: Request) -> bool:
        """Whether a request still waits for its grammar."""
        return request in self._compiling

    def add(self, request: Request, constraint: Constraint) -> None:
        """Take a request, which `compiled` hands out when its grammar is there."""
        self._compiling[request] = (constraint, self._grammars.get(constraint))

    def compiled(self) -> list[tuple[Request, RametError | None]]:
        """Requests that may be scheduled from now on, or must end with an error."""
        ready = [r for r, (_, future) in self._compiling.items() if future.done()]
        return [(request, self._start(request)) for request in ready]

    def remove(self, request: Request) -> None:
        """Forget a request, in whatever state; others are ignored."""
        compiling = self._compiling.pop(request, None)
        if compiling is not None:
            self._grammars.leave(compiling[0])
        self._walks.pop(request.request_id, None)
        self._late.pop(request, None)

    def masks(self, request_ids: Sequence[str]) -> tuple[list[int], NDArray[np.bool_]] | None:
        """Which of the rows are constrained, and what they may take; None if none is.

        Returns:
            Row numbers, and `[len(rows), vocab_size]` bool.
        """
        if not self._walks:
            return None
        rows = [row for row, id_ in enumerate(request_ids) if id_ in self._walks]
        if not rows:
            return None
        words = np.stack([self._walks[request_ids[row]].matcher.mask for row in rows])
        return rows, allowed(words, self._vocab_size)

    def advance(self, sampled: Mapping[Request, int]) -> dict[Request, Progress | None]:
        """Take the tokens of a step; None for a request that is late, and must pause.

        Tokens of requests without a constraint are ignored.
        """
        if not self._walks:
            return {}
        walks = {r: self._walks[r.request_id] for r in sampled if r.request_id in self._walks}
        if not walks:
            return {}
        tasks = [(walk, sampled[r], _most_forced(r)) for r, walk in walks.items()]
        for walk in walks.values():
            walk.progress = None
        quick = [task for task in tasks if not task[0].is_slow]
        finished = self._fast.submit(_advance_all, quick) if quick else None
        for task in tasks:
            if task[0].is_slow:
                self._slow.submit(_advance_all, [task])
        if finished is not None:
            wait([finished], GRACE_SECONDS)
        self._late.update({r: walk for r, walk in walks.items() if walk.progress is None})
        return {r: None if r in self._late else walk.progress for r, walk in walks.items()}

    def caught_up(self) -> list[Progress]:
        """Requests that were late and may go on."""
        done = {r: walk.progress for r, walk in self._late.items() if walk.progress is not None}
        for request in done:
            del self._late[request]
        return list(done.values())

    def wait(self, seconds: float) -> None:
        """Wait a little for a grammar; for when nothing else can run."""
        if self._late:
            time.sleep(min(seconds, 0.001))
        elif self._compiling:
            wait([f for _, f in self._compiling.values()], seconds, return_when=FIRST_COMPLETED)

    def _start(self, request: Request) -> RametError | None:
        _, future = self._compiling.pop(request)
        error = future.exception()
        if error is not None:
            return error if isinstance(error, RametError) else GrammarError(str(error))
        try:
            matcher = future.result().matcher()
        except GrammarError as caught:
            return caught
        self._walks[request.request_id] = _Walk(request, matcher)
        return None


def _advance_all(tasks: Sequence[tuple[_Walk, int, int]]) -> None:
    for walk, token_id, most_forced in tasks:
        walk.advance(token_id, most_forced)


def _most_forced(request: Request) -> int:
    """Tokens that may be taken without the model: none whose log-probability is wanted."""
    if request.params.logprobs is not None:
        return 0
    return request.max_total_tokens - request.num_tokens
