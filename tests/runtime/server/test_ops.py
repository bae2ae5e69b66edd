"""Models, probes, version and the cache's reset."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from ramet.runtime.engine.client import EngineStatus
from ramet.runtime.server.lifecycle import Lifecycle


async def test_the_model_is_listed_and_found_by_its_name(http: httpx.AsyncClient) -> None:
    listed = (await http.get("/v1/models")).json()
    (card,) = listed["data"]
    assert listed["object"] == "list" and card["id"] == "org/bytes"
    assert card["object"] == "model" and isinstance(card["created"], int)
    assert card["owned_by"] == "ramet" and card["max_model_len"] == 512
    for path in ("/v1/models/org/bytes", "/v1/models/org%2Fbytes"):
        assert (await http.get(path)).json() == card


async def test_another_model_is_not_found(http: httpx.AsyncClient) -> None:
    response = await http.get("/v1/models/no-such-7")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("status", "draining", "health", "ready"),
    [
        (EngineStatus.READY, False, 200, 200),
        (EngineStatus.STARTING, False, 200, 503),
        (EngineStatus.DEAD, False, 503, 503),
        (EngineStatus.STOPPED, False, 503, 503),
        (EngineStatus.READY, True, 503, 503),
    ],
)
async def test_probes_tell_the_state(
    http: httpx.AsyncClient,
    engine: Any,
    lifecycle: Lifecycle,
    status: EngineStatus,
    draining: bool,
    health: int,
    ready: int,
) -> None:
    engine.status = status
    if draining:
        lifecycle.drain()
    for path, expected in (("/health", health), ("/ready", ready)):
        response = await http.get(path)
        assert response.status_code == expected
        assert response.json() == {"status": "draining" if draining else status.value}
        assert ("retry-after" in response.headers) == (expected == 503)
        assert (await http.head(path)).status_code == expected


async def test_before_the_engine_is_ready_models_are_listed_without_its_facts(
    http: httpx.AsyncClient, engine: Any
) -> None:
    engine.status = EngineStatus.STARTING
    (card,) = (await http.get("/v1/models")).json()["data"]
    assert card["id"] == "org/bytes" and "max_model_len" not in card


async def test_the_version_is_told(http: httpx.AsyncClient) -> None:
    assert (await http.get("/version")).json() == {"version": "0.1.0"}


async def test_the_prefix_cache_can_be_reset(http: httpx.AsyncClient, engine: Any) -> None:
    assert (await http.post("/reset_prefix_cache")).status_code == 200
    assert engine.num_resets == 1
    engine.status = EngineStatus.DEAD
    assert (await http.post("/reset_prefix_cache")).status_code == 503
    assert engine.num_resets == 1


async def test_the_description_of_the_routes_can_be_read(http: httpx.AsyncClient) -> None:
    description = (await http.get("/openapi.json")).json()
    operation = description["paths"]["/v1/chat/completions"]["post"]
    ref = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    schema = description["components"]["schemas"][ref.rpartition("/")[2]]
    assert "messages" in schema["required"] and "temperature" in schema["properties"]
