"""/cancel, /retain and /release: a program's word on its own requests, and on nobody else's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from ramet.runtime.config import ServerConfig
from ramet.runtime.engine.messages import Release, Retain
from ramet.runtime.errors import InvalidRequest
from ramet.runtime.server.branches import Branches
from ramet.runtime.server.native_work import prepare_work

FIRST, OTHER = {"authorization": "Bearer first"}, {"authorization": "Bearer other"}


@asynccontextmanager
async def streaming(
    client: httpx.AsyncClient, names: list[str], **options: Any
) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """A running call of several named requests, as its events."""
    requests = [{"text": name, "request_id": name} for name in names]
    body = {"requests": requests, "stream": True}

    async def events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                yield json.loads(line[6:])

    async with client.stream("POST", "/generate", json=body, **options) as response:
        assert response.status_code == 200
        yield events(response)


async def cancel(client: httpx.AsyncClient, *names: str, **options: Any) -> list[str]:
    response = await client.post("/cancel", json={"request_ids": names}, **options)
    assert response.status_code == 200, response.text
    found: list[str] = response.json()["cancelled"]
    return found


async def test_one_request_of_a_stream_ends_alone(url: str, engine: Any) -> None:
    engine.delay = 0.02
    async with httpx.AsyncClient(base_url=url) as client:
        async with streaming(client, ["a", "b", "c"]) as events:
            assert await cancel(client, "b", "nobody") == ["b"]
            assert len(engine.aborted) == 1
            ends = {e["index"]: e async for e in events if "delta" not in e}
        assert ends[1] == {"index": 1, "cancelled": True}
        for index in (0, 2):
            assert ends[index]["result"]["samples"][0]["text"] == "Hello there!"
        assert await cancel(client, "a", "b", "c") == []
    assert not engine.live


async def test_one_request_of_a_whole_answer_ends_alone(
    http: httpx.AsyncClient, engine: Any
) -> None:
    engine.delay = 0.02
    requests = [{"text": "a", "request_id": "a"}, {"text": "b", "request_id": "b", "n": 2}]
    call = asyncio.ensure_future(http.post("/generate", json={"requests": requests}))
    while len(engine.live) < 3:
        await asyncio.sleep(0)
    assert await cancel(http, "b") == ["b"]
    assert len(engine.aborted) == 2, "both samples of it"
    results = (await call).json()["results"]
    assert results[0]["samples"][0]["text"] == "Hello there!"
    assert results[1] == {"cancelled": True}


async def test_a_request_cancelled_before_it_reached_the_engine_never_does(
    http: httpx.AsyncClient, engine: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(*args: Any) -> Any:
        begun.set()
        await go_on.wait()
        return await prepare_work(*args)

    monkeypatch.setattr("ramet.runtime.server.native.prepare_work", slowly)
    requests = [{"text": "a", "request_id": "a"}, {"text": "b"}]
    call = asyncio.ensure_future(http.post("/generate", json={"requests": requests}))
    await begun.wait()
    assert await cancel(http, "a") == ["a"]
    go_on.set()
    results = (await call).json()["results"]
    assert results[0] == {"cancelled": True} and "samples" in results[1]
    assert [r.prompt_ids for r in engine.requests] == [tokenizer.encode("b", True)]


async def test_a_name_is_used_once_at_a_time(http: httpx.AsyncClient, engine: Any) -> None:
    twice = {"requests": [{"text": "a", "request_id": "x"}, {"text": "b", "request_id": "x"}]}
    response = await http.post("/generate", json=twice)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "request_id"
    for _ in range(2):
        assert (
            await http.post("/generate", json={"text": "a", "request_id": "x"})
        ).status_code == 200
    bad = {"text": "a", "request_id": "x", "temperature": 9}
    assert (await http.post("/generate", json=bad)).status_code == 400
    assert (await http.post("/generate", json={"text": "a", "request_id": "x"})).is_success
    assert not engine.live


class TestKeys:
    @pytest.fixture
    def config(self) -> ServerConfig:
        return ServerConfig(served_model_name="org/bytes", api_key=("first", "other"))

    async def test_nobody_ends_the_requests_of_another_key(self, url: str, engine: Any) -> None:
        engine.delay = 0.02
        async with httpx.AsyncClient(base_url=url) as client:
            async with streaming(client, ["a"], headers=FIRST) as mine:
                async with streaming(client, ["a"], headers=OTHER) as theirs:
                    assert await cancel(client, "a", headers=OTHER) == ["a"]
                    assert [e async for e in theirs][-1]["cancelled"]
                assert "result" in [e async for e in mine][-1]

    @pytest.mark.parametrize("path", ["/cancel", "/retain", "/release"])
    async def test_without_a_key_nothing_passes(self, http: httpx.AsyncClient, path: str) -> None:
        assert (await http.post(path, json={})).status_code == 401

    async def test_sessions_belong_to_a_key_and_a_salt(
        self, http: httpx.AsyncClient, engine: Any
    ) -> None:
        for headers in (FIRST, OTHER):
            for salt in ({}, {"cache_salt": "s"}):
                body = {"session": "x", **salt}
                assert (await http.post("/release", json=body, headers=headers)).is_success
        names = {message.namespace for message in engine.posted}
        assert len(names) == 4
        for salt in ({}, {"cache_salt": "s"}):
            retained: dict[str, Any] = {"session": "x", "input_ids": [3], **salt}
            assert (await http.post("/retain", json=retained, headers=FIRST)).is_success
        first, second = engine.posted[-2:]
        assert first.namespace != second.namespace and first.tenant == second.tenant != ""
        await http.post("/generate", json={"text": "a", "session": "x"}, headers=FIRST)
        assert engine.requests[0].namespace in names and engine.requests[0].session == "x"


async def test_a_prefix_is_retained_and_released(http: httpx.AsyncClient, engine: Any) -> None:
    body = {"session": "s", "input_ids": [1, 2, 3]}
    assert (await http.post("/retain", json={**body, "seconds": 5})).json() == {"seconds": 5}
    assert (await http.post("/retain", json=body)).json() == {"seconds": 60}
    assert (await http.post("/release", json={"session": "s"})).json() == {}
    assert engine.posted == [
        Retain(namespace="", session="s", token_ids=[1, 2, 3], seconds=5.0),
        Retain(namespace="", session="s", token_ids=[1, 2, 3], seconds=None),
        Release(namespace="", session="s"),
    ]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"text": "a"}),
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ],
)
async def test_a_request_says_that_its_answer_will_be_needed_again(
    http: httpx.AsyncClient, engine: Any, path: str, body: dict[str, Any]
) -> None:
    sent = {**body, "session": "s", "retain": 30}
    assert (await http.post(path, json=sent)).status_code == 200
    assert (engine.requests[0].session, engine.requests[0].retain) == ("s", 30.0)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/generate", {"text": "a", "retain": 5}, "session"),
        ("/generate", {"text": "a", "session": "s", "retain": 61}, "retain"),
        ("/generate", {"text": "a", "session": "s", "retain": 0}, "retain"),
        ("/generate", {"text": "a", "session": "s", "retain": 5, "n": 2}, "retain"),
        ("/v1/completions", {"prompt": ["a", "b"], "session": "s", "retain": 5}, "retain"),
        ("/generate", {"text": "a", "options": ["x"], "session": "s"}, "session"),
        ("/retain", {"session": "s", "input_ids": [1], "seconds": 61}, "seconds"),
        ("/retain", {"session": "s", "input_ids": [1], "seconds": -1}, "seconds"),
        ("/retain", {"session": "s", "input_ids": [100000]}, "input_ids"),
        ("/retain", {"session": "s", "input_ids": [1] * 1000}, "input_ids"),
        ("/retain", {"session": "s", "input_ids": []}, "input_ids"),
        ("/retain", {"session": "", "input_ids": [1]}, "session"),
        ("/retain", {"session": "s", "input_ids": [1], "nope": 1}, "nope"),
        ("/cancel", {"request_ids": []}, "request_ids"),
        ("/cancel", {}, "request_ids"),
    ],
)
async def test_what_cannot_be_granted_is_refused_by_name(
    http: httpx.AsyncClient, engine: Any, path: str, body: dict[str, Any], param: str
) -> None:
    response = await http.post(path, json=body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert engine.posted == [] and engine.requests == []


def test_the_names_of_a_call_are_all_taken_or_none() -> None:
    branches = Branches()
    first = branches.open("t", ["a", None, "b"])
    with pytest.raises(InvalidRequest, match="'b' is in use"):
        branches.open("t", ["c", "b"])
    assert len(branches) == 2
    again = branches.open("u", ["a"])
    branches.close(first)
    branches.close(first)
    assert branches.cancel("t", ["a"]) == [] and branches.cancel("u", ["a", "a"]) == ["a"]
    assert again[0].is_cancelled and not first[0].is_cancelled
