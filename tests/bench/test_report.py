"""Figures are right, and failures are in them."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ramet.bench.protocol import Result
from ramet.bench.report import median_of, percentile, summarize, table


def good(ttft: float, *, cached: int | None = 8) -> Result:
    return Result(
        ttft=ttft,
        latency=2 * ttft,
        gaps=[0.01, 0.03],
        time_per_token=0.02,
        num_prompt_tokens=10,
        num_output_tokens=3,
        counted_by_server=True,
        num_cached_tokens=cached,
        num_expected_tokens=3,
    )


def test_figures_of_a_run() -> None:
    figures = summarize([good(0.1), good(0.3)], wall=2.0, num_expected=2)
    assert figures["requests_per_s"] == 1.0
    assert figures["output_tokens_per_s"] == 3.0
    assert figures["prompt_tokens_per_s"] == 10.0
    assert figures["hit_rate"] == 0.8
    assert figures["ttft_mean_ms"] == pytest.approx(200.0)
    assert figures["itl_mean_ms"] == pytest.approx(20.0)
    assert figures["tpot_p50_ms"] == pytest.approx(20.0)
    assert figures["failed"] == 0


def test_failures_are_counted_and_stay_out_of_latencies() -> None:
    results = [good(0.1), Result(error="HTTP 503", latency=99.0)]
    figures = summarize(results, wall=1.0, num_expected=4)
    assert figures["failed"] == 3
    assert figures["errors"]["HTTP 503"] == 1
    assert sum(figures["errors"].values()) == 3
    assert figures["latency_p99_ms"] == pytest.approx(200.0)
    assert figures["requests_per_s"] == 1.0


def test_nothing_but_failures_gives_no_latency_at_all() -> None:
    figures = summarize([Result(error="HTTP 500")], wall=1.0, num_expected=1)
    assert figures["ttft_mean_ms"] is None
    assert figures["hit_rate"] is None
    assert figures["output_tokens_per_s"] == 0.0


def test_hit_rate_is_unknown_where_the_server_does_not_say() -> None:
    assert summarize([good(0.1, cached=None)], wall=1.0, num_expected=1)["hit_rate"] is None


def test_answers_that_stopped_early_are_counted() -> None:
    short = good(0.1)
    short.num_output_tokens = 1
    assert summarize([short, good(0.1)], wall=1.0, num_expected=2)["short_answers"] == 1


def test_median_over_runs_but_failures_add_up() -> None:
    runs = [
        summarize([good(ttft), Result(error="HTTP 503")], wall=wall, num_expected=2)
        for ttft, wall in ((0.1, 1.0), (0.5, 2.0), (0.2, 9.0))
    ]
    median = median_of(runs)
    assert median["runs"] == 3
    assert median["wall_s"] == 2.0
    assert median["ttft_p50_ms"] == pytest.approx(200.0)
    assert median["failed"] == 3
    assert median["errors"] == {"HTTP 503": 3}
    assert median["output_counted_by"] == "server"


def test_percentiles_interpolate() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert percentile([7.0], 0.99) == 7.0
    assert percentile([0.0, 100.0], 0.99) == pytest.approx(99.0)


def test_table_shows_failures() -> None:
    figures = median_of([summarize([good(0.1), Result(error="x")], wall=1.0, num_expected=2)])
    out = io.StringIO()
    Console(file=out, width=100).print(table("w4", figures))
    assert "1 of 2" in out.getvalue()
    assert "hit rate" in out.getvalue()
