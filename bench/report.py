"""Turns results into figures: per run, as medians over runs, and as a table.

Failures are counted and named, and never enter a latency or a throughput.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from .protocol import Result

Figures = dict[str, Any]
"""Name -> number or None (not measured); `errors` maps a reason to its count."""

LATENCIES = ("ttft", "itl", "tpot", "latency")
_SHOWN = (
    ("wall_s", "time for all requests, s"),
    ("requests_per_s", "requests / s"),
    ("output_tokens_per_s", "output tokens / s"),
    ("prompt_tokens_per_s", "prompt tokens / s"),
    ("prompt_tokens", "prompt tokens"),
    ("cached_tokens", "of them cached"),
    ("hit_rate", "hit rate"),
    ("output_tokens", "output tokens"),
)
_LATENCY_NAMES = {
    "ttft": "time to first token, ms",
    "itl": "between pieces of text (ITL), ms",
    "tpot": "per token after the first (TPOT), ms",
    "latency": "whole answer, ms",
}


def summarize(results: Sequence[Result], wall: float, num_expected: int) -> Figures:
    """The figures of one run.

    Args:
        results: of every request that was sent.
        wall: seconds from the first request to the end of the last answer.
        num_expected: requests that the workload sends if none fails; those that were never sent,
            because an earlier one failed, count as failed too.
    """
    good = [result for result in results if result.error is None]
    errors = Counter(result.error for result in results if result.error is not None)
    if num_expected > len(results):
        errors["not sent: it depended on a request that failed"] = num_expected - len(results)
    prompt_tokens = sum(result.num_prompt_tokens for result in good)
    output_tokens = sum(result.num_output_tokens for result in good)
    cached = [r.num_cached_tokens for r in good if r.num_cached_tokens is not None]
    figures: Figures = {
        "requests": num_expected,
        "succeeded": len(good),
        "failed": num_expected - len(good),
        "errors": dict(errors.most_common()),
        "short_answers": sum(r.num_output_tokens < r.num_expected_tokens for r in good),
        "output_counted_by": _counted_by(good),
        "wall_s": wall,
        "requests_per_s": len(good) / wall,
        "output_tokens_per_s": output_tokens / wall,
        "prompt_tokens_per_s": prompt_tokens / wall if prompt_tokens else None,
        "prompt_tokens": prompt_tokens or None,
        "output_tokens": output_tokens,
        "cached_tokens": sum(cached) if cached else None,
        "hit_rate": sum(cached) / prompt_tokens if cached and prompt_tokens else None,
    }
    figures |= _spread("ttft", [result.ttft for result in good])
    figures |= _spread("itl", [gap for result in good for gap in result.gaps])
    figures |= _spread("tpot", [r.time_per_token for r in good if r.time_per_token is not None])
    figures |= _spread("latency", [result.latency for result in good])
    return figures


def median_of(runs: Sequence[Figures]) -> Figures:
    """The median of every number over the runs; failures and errors are summed, not averaged."""
    merged: Figures = {"runs": len(runs)}
    for name, first in runs[0].items():
        values = [run[name] for run in runs]
        if name == "errors":
            merged[name] = dict(sum((Counter(value) for value in values), Counter()))
        elif name in ("requests", "succeeded", "failed", "short_answers"):
            merged[name] = sum(values)
        elif isinstance(first, str):
            merged[name] = first if len(set(values)) == 1 else "mixed"
        else:
            numbers = [value for value in values if value is not None]
            merged[name] = statistics.median(numbers) if numbers else None
    return merged


def percentile(values: Sequence[float], fraction: float) -> float:
    """The value below which `fraction` of them lie, interpolated; `values` is not empty."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * fraction
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def table(title: str, figures: Mapping[str, Any]) -> Table:
    """The figures for people."""
    shown = Table(title=title, title_justify="left")
    shown.add_column("")
    for name in ("mean", "p50", "p99"):
        shown.add_column(name, justify="right")
    failed = f"{figures['failed']} of {figures['requests']}"
    shown.add_row("failed requests", failed, style="bold red" if figures["failed"] else "")
    if figures["short_answers"]:
        shown.add_row("answers shorter than asked", str(figures["short_answers"]), style="yellow")
    for key, label in _SHOWN:
        shown.add_row(label, _number(figures[key]))
    for key in LATENCIES:
        cells = [_number(figures[f"{key}_{part}_ms"]) for part in ("mean", "p50", "p99")]
        shown.add_row(_LATENCY_NAMES[key], *cells)
    return shown


def _spread(name: str, seconds: Sequence[float]) -> Figures:
    if not seconds:
        return {f"{name}_{part}_ms": None for part in ("mean", "p50", "p99")}
    return {
        f"{name}_mean_ms": 1e3 * statistics.fmean(seconds),
        f"{name}_p50_ms": 1e3 * percentile(seconds, 0.50),
        f"{name}_p99_ms": 1e3 * percentile(seconds, 0.99),
    }


def _counted_by(good: Sequence[Result]) -> str:
    kinds = {result.counted_by_server for result in good}
    return {frozenset([True]): "server", frozenset([False]): "pieces of text"}.get(
        frozenset(kinds), "mixed" if good else "nothing"
    )


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, int) or value == int(value):
        return f"{int(value):,}"
    return f"{value:,.3f}" if abs(value) < 10 else f"{value:,.1f}"
