"""What Prometheus reads: the engine's newest counters, and what only the HTTP side can time.

Each application has a registry of its own; nothing is global. Knows no route and no request.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..engine.client import EngineClient, EngineStatus
from ..engine.messages import EngineStats
from .errors import CLIENT_CLOSED_REQUEST

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_LATENCY_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5,
    0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_E2E_BUCKETS = (
    0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 240.0, 480.0, 960.0,
)  # fmt: skip

# A label takes few values, whatever clients send.
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

# Field of EngineStats -> name after "ramet_", help.
_COUNTERS = {
    "steps": ("engine_steps", "Steps of the engine: forward passes."),
    "prompt_tokens": ("prompt_tokens", "Prompt tokens of admitted requests."),
    "computed_tokens": ("computed_tokens", "Tokens whose KV was computed."),
    "generated_tokens": ("generation_tokens", "Tokens sampled."),
    "prefix_queried_tokens": ("prefix_cache_queries_tokens", "Prompt tokens looked up."),
    "prefix_hit_tokens": ("prefix_cache_hits_tokens", "Prompt tokens whose KV was found."),
    "evicted_blocks": ("evicted_blocks", "Cached blocks given up for others."),
    "copied_blocks": ("copied_blocks", "Blocks copied because a match ended inside them."),
    "preemptions": ("preemptions", "Running requests set back to wait."),
    "retentions_expired": ("retentions_expired", "Retained prefixes whose time passed."),
    "retentions_given_up": (
        "retentions_given_up",
        "Retained prefixes that went early, for the budget or for memory.",
    ),
    "aborts": ("aborts", "Requests ended early by their sender."),
}
_GAUGES = {
    "num_waiting": ("requests_waiting", "Requests that wait for the engine."),
    "num_running": ("requests_running", "Requests in the running batch."),
    "quarantined_blocks": ("quarantined_blocks", "Blocks withdrawn because of a broken count."),
}


class EngineCollector(Collector):
    """Reads the client's newest `EngineStats` whenever Prometheus asks."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client

    def collect(self) -> Iterator[Metric]:
        """Yield each metric of the engine once."""
        stats = self._client.stats
        for field, (name, text) in _COUNTERS.items():
            yield CounterMetricFamily(f"ramet_{name}", text, value=getattr(stats, field))
        for field, (name, text) in _GAUGES.items():
            yield GaugeMetricFamily(f"ramet_{name}", text, value=getattr(stats, field))
        yield _blocks(stats)
        used = stats.blocks_private + stats.blocks_pinned
        yield GaugeMetricFamily(
            "ramet_kv_cache_usage_ratio",
            "Fraction of the KV blocks that running requests hold.",
            value=used / stats.blocks_total if stats.blocks_total else 0.0,
        )
        up = GaugeMetricFamily("ramet_engine_up", "1 while the engine takes work.")
        up.add_metric([], float(self._client.status is EngineStatus.READY))
        yield up


def _blocks(stats: EngineStats) -> Metric:
    family = GaugeMetricFamily(
        "ramet_kv_blocks",
        "KV blocks: free + cached + private are all; pinned and retained are part of cached.",
        labels=["state"],
    )
    for state in ("free", "cached", "private", "pinned", "retained"):
        family.add_metric([state], getattr(stats, f"blocks_{state}"))
    return family


class ServerMetrics:
    """Counters and histograms of the HTTP side, and the page with everything."""

    def __init__(self, client: EngineClient) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(EngineCollector(client))
        self._requests = Counter(
            "ramet_http_requests",
            "Answered HTTP requests; 499 is a client that left.",
            ["method", "route", "status"],
            registry=self._registry,
        )
        self._first_token = Histogram(
            "ramet_time_to_first_token_seconds",
            "From a request's arrival to its first token, per sample.",
            buckets=_LATENCY_BUCKETS,
            registry=self._registry,
        )
        self._inter_token = Histogram(
            "ramet_inter_token_latency_seconds",
            "Between two tokens of one sample.",
            buckets=_LATENCY_BUCKETS,
            registry=self._registry,
        )
        self._e2e = Histogram(
            "ramet_e2e_request_latency_seconds",
            "From a request's arrival to the end of its last sample.",
            buckets=_E2E_BUCKETS,
            registry=self._registry,
        )
        self._usage = Counter(
            "ramet_usage_tokens",
            "Tokens as the usage of finished requests tells them.",
            ["kind"],
            registry=self._registry,
        )

    def count_request(self, method: str, route: str, status: int | None) -> None:
        """Count one answered request; a `status` of None means that the client left first."""
        method = method if method in _METHODS else "other"
        self._requests.labels(method, route, str(status or CLIENT_CLOSED_REQUEST)).inc()

    def observe_first_token(self, seconds: float) -> None:
        """Record the wait for a sample's first token."""
        self._first_token.observe(seconds)

    def observe_inter_token(self, seconds: float, num_tokens: int) -> None:
        """Record that a running sample got `num_tokens` more, `seconds` after the last."""
        for _ in range(num_tokens):
            self._inter_token.observe(seconds / num_tokens)

    def observe_finished(self, seconds: float, prompt: int, cached: int, completion: int) -> None:
        """Record a finished request: its time and the tokens of its usage."""
        self._e2e.observe(seconds)
        self._usage.labels("prompt").inc(prompt)
        self._usage.labels("cached").inc(cached)
        self._usage.labels("completion").inc(completion)

    def render(self) -> bytes:
        """Everything in Prometheus' text format 0.0.4."""
        return generate_latest(self._registry)
