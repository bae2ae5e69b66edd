"""Figures of programs for people: one table per program, and rows of Markdown to compare runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

_ROWS = (
    ("sessions", "sessions"),
    ("calls", "calls"),
    ("prompt_tokens", "prompt tokens"),
    ("cached_tokens", "of them cached"),
    ("hit_rate", "hit rate"),
    ("ideal_hit_rate", "with an infinite cache"),
    ("hit_of_ideal", "hit rate : ideal"),
    ("generated_tokens", "generated tokens"),
    ("generated_tokens_per_s", "generated tokens / s"),
    ("call_mean_s", "mean time of a call, s"),
    ("wall_s", "time for all, s"),
)


def table(name: str, figures: Mapping[str, Any]) -> Table:
    """One program's figures."""
    history = f", {figures['history']} history" if figures["history"] else ""
    title = f"{name}, {figures['concurrency']} sessions at once{history}"
    shown = Table(title=title, title_justify="left", show_header=False)
    failed = f"{figures['failed']} of {figures['sessions']}"
    shown.add_row("failed sessions", failed, style="bold red" if figures["failed"] else "")
    for reason, num in figures["left_out"].items():
        shown.add_row("sessions left out", f"{num} {reason}")
    for key, label in _ROWS:
        shown.add_row(label, _number(figures[key]))
    for key, value in figures["outcome"].items():
        shown.add_row(key.replace("_", " "), _number(value))
    return shown


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.4f}" if abs(value) < 10 else f"{value:,.1f}"
