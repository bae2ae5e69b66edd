"""A byte-level model of text and an engine that replays scripts, served over real or simulated HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer

from ramet.runtime.config import ServerConfig
from ramet.runtime.engine.client import EngineStatus
from ramet.runtime.engine.messages import EngineInfo, EngineStats, GenerateRequest, Release, Retain
from ramet.runtime.errors import EngineDead, RametError
from ramet.runtime.request import FinishReason, RequestOutput, TokenLogprobs
from ramet.runtime.server.app import create_app
from ramet.runtime.server.lifecycle import Lifecycle
from ramet.runtime.server.model import ServedModel
from ramet.runtime.sources.base import TokenizerFiles
from ramet.runtime.text.chat_template import ChatTemplate
from ramet.runtime.text.detokenizer import IncrementalDetokenizer
from ramet.runtime.text.tokenizer import Tokenizer

MAX_MODEL_LEN = 512
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    """One token per byte, and three special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fast = FastTokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    ids = frozenset(range(256, 256 + len(SPECIAL)))
    config = {"eos_token": "<|im_end|>"}
    return Tokenizer(TokenizerFiles(fast, config, TEMPLATE, ids))


@dataclass
class FakeEngine:
    """An EngineClient: each request is answered with the tokens that `reply` gives for it.

    It honours max_tokens, stop strings, end tokens and log-probabilities as an engine does, and
    waits `delay` seconds before each token. With `holds_back` patient streams get nothing before a
    request has finished, with `gathers` others a step's tokens at once.
    """

    tokenizer: Tokenizer
    reply: Callable[[GenerateRequest], Iterable[int | RequestOutput | Exception]]
    status: EngineStatus = EngineStatus.READY
    stats: EngineStats = field(default_factory=EngineStats)
    delay: float = 0.0
    num_cached_tokens: int = 0
    ignores_stop: bool = False
    holds_back: bool = False
    gathers: bool = False
    refusal: RametError | None = None
    requests: list[GenerateRequest] = field(default_factory=list)
    live: set[str] = field(default_factory=set)
    aborted: list[str] = field(default_factory=list)
    num_resets: int = 0
    posted: list[Retain | Release] = field(default_factory=list)
    streams: list[FakeStream] = field(default_factory=list)

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(
            model_name="bytes",
            max_model_len=MAX_MODEL_LEN,
            vocab_size=self.tokenizer.vocab_size,
            num_blocks=64,
            block_size=16,
            dtype="float32",
            kv_cache_dtype="float32",
            device="cpu",
            kernels="none",
            eos_token_ids=(258,),
            weight_bytes=1,
            kv_cache_bytes=1,
            load_seconds=0.0,
            max_retain_seconds=60.0,
        )

    @property
    def num_live(self) -> int:
        return len(self.live)

    def submit(
        self, requests: Sequence[GenerateRequest], *, is_patient: bool = False
    ) -> FakeStream:
        if self.refusal is not None:
            raise self.refusal
        if self.status is not EngineStatus.READY:
            raise EngineDead("not ready")
        assert not self.live & {request.request_id for request in requests}
        self.requests += requests
        self.live |= {request.request_id for request in requests}
        stream = FakeStream(self, requests, is_patient=self.holds_back and is_patient)
        self.streams.append(stream)
        return stream

    def post(self, message: Retain | Release) -> None:
        self.posted.append(message)

    async def start(self) -> EngineInfo:
        self.status = EngineStatus.READY
        return self.info

    async def stop(self) -> None:
        self.status = EngineStatus.STOPPED

    async def reset_prefix_cache(self) -> None:
        self.num_resets += 1

    def outputs(self, request: GenerateRequest) -> Iterator[RequestOutput | Exception]:
        """What a real engine would send, one step at a time."""
        params = request.params
        text = IncrementalDetokenizer(self.tokenizer, stop=params.stop)
        counts: dict[str, Any] = {
            "num_prompt_tokens": len(request.prompt_ids),
            "num_cached_tokens": self.num_cached_tokens,
        }
        scored: tuple[TokenLogprobs, ...] = ()
        if params.prompt_logprobs is not None:
            ids = request.prompt_ids[max(1, params.prompt_logprobs_start) :]
            scored = tuple(fake_logprobs(i, params.prompt_logprobs) for i in ids)
        if params.max_tokens == 0:
            yield RequestOutput(
                request_id=request.request_id,
                prompt_logprobs=scored,
                finish_reason=FinishReason.LENGTH,
                **counts,
            )
            return
        num_tokens = 0
        for step in self.reply(request):
            if not isinstance(step, int):
                yield step
                continue
            num_tokens += 1
            match = text.push([step]).stop_match
            reason: FinishReason | None = None
            stop_reason: str | int | None = None
            if step in params.stop_token_ids:
                reason, stop_reason = FinishReason.STOP, step
            elif step in self.info.eos_token_ids and not params.ignore_eos:
                reason = FinishReason.STOP
            elif match is not None and not self.ignores_stop:
                reason, stop_reason = FinishReason.STOP, match
            elif num_tokens == params.max_tokens:
                reason = FinishReason.LENGTH
            asked = params.logprobs
            yield RequestOutput(
                request_id=request.request_id,
                token_ids=(step,),
                logprobs=() if asked is None else (fake_logprobs(step, asked),),
                prompt_logprobs=scored,
                finish_reason=reason,
                stop_reason=stop_reason,
                num_output_tokens=num_tokens,
                **counts,
            )
            scored = ()
            if reason is not None:
                return
        raise AssertionError("the script ended before its request")


