"""Runs side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ramet.bench.programs.compare import main

FIGURES = {
    "calls": 4,
    "failed": 0,
    "prompt_tokens": 1200,
    "hit_rate": 0.9,
    "ideal_hit_rate": 0.9,
    "hit_of_ideal": 1.0,
    "generated_tokens": 40,
    "wall_s": 2.0,
}


def test_times_are_multiples_of_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, other = tmp_path / "ours.json", tmp_path / "other.json"
    ours.write_text(json.dumps({"programs": {"react": FIGURES}}))
    slower = {**FIGURES, "wall_s": 5.0, "hit_rate": None, "hit_of_ideal": None, "failed": 1}
    other.write_text(json.dumps({"programs": {"react": slower, "tau_bench": FIGURES}}))
    main([str(ours), str(other)])
    _, _, *lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "| react | ours | 4 | 1,200 | 0.9000 | 0.9000 | 1.0000 | 40 | 2.0 | 1.00 |",
        "|  | other (1 failed) | 4 | 1,200 | - | 0.9000 | - | 40 | 5.0 | 2.50 |",
        "| tau_bench | other | 4 | 1,200 | 0.9000 | 0.9000 | 1.0000 | 40 | 2.0 | 1.00 |",
    ]


def test_a_file_that_is_no_run_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("[]")
    with pytest.raises(SystemExit, match=r"x\.json"):
        main([str(path)])
    with pytest.raises(SystemExit, match="usage"):
        main([])
