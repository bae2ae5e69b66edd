"""Ids, times and keys on every request."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from ramet.runtime.config import ServerConfig

BODY = {"prompt": "hi"}


async def test_every_response_has_an_id_and_a_time(http: httpx.AsyncClient) -> None:
    responses = [
        await http.post("/v1/completions", json=BODY),
        await http.post("/v1/completions", json=BODY),
        await http.post("/v1/completions", json={**BODY, "stream": True}),
        await http.post("/v1/completions", json={}),
        await http.get("/v1/models"),
        await http.get("/no/such/path"),
        await http.get("/metrics"),
    ]
    ids = [response.headers["x-request-id"] for response in responses]
    assert all(ids) and len(set(ids)) == len(ids)
    for response in responses:
        assert float(response.headers["openai-processing-ms"]) >= 0


@pytest.mark.parametrize(
    ("sent", "kept"),
    [("abc-123:x", True), ("x" * 128, True), ("x" * 129, False), ("a b", False), ("", False)],
)
async def test_a_plain_request_id_comes_back(
    http: httpx.AsyncClient, sent: str, kept: bool
) -> None:
    response = await http.get("/version", headers={"x-request-id": sent})
    assert (response.headers["x-request-id"] == sent) is kept


class TestWithKeys:
    @pytest.fixture
    def config(self) -> ServerConfig:
        return ServerConfig(served_model_name="org/bytes", api_key=("first", "zweiter-schlüssel"))

    @pytest.mark.parametrize(
        "value",
        [
            None,
            "",
            "first",
            "Bearer",
            "Bearer wrong",
            "Basic Zmlyc3Q6",
            "Basic first",
            "Bearer firstx",
            "Bearer ",
        ],
    )
    async def test_a_guarded_path_needs_a_key(
        self, http: httpx.AsyncClient, value: str | None
    ) -> None:
        headers = {} if value is None else {"authorization": value}
        for method, path in (
            ("POST", "/v1/chat/completions"),
            ("POST", "/v1/completions"),
            ("GET", "/v1/models"),
            ("GET", "/v1/no/such/path"),
            ("GET", "/v1"),
            ("POST", "/tokenize"),
            ("POST", "/detokenize"),
            ("GET", "/tokenizer_info"),
            ("POST", "/reset_prefix_cache"),
            ("POST", "/reset_prefix_cache/"),
        ):
            response = await http.request(method, path, headers=headers)
            assert response.status_code == 401, path
            assert response.json()["error"]["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"] == "Bearer"
            assert response.headers["x-request-id"]

    @pytest.mark.parametrize("value", ["Bearer first", "bearer first", "BEARER  first "])
    async def test_each_key_opens(self, http: httpx.AsyncClient, value: str) -> None:
        second = "Bearer zweiter-schlüssel".encode()
        for header in (value.encode(), second):
            headers = [(b"authorization", header)]
            response = await http.get("/v1/models", headers=headers)
            assert response.status_code == 200

    async def test_probes_need_no_key(self, http: httpx.AsyncClient) -> None:
        for path in ("/health", "/ready", "/metrics", "/version"):
            assert (await http.get(path)).status_code == 200

    async def test_keys_share_no_cache(self, http: httpx.AsyncClient, engine: Any) -> None:
        keys = [b"Bearer first", b"Bearer first", "Bearer zweiter-schlüssel".encode()]
        for key in keys:
            for salt in ({}, {"cache_salt": "s"}):
                headers = [(b"authorization", key)]
                response = await http.post(
                    "/v1/completions", json={**BODY, **salt}, headers=headers
                )
                assert response.status_code == 200
        names = [request.namespace for request in engine.requests]
        assert names[:2] == names[2:4] and len(set(names)) == 4
        assert not any("first" in name for name in names)


async def test_salts_share_no_cache(http: httpx.AsyncClient, engine: Any) -> None:
    for salt in (None, "a", "b", "a"):
        await http.post("/v1/completions", json={**BODY, "cache_salt": salt})
    plain, *salted = (request.namespace for request in engine.requests)
    assert plain == "" and salted[0] == salted[2] != salted[1] != ""