class FakeStream:
    """An OutputStream: one step of each request in turn.

    A patient one yields what it holds back when a request has finished.
    """

    def __init__(
        self, engine: FakeEngine, requests: Sequence[GenerateRequest], *, is_patient: bool
    ) -> None:
        self._engine = engine
        self._is_patient = is_patient
        self._unfinished = {request.request_id: engine.outputs(request) for request in requests}
        self.arrived = 0.0
        self.unread: list[tuple[RequestOutput, float]] = []

    @property
    def has_unread(self) -> bool:
        return bool(self.unread)

    async def __aiter__(self) -> AsyncIterator[RequestOutput]:
        while self._unfinished:
            await asyncio.sleep(self._engine.delay)
            last = list(self._unfinished)[-1]
            for request_id, outputs in list(self._unfinished.items()):
                output = next(outputs)
                if not isinstance(output, Exception):
                    self.unread.append((output, time.perf_counter()))
                if isinstance(output, Exception) or output.finished:
                    self._finish(request_id)
                elif self._is_patient:
                    continue
                if self._engine.gathers and request_id != last:
                    continue
                while self.unread:
                    one, self.arrived = self.unread.pop(0)
                    yield one
                if isinstance(output, Exception):
                    raise output

    def _finish(self, request_id: str) -> None:
        self._unfinished.pop(request_id, None)
        self._engine.live.discard(request_id)

    def abort(self) -> list[tuple[RequestOutput, float]]:
        self._engine.aborted += self._unfinished
        self._engine.live -= self._unfinished.keys()
        self._unfinished.clear()
        unread, self.unread = self.unread, []
        return unread


def fake_logprobs(token_id: int, num_top: int) -> TokenLogprobs:
    """A token that is the likeliest one, before its neighbours."""
    top = [(token_id + i) % 256 if i else token_id for i in range(num_top)]
    values = [-(token_id % 8 + 1) / 8 - i for i in range(num_top)]
    return TokenLogprobs(token_id, -(token_id % 8 + 1) / 8, 1, tuple(top), tuple(values))


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return byte_tokenizer()


@pytest.fixture
def say(tokenizer: Tokenizer) -> Callable[..., Any]:
    """A script that says a text and ends with the end token."""

    def script(text: str, *rest: Any) -> Callable[[GenerateRequest], list[Any]]:
        end = list(rest) or [258] * MAX_MODEL_LEN
        return lambda request: [*tokenizer.encode(text, False), *end]

    return script


@pytest.fixture
def engine(tokenizer: Tokenizer, say: Callable[..., Any]) -> FakeEngine:
    return FakeEngine(tokenizer, say("Hello there!"))


@pytest.fixture
def config() -> ServerConfig:
    return ServerConfig(served_model_name="org/bytes")


@pytest.fixture
def lifecycle(engine: FakeEngine) -> Lifecycle:
    return Lifecycle(engine)


@pytest.fixture
def app(
    config: ServerConfig, engine: FakeEngine, tokenizer: Tokenizer, lifecycle: Lifecycle
) -> FastAPI:
    model = ServedModel(
        name=config.served_model_name or "bytes",
        tokenizer=tokenizer,
        chat_template=ChatTemplate(tokenizer),
        tokenizer_config={"model_max_length": MAX_MODEL_LEN},
        version="0.1.0",
    )
    return create_app(config, engine, model, lifecycle)


@pytest.fixture
async def http(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """Requests that go straight into the application; responses come whole."""
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://ramet") as client:
        yield client


@pytest.fixture
async def url(app: FastAPI) -> AsyncIterator[str]:
    """The application behind a real socket of this machine."""
    server = uvicorn.Server(
        uvicorn.Config(app, port=0, log_level="error", lifespan="off", ws="none")
    )
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.005)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    await task
