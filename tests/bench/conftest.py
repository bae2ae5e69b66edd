"""A server that speaks just enough of the OpenAI protocol to be measured."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web


@dataclass
class FakeServer:
    """Answers each request with `word ` per token; keeps what it was sent.

    Attributes:
        fail_every: every so many requests is refused with 503; 0 refuses none.
        cut_short: end streams without a finish reason and without [DONE].
        error_event: send an error event after the first token.
        usage: report usage, with every prompt token but one cached.
        blank: send tokens without text.
        delay: seconds between tokens.
    """

    fail_every: int = 0
    cut_short: bool = False
    error_event: bool = False
    usage: bool = True
    blank: bool = False
    delay: float = 0.0
    has_tokenize: bool = True
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    most_in_flight: int = 0
    _in_flight: int = 0

    def app(self) -> web.Application:
        app = web.Application(client_max_size=2**24)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._answer)
        app.router.add_post("/v1/chat/completions", self._answer)
        if self.has_tokenize:
            app.router.add_post("/tokenize", self._tokenize)
        return app

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "fake-model"}]})

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        return web.json_response({"tokens": list(range(count_tokens(body["prompt"])))})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        if self.fail_every and len(self.bodies) % self.fail_every == 0:
            return web.json_response({"error": {"message": "too busy"}}, status=503)
        self._in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self._in_flight)
        try:
            return await self._stream(request, body)
        finally:
            self._in_flight -= 1

    async def _stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        chat = "messages" in body
        samples, length = range(body.get("n", 1)), body["max_tokens"]

        async def send(event: Any) -> None:
            text = event if isinstance(event, str) else json.dumps(event)
            await response.write(f"data: {text}\n\n".encode())

        for token in range(length):
            for index in samples:
                text = "" if self.blank else f"w{token} "
                last = token == length - 1 and not self.cut_short
                choice: dict[str, Any] = {
                    "index": index,
                    "finish_reason": "length" if last else None,
                }
                choice |= {"delta": {"content": text}} if chat else {"text": text}
                await send({"choices": [choice]})
            if self.error_event:
                await send({"error": {"message": "engine died"}})
                return response
            await asyncio.sleep(self.delay)
        if self.usage:
            prompt = body["messages"][0]["content"] if chat else body["prompt"]
            num_prompt = count_tokens(prompt)
            await send(
                {
                    "choices": [],
                    "usage": {
                        "prompt_tokens": num_prompt,
                        "completion_tokens": length * len(samples),
                        "prompt_tokens_details": {"cached_tokens": num_prompt - 1},
                    },
                }
            )
        if not self.cut_short:
            await send("[DONE]")
        return response


def count_tokens(text: str) -> int:
    """A tokenizer of a kind: words longer than six letters are two tokens."""
    return sum(2 if len(word) > 6 else 1 for word in text.split())


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    """A fake server that listens on a free port of the loopback."""
    fake = FakeServer()
    async for running in _serve(fake):
        yield running


@pytest.fixture
async def server_without_tokenize() -> AsyncIterator[FakeServer]:
    """The same without /tokenize."""
    async for running in _serve(FakeServer(has_tokenize=False)):
        yield running


async def _serve(fake: FakeServer) -> AsyncIterator[FakeServer]:
    runner = web.AppRunner(fake.app(), handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    fake.url = f"http://{host}:{port}"
    try:
        yield fake
    finally:
        await runner.cleanup()
