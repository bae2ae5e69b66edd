"""Streams: their events and their order, real clients, disconnects, and errors once it has begun."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import httpx
import openai
import pytest

from ramet.runtime.errors import EngineDead
from ramet.runtime.request import FinishReason, RequestOutput
from ramet.runtime.server.native import NativeAnswer
from ramet.runtime.server.stream import DONE, EventStream
from ramet.runtime.text.tokenizer import Tokenizer

HI = [{"role": "user", "content": "hi"}]
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI},
    "/v1/completions": {"prompt": "hi"},
}


def events_of(data: bytes) -> list[dict[str, Any]]:
    """The events before the one `[DONE]`, which must be last."""
    *blocks, done, rest = data.split(b"\n\n")
    assert done == b"data: [DONE]" and rest == b""
    assert all(block.startswith(b"data: ") and b"\n" not in block for block in blocks)
    return [json.loads(block.removeprefix(b"data: ")) for block in blocks]


async def stream(http: httpx.AsyncClient, path: str, **fields: Any) -> list[dict[str, Any]]:
    body = {**ROUTES[path], "stream": True, **fields}
    response = await http.post(path, json=body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    return events_of(response.content)


async def chat(http: httpx.AsyncClient, **fields: Any) -> list[dict[str, Any]]:
    return await stream(http, "/v1/chat/completions", **fields)


def text_of(events: list[dict[str, Any]], index: int = 0) -> str:
    choices = [c for e in events for c in e["choices"] if c["index"] == index]
    return "".join(c["text"] if "text" in c else c["delta"].get("content", "") for c in choices)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_chat_stream_opens_with_the_role_and_ends_with_one_finish_reason(
    http: httpx.AsyncClient,
) -> None:
    events = await chat(http)
    assert {e["object"] for e in events} == {"chat.completion.chunk"}
    for key in ("id", "created", "model", "system_fingerprint"):
        assert len({e[key] for e in events}) == 1
    assert all("usage" not in e for e in events)
    choices = [choice for event in events for choice in event["choices"]]
    assert len(choices) == len(events)
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert all("role" not in choice["delta"] for choice in choices[1:])
    reasons = [choice["finish_reason"] for choice in choices]
    assert reasons == [None] * (len(choices) - 1) + ["stop"]
    assert text_of(events) == "Hello there!"


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": True}])
async def test_only_include_usage_brings_usage_in_one_last_chunk(
    http: httpx.AsyncClient, path: str, options: Any
) -> None:
    events = await stream(http, path, stream_options=options)
    if not options or not options["include_usage"]:
        assert all("usage" not in e and e["choices"] for e in events)
        return
    *body, last = events
    assert all("usage" not in e and e["choices"] for e in body)
    whole = (await http.post(path, json=ROUTES[path])).json()
    assert last["choices"] == [] and last["usage"] == whole["usage"]


async def test_continuous_usage_grows_to_the_total(http: httpx.AsyncClient) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = await chat(http, stream_options=options, max_tokens=6)
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == [1, 1, 2, 3, 4, 5, 6, 6]


async def test_choices_open_in_order_and_one_chunk_has_one_choice(http: httpx.AsyncClient) -> None:
    events = await chat(http, n=3)
    assert all(len(event["choices"]) == 1 for event in events)
    opened = [e["choices"][0]["index"] for e in events if "role" in e["choices"][0]["delta"]]
    assert opened == [0, 1, 2] == [e["choices"][0]["index"] for e in events[:3]]
    for index in range(3):
        finished = [
            c["finish_reason"]
            for e in events
            for c in e["choices"]
            if c["index"] == index and c["finish_reason"]
        ]
        assert finished == ["stop"] and text_of(events, index) == "Hello there!"


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("text", ["naïve 🧪👩‍🚀!", "日本語", 'a "quoted"\\ \x01\u2028 line\n'])
async def test_deltas_are_whole_characters_and_join_to_the_whole_answer(
    http: httpx.AsyncClient, engine: Any, say: Callable[..., Any], path: str, text: str
) -> None:
    engine.reply = say(text)
    events = await stream(http, path, max_tokens=100)
    assert text_of(events) == text and "\ufffd" not in json.dumps(events, ensure_ascii=False)
    cut = await stream(http, path, max_tokens=4)
    assert text_of(cut) == text.encode()[:4].decode("utf-8", "replace")


async def test_no_part_of_a_stop_string_is_sent(http: httpx.AsyncClient) -> None:
    events = await chat(http, stop=["there!"])
    assert text_of(events) == "Hello "
    last = events[-1]["choices"][0]
    assert last["finish_reason"] == "stop" and last["stop_reason"] == "there!"


async def test_text_held_back_for_a_stop_that_never_comes_is_sent(http: httpx.AsyncClient) -> None:
    assert text_of(await chat(http, stop=["there?"])) == "Hello there!"
    assert text_of(await chat(http, stop=["there!"], max_tokens=9)) == "Hello the"


async def test_streamed_logprobs_equal_the_whole_and_come_with_their_text(
    http: httpx.AsyncClient, engine: Any, say: Callable[..., Any]
) -> None:
    engine.reply = say("aé there?")
    fields = {"logprobs": True, "top_logprobs": 2, "stop": ["there!"]}
    events = await chat(http, **fields)
    choices = [choice for event in events for choice in event["choices"]]
    streamed = [t for c in choices if c["logprobs"] for t in c["logprobs"]["content"]]
    whole = await http.post("/v1/chat/completions", json={"messages": HI, **fields})
    assert streamed == whole.json()["choices"][0]["logprobs"]["content"]
    assert all(c["delta"]["content"] or c["finish_reason"] for c in choices if c["logprobs"])


async def test_streamed_completion_logprobs_continue_their_offsets(http: httpx.AsyncClient) -> None:
    fields = {"logprobs": 1, "echo": True, "max_tokens": 4}
    events = await stream(http, "/v1/completions", **fields)
    pieces = [event["choices"][0]["logprobs"] for event in events]
    joined = {key: [x for piece in pieces for x in piece[key]] for key in pieces[0]}
    whole = await http.post("/v1/completions", json={"prompt": "hi", **fields})
    assert joined == whole.json()["choices"][0]["logprobs"]
    assert joined["text_offset"] == [0, 1, 2, 3, 4, 5]


async def test_token_ids_come_with_their_chunks(
    http: httpx.AsyncClient, tokenizer: Tokenizer
) -> None:
    expected = [*tokenizer.encode("Hello there!", False), 258]
    events = await chat(http, return_token_ids=True)
    assert "prompt_token_ids" in events[0]
    assert all("prompt_token_ids" not in event for event in events[1:])
    ids = [i for e in events for c in e["choices"] for i in c.get("token_ids", ())]
    assert ids == expected
    events = await stream(http, "/v1/completions", return_token_ids=True)
    assert events[0]["choices"][0]["prompt_token_ids"] == tokenizer.encode("hi", False)
    assert [i for e in events for c in e["choices"] for i in c.get("token_ids", ())] == expected


async def test_prompts_and_samples_stream_side_by_side(http: httpx.AsyncClient) -> None:
    events = await stream(http, "/v1/completions", prompt=["a", "b"], n=2, echo=True)
    assert [text_of(events, i)[0] for i in range(4)] == ["a", "a", "b", "b"]
    assert all(text_of(events, i)[1:] == "Hello there!" for i in range(4))


@pytest.mark.parametrize("path", ROUTES)
async def test_an_error_after_the_start_is_an_event_and_then_the_end(
    http: httpx.AsyncClient, engine: Any, say: Callable[..., Any], path: str
) -> None:
    engine.reply = say("Hel", EngineDead("The engine process ended."))
    *body, last = await stream(http, path)
    assert text_of(body) == "Hel"
    assert last["error"]["code"] == "engine_unavailable" and set(last["error"]) == {
        "message",
        "type",
        "param",
        "code",
    }


async def test_a_sample_that_fails_ends_the_stream_and_its_siblings(
    http: httpx.AsyncClient, engine: Any
) -> None:
    def reply(request: Any) -> list[Any]:
        if request.request_id.endswith("-0"):
            return [65] * 500
        error = RequestOutput(
            request_id=request.request_id, finish_reason=FinishReason.ERROR, error="NaN in row 3"
        )
        return [65, error]

    engine.reply = reply
    *_, last = await chat(http, n=2)
    assert last["error"]["type"] == "server_error" and "row 3" not in last["error"]["message"]
    assert [request_id[-2:] for request_id in engine.aborted] == ["-0"] and not engine.live


async def test_an_unexpected_failure_shows_no_internals(
    http: httpx.AsyncClient, engine: Any, say: Callable[..., Any]
) -> None:
    engine.reply = say("H", RuntimeError("/secret/path"))
    *_, last = await chat(http)
    assert last["error"]["type"] == "server_error" and "secret" not in last["error"]["message"]


async def test_openai_streams_over_a_socket_as_the_tokens_come(url: str, engine: Any) -> None:
    engine.delay = 0.01
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        parts = []
        async for chunk in await client.chat.completions.create(
            model="org/bytes",
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
            stream_options={"include_usage": True},
        ):
            parts.append((chunk, len(engine.live)))
    text = "".join(c.choices[0].delta.content or "" for c, _ in parts if c.choices)
    assert text == "Hello there!" and parts[-1][0].usage
    assert any(live for _, live in parts[1:4]), "the first chunks came when all was over"


async def test_openai_rebuilds_a_stream_with_its_helper(url: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        async with client.chat.completions.stream(
            model="org/bytes", messages=[{"role": "user", "content": "hi"}], n=2
        ) as events:
            kinds = [event.type async for event in events]
            final = await events.get_final_completion()
    assert kinds.count("content.done") == 2
    assert [choice.message.content for choice in final.choices] == ["Hello there!"] * 2


async def test_openai_raises_the_error_of_a_stream(
    url: str, engine: Any, say: Callable[..., Any]
) -> None:
    engine.reply = say("Hel", EngineDead("The engine process ended."))
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.APIError, match="engine process ended"):
            async for _ in await client.completions.create(
                model="org/bytes", prompt="hi", stream=True
            ):
                pass


@pytest.mark.parametrize("path", ROUTES)
async def test_leaving_a_stream_aborts_the_request(url: str, engine: Any, path: str) -> None:
    engine.reply = lambda request: [65] * 500
    engine.delay = 0.01
    body = {**ROUTES[path], "stream": True, "max_tokens": 400, "n": 2}
    async with httpx.AsyncClient(base_url=url) as client:
        async with client.stream("POST", path, json=body) as response:
            await anext(response.aiter_lines())
            assert engine.num_live == 2
    await until(lambda: engine.num_live == 0)
    assert len(engine.aborted) == 2


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("streamed", [False, True])
async def test_leaving_before_the_first_token_aborts_the_request(
    url: str, engine: Any, path: str, streamed: bool
) -> None:
    engine.delay = 60.0
    async with httpx.AsyncClient(base_url=url) as client:
        body = {**ROUTES[path], "stream": streamed}
        request = asyncio.create_task(client.post(path, json=body))
        await until(lambda: engine.num_live == 1)
        request.cancel()
        await asyncio.wait({request})
        await until(lambda: engine.num_live == 0)
    assert len(engine.aborted) == 1


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("streamed", [False, True])
async def test_the_first_token_counts_even_if_its_client_leaves(
    url: str, engine: Any, path: str, streamed: bool
) -> None:
    engine.reply = lambda request: [65] * 500
    engine.delay, engine.holds_back = 0.01, True
    async with httpx.AsyncClient(base_url=url) as client:
        body = {**ROUTES[path], "stream": streamed, "max_tokens": 400}
        request = asyncio.create_task(client.post(path, json=body))
        await until(lambda: any(one.arrived or one.unread for one in engine.streams))
        request.cancel()
        await asyncio.wait({request})
        await until(lambda: engine.num_live == 0)
        page = (await client.get("/metrics")).text
    assert "ramet_time_to_first_token_seconds_count 1.0" in page


async def test_a_client_that_left_before_the_stream_began_ends_it() -> None:
    closed: list[bool] = []

    async def events() -> AsyncGenerator[bytes, None]:
        yield b""

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        await asyncio.Event().wait()

    await EventStream(events(), lambda: closed.append(True))({"type": "http"}, receive, send)
    assert closed == [True]


async def bodies(events: Sequence[bytes | Exception], is_ahead: Sequence[bool]) -> list[bytes]:
    """What a stream writes, if `is_ahead` says behind each event whether the next is there."""
    sent: list[bytes] = []
    ahead = iter(is_ahead)

    async def generate() -> AsyncGenerator[bytes, None]:
        for one in events:
            if isinstance(one, Exception):
                raise one
            yield one

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            sent.append(message["body"])

    stream = EventStream(generate(), lambda: None, lambda: next(ahead))
    await stream({"type": "http"}, receive, send)
    return sent


async def test_events_that_are_there_together_are_one_write() -> None:
    assert await bodies([b"a", b"b", b"c"], [True, False, False]) == [b"ab", b"c", DONE]


async def test_the_last_events_and_the_end_are_one_write() -> None:
    assert await bodies([b"a", b"last", b"usage"], [False, True, True]) == [
        b"a",
        b"lastusage" + DONE,
    ]


async def test_a_step_without_text_does_not_keep_back_the_one_before_it() -> None:
    assert await bodies([b"a", b"", b"", b"b"], [True, False, False, False]) == [b"a", b"b", DONE]


async def test_an_error_comes_behind_the_events_that_were_there_before_it() -> None:
    (body,) = await bodies([b"a", EngineDead("gone")], [True])
    assert body.startswith(b"a" + b"data: {") and b"gone" in body and body.endswith(DONE)


async def test_a_client_far_behind_is_sent_what_is_there_in_pieces() -> None:
    written = await bodies([b"x"] * 600, [True] * 600)
    assert [len(body) for body in written] == [256, 256, 88 + len(DONE)]


async def test_the_samples_of_one_step_are_written_together_and_what_ends_them_too(
    url: str, engine: Any
) -> None:
    engine.reply, engine.gathers = lambda request: [65] * 5, True
    body = {"prompt": "x", "n": 3, "stream": True, "stream_options": {"include_usage": True}}
    written = await chunks(url, "/v1/completions", {**body, "max_tokens": 5})
    assert [chunk.count(b"data: ") for chunk in written] == [3, 3, 3, 3, 5]


async def test_the_requests_of_one_native_call_are_written_together_and_say_what_they_say_alone(
    url: str, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.reply, engine.gathers = lambda request: [65] * 5, True
    requests = [{"text": "x", "n": 2, "max_tokens": 3}, {"text": "yy", "max_tokens": 3}]
    body = {"requests": requests, "stream": True}
    together = await chunks(url, "/generate", body)
    monkeypatch.setattr(NativeAnswer, "is_ahead", False)
    apart = await chunks(url, "/generate", body)
    assert len(together) < len(apart)
    assert b"".join(together) == b"".join(apart)
    assert together[-1].endswith(DONE) and b'"result"' in together[-1]


async def chunks(url: str, path: str, body: dict[str, Any]) -> list[bytes]:
    """The chunks of an answer's body, as its writer made them."""
    address = httpx.URL(url)
    reader, writer = await asyncio.open_connection(address.host, address.port)
    data = json.dumps(body).encode()
    writer.write(
        b"POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (path.encode(), len(data), data)
    )
    _, _, rest = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    found: list[bytes] = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        found.append(rest[: int(size, 16)])
        rest = rest[int(size, 16) + 2 :]
    assert found.pop() == b""
    return found


async def test_the_status_line_does_not_wait_for_the_first_token(url: str, engine: Any) -> None:
    engine.delay = 60.0
    async with httpx.AsyncClient(base_url=url, timeout=5) as client:
        body = {"messages": HI, "stream": True}
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            assert response.status_code == 200
            assert float(response.headers["openai-processing-ms"]) >= 0
            assert engine.num_live == 1
            health = await client.get("/health")
    assert health.status_code == 200
    await until(lambda: engine.num_live == 0)
