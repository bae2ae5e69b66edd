"""What a finished program did, as a small tree: text, HTML with SVG bars.

Each branch shows its steps with tokens read, tokens of them that came from the cache, tokens written
and time. Knows numbers and text only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .executor import Executor

_BAR_WIDTH = 160


@dataclass(frozen=True, slots=True)
class Step:
    """One request that a state made.

    Attributes:
        num_cached: None if the backend does not tell.
        seconds: from sending it to its end.
        text: what came of it.
    """

    name: str | None
    kind: str
    num_prompt: int
    num_cached: int | None
    num_written: int
    seconds: float
    text: str

    @classmethod
    def of(cls, name: str | None, kind: str, meta: dict[str, Any], text: str) -> Step:
        """A step with the facts of its meta data."""
        return cls(
            name,
            kind,
            meta["prompt_tokens"],
            meta["cached_tokens"],
            meta["completion_tokens"],
            meta["latency"],
            text,
        )

    @property
    def label(self) -> str:
        """Kind and name."""
        return self.kind if self.name is None else f"{self.kind} {self.name}"

    @property
    def figures(self) -> str:
        """Tokens and time."""
        cached = "?" if self.num_cached is None else str(self.num_cached)
        return (
            f"{self.num_prompt} read ({cached} cached), {self.num_written} written, "
            f"{self.seconds:.3f} s"
        )


@dataclass(frozen=True, slots=True)
class Branches:
    """The states of one fork."""

    states: list[Executor]


def _walk(executor: Executor, depth: int) -> Iterator[tuple[int, str, Step | None]]:
    """Depth, a heading, and the step if it is one."""
    for event in executor.events:
        if isinstance(event, Step):
            yield depth, event.label, event
            continue
        for state in event.states:
            yield depth, state.label, None
            yield from _walk(state, depth + 1)
    if executor.error is not None:
        yield depth, f"failed: {type(executor.error).__name__}: {executor.error}", None


def tree_text(executor: Executor) -> str:
    """The tree as text, one step or branch a line."""
    lines = ["program"]
    for depth, heading, step in _walk(executor, 1):
        facts = "" if step is None else f": {_short(step.text)}  [{step.figures}]"
        lines.append("  " * depth + heading + facts)
    return "\n".join(lines)


def tree_html(executor: Executor) -> str:
    """The tree as an HTML list; a bar shows cached, computed and written tokens to one scale."""
    rows = list(_walk(executor, 0))
    most = max([s.num_prompt + s.num_written for _, _, s in rows if s is not None], default=1) or 1
    items = []
    for depth, heading, step in rows:
        facts = ""
        if step is not None:
            facts = f" {_bar(step, most)} <small>{escape(step.figures)}</small>"
            heading += f": {_short(step.text)}"
        items.append(
            f'<div style="margin-left:{depth * 1.5}em"><code>{escape(heading)}</code>{facts}</div>'
        )
    return f'<div class="ramet-program">{"".join(items)}</div>'


def _bar(step: Step, most: int) -> str:
    cached = step.num_cached or 0
    parts = (
        (cached, "#9bd", "cached"),
        (step.num_prompt - cached, "#357", "computed"),
        (step.num_written, "#e83", "written"),
    )
    x = 0.0
    rects = []
    for count, color, title in parts:
        width = max(0, count) * _BAR_WIDTH / most
        rects.append(
            f'<rect x="{x:.1f}" width="{width:.1f}" height="10" fill="{color}">'
            f"<title>{count} {title}</title></rect>"
        )
        x += width
    return f'<svg width="{_BAR_WIDTH}" height="10" role="img">{"".join(rects)}</svg>'


def _short(text: str) -> str:
    return repr(text if len(text) <= 50 else f"{text[:30]}…{text[-15:]}")
