"""A backend of bytes that answers from a script, and remembers what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ramet import Runtime, RuntimeEndpoint
from ramet.lang.backends.base import (
    Generated,
    GenRequest,
    Message,
    OptionScore,
    Sample,
    Scored,
    ScoreRequest,
)
from ramet.lang.chat import Frames
from ramet.lang.defaults import set_default_backend
from ramet.lang.params import Params

Reply = Callable[[str], str]


@dataclass
class FakeBackend:
    """Tokens are bytes. Stops at stop strings; counts as cached what an earlier request has seen.

    With `takes_text` it is one of the backends where text travels, and messages. With `lists_tools` its
    template has a place for tools.
    """

    reply: Reply = lambda prompt: "ok"
    score_of: Callable[[str, str], list[float]] = lambda prompt, option: [-float(len(option))]
    delay: float = 0.0
    requests: list[GenRequest] = field(default_factory=list)
    scorings: list[ScoreRequest] = field(default_factory=list)
    refuses: Callable[[Params], None] = lambda params: None
    num_live: int = 0
    most_live: int = 0
    cancelled: int = 0
    seen: set[bytes] = field(default_factory=set)
    num_renders: int = 0
    retains: bool = True
    restarts: bool = False
    retained: dict[str, tuple[tuple[int, ...], float | None]] = field(default_factory=dict)
    num_retained: int = 0
    takes_text: bool = False
    lists_tools: bool = False

    def __post_init__(self) -> None:
        self.frames: Frames | None = None if self.takes_text else Frames(self.render)

    def check(self, params: Params) -> None:
        self.refuses(params)

    async def generate(self, request: GenRequest) -> Generated:
        self.requests.append(request)
        self.num_live += 1
        self.most_live = max(self.most_live, self.num_live)
        try:
            return await self._generate(request)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.num_live -= 1

    async def _generate(self, request: GenRequest) -> Generated:
        prompt, params = request.prompt, request.params
        whole = prompt.whole
        assert self.takes_text or whole == bytes(prompt.ids).decode() + prompt.text
        data = whole.encode()
        cached = max((n for n in range(len(data) + 1) if data[:n] in self.seen), default=0)
        await asyncio.sleep(self.delay)
        samples = [self._sample(self.reply(whole), params) for _ in range(params.n or 1)]
        if request.on_text is not None:
            entries = samples[0].logprobs or ()
            for index, character in enumerate(samples[0].text):
                request.on_text(character, entries[index : index + 1])
                await asyncio.sleep(0)
        said = data + bytes(samples[0].kept_ids)
        self.seen |= {said[:n] for n in range(1, len(said) + 1)}
        return Generated(
            samples=samples,
            prompt_ids=None if self.takes_text else tuple(prompt.text.encode()),
            num_prompt_tokens=len(data),
            num_cached_tokens=cached,
        )

    def _sample(self, text: str, params: Params) -> Sample:
        reason: str = "stop"
        stop: str | None = None
        for candidate in params.stop or ():
            if candidate in text:
                text, stop = text.partition(candidate)[0], candidate
        if params.max_tokens is not None and len(text) > params.max_tokens:
            text, reason = text[: params.max_tokens], "length"
        ids = tuple(text.encode())
        logprobs = None
        if params.logprobs is not None:
            logprobs = tuple(
                {
                    "token_id": i,
                    "token": chr(i),
                    "logprob": -0.5,
                    "top_ids": (i,) * params.logprobs,
                    "top_tokens": (chr(i),) * params.logprobs,
                    "top_logprobs": (-0.5,) * params.logprobs,
                }
                for i in ids
            )
        return Sample(
            text=text,
            kept_ids=ids,
            num_tokens=len(ids),
            finish_reason=reason,
            stop_reason=stop,
            logprobs=logprobs,
        )

    async def retain(self, session: str, ids: tuple[int, ...], seconds: float | None) -> None:
        self.retained[session] = (ids, seconds)
        self.num_retained += 1

    def release(self, session: str) -> None:
        self.retained.pop(session, None)

    async def score(self, request: ScoreRequest) -> Scored:
        self.scorings.append(request)
        await asyncio.sleep(self.delay)
        whole = request.prompt.whole
        rows = [tuple(self.score_of(whole, option)) for option in request.options]
        options = tuple(
            OptionScore(
                text=option,
                token_ids=tuple(range(len(row))),
                tokens=("t",) * len(row),
                logprobs=row,
                unconditional=(tuple(self.score_of("", option)) if request.unconditional else ()),
            )
            for option, row in zip(request.options, rows, strict=True)
        )
        return Scored(options=options, num_prompt_tokens=len(whole), num_cached_tokens=len(whole))

    async def render(
        self, messages: Sequence[Message], add_generation_prompt: bool, tools: Any
    ) -> str:
        self.num_renders += 1
        names = [tool["function"]["name"] for tool in tools or ()] if self.lists_tools else []
        text = f"<tools>{names} as <tool_call>…</tool_call></tools>\n" if names else ""
        text += "".join(f"<{m.role}>{m.content}</{m.role}>\n" for m in messages)
        return text + ("<assistant>" if add_generation_prompt else "")


@pytest.fixture
def backend() -> Iterator[FakeBackend]:
    """The default backend of the test."""
    made = FakeBackend()
    set_default_backend(made)
    yield made
    set_default_backend(None)


@pytest.fixture
def text_backend() -> Iterator[FakeBackend]:
    """The default backend of the test, where text travels."""
    made = FakeBackend(takes_text=True)
    set_default_backend(made)
    yield made
    set_default_backend(None)


@pytest.fixture(scope="session")
def runtime(tiny_folder: Path) -> Iterator[Runtime]:
    """The tiny model in this process."""
    with Runtime(tiny_folder, kv_cache_memory=32 * 1024**2) as made:
        yield made


@pytest.fixture(scope="session")
def endpoint(server_url: str) -> Iterator[RuntimeEndpoint]:
    """The same over HTTP."""
    with RuntimeEndpoint(server_url) as made:
        yield made


@pytest.fixture(params=["runtime", "endpoint"])
def exact(request: pytest.FixtureRequest) -> Any:
    """Each of the backends in which tokens travel."""
    return request.getfixturevalue(request.param)
