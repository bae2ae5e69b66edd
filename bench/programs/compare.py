"""Runs of the same programs side by side, as Markdown: `python -m ramet.bench.programs.compare FILE...`

Each file is what `ramet bench programs --json` wrote; times are also given as multiples of the first's.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .program import DataError, entry, read_json

_HEAD = (
    *("program", "run", "calls", "prompt tokens", "hit rate", "ideal", "of ideal", "generated"),
    *("time, s", ": first"),
)


def rows(runs: Sequence[tuple[str, dict[str, Any]]]) -> list[tuple[str, ...]]:
    """A row per program and run that has it, programs in the first run's order.

    Args:
        runs: label -> figures of each program.
    """
    names = dict.fromkeys(name for _, programs in runs for name in programs)
    table = []
    for name in names:
        found = [(label, programs[name]) for label, programs in runs if name in programs]
        first = found[0][1]["wall_s"]
        for index, (label, figures) in enumerate(found):
            table.append(_row(name if index == 0 else "", label, figures, first))
    return table


def _row(name: str, label: str, figures: dict[str, Any], first: float) -> tuple[str, ...]:
    failed = figures["failed"]
    return (
        name,
        label + (f" ({failed} failed)" if failed else ""),
        f"{figures['calls']:,}",
        f"{figures['prompt_tokens']:,}",
        _share(figures["hit_rate"]),
        _share(figures["ideal_hit_rate"]),
        _share(figures["hit_of_ideal"]),
        f"{figures['generated_tokens']:,}",
        f"{figures['wall_s']:.1f}",
        f"{figures['wall_s'] / first:.2f}",
    )


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def main(paths: Sequence[str]) -> None:
    """Print the table of these files; labels are their names without suffix."""
    if not paths:
        raise SystemExit("usage: python -m ramet.bench.programs.compare FILE...")
    try:
        runs = [(Path(p).stem, entry(read_json(Path(p)), "programs", Path(p))) for p in paths]
    except DataError as error:
        raise SystemExit(f"error: {error}") from error
    for row in (_HEAD, ("---",) * len(_HEAD), *rows(runs)):
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main(sys.argv[1:])
