"""The Prometheus page: the engine's counters, and what requests add."""

from __future__ import annotations

import re
from typing import Any

import httpx

from ramet.runtime.engine.messages import EngineStats
from ramet.runtime.server.metrics import ServerMetrics


async def scrape(http: httpx.AsyncClient) -> dict[str, float]:
    response = await http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    out = {}
    for line in response.text.splitlines():
        if line and not line.startswith("#"):
            match = re.fullmatch(r"([a-zA-Z_:][\w:]*(?:\{.*\})?) (\S+)", line)
            assert match is not None, line
            assert match[1] not in out, f"{match[1]} is there twice"
            out[match[1]] = float(match[2])
    return out


async def test_token_counters_grow_by_the_usage(http: httpx.AsyncClient, engine: Any) -> None:
    engine.num_cached_tokens = 3
    before = await scrape(http)
    body = {"prompt": ["hello", "you"], "n": 2, "max_tokens": 4}
    usage = (await http.post("/v1/completions", json=body)).json()["usage"]
    after = await scrape(http)
    for kind, count in (
        ("prompt", usage["prompt_tokens"]),
        ("completion", usage["completion_tokens"]),
        ("cached", usage["prompt_tokens_details"]["cached_tokens"]),
    ):
        name = f'ramet_usage_tokens_total{{kind="{kind}"}}'
        assert after[name] - before.get(name, 0) == count


async def test_latencies_count_samples_gaps_and_requests(http: httpx.AsyncClient) -> None:
    await http.post("/v1/completions", json={"prompt": "x", "n": 2, "max_tokens": 4})
    page = await scrape(http)
    assert page["ramet_time_to_first_token_seconds_count"] == 2
    assert page["ramet_inter_token_latency_seconds_count"] == 6
    assert page["ramet_e2e_request_latency_seconds_count"] == 1


async def test_a_gap_is_shared_by_the_tokens_that_came_after_it(engine: Any) -> None:
    metrics = ServerMetrics(engine)
    metrics.observe_inter_token(1.0, num_tokens=4)
    page = metrics.render().decode()
    assert "ramet_inter_token_latency_seconds_count 4.0\n" in page
    assert "ramet_inter_token_latency_seconds_sum 1.0\n" in page


async def test_requests_are_counted_by_route_and_status(http: httpx.AsyncClient) -> None:
    await http.post("/v1/completions", json={"prompt": "x"})
    await http.post("/v1/completions", json={})
    for name in ("a", "b"):
        await http.get(f"/v1/models/{name}")
        await http.get(f"/nowhere/{name}")
        await http.request(f"ODD{name}", "/nowhere")
    page = await scrape(http)
    for method, route, status, count in (
        ("POST", "/v1/completions", 200, 1),
        ("POST", "/v1/completions", 400, 1),
        ("GET", "/v1/models/{model_id:path}", 404, 2),
        ("GET", "unknown", 404, 2),
        ("other", "unknown", 404, 2),
    ):
        labels = f'method="{method}",route="{route}",status="{status}"'
        assert page[f"ramet_http_requests_total{{{labels}}}"] == count


async def test_the_engines_statistics_are_shown(http: httpx.AsyncClient, engine: Any) -> None:
    engine.stats = EngineStats(
        num_waiting=1,
        num_running=2,
        blocks_total=10,
        blocks_free=3,
        blocks_cached=5,
        blocks_private=2,
        blocks_pinned=2,
        prefix_queried_tokens=40,
        prefix_hit_tokens=30,
        evicted_blocks=6,
        preemptions=7,
    )
    page = await scrape(http)
    assert page["ramet_requests_waiting"] == 1 and page["ramet_requests_running"] == 2
    assert page['ramet_kv_blocks{state="cached"}'] == 5
    assert page["ramet_kv_cache_usage_ratio"] == 0.4
    assert page["ramet_prefix_cache_queries_tokens_total"] == 40
    assert page["ramet_prefix_cache_hits_tokens_total"] == 30
    assert page["ramet_evicted_blocks_total"] == 6 and page["ramet_preemptions_total"] == 7
    assert page["ramet_engine_up"] == 1
