"""The examples of docs/language.md run, in their order, as a reader would type them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import ramet

DOCS = Path(__file__).parents[3] / "docs" / "language.md"
EXAMPLES = re.findall(r"^## (\d+)\. .*?^```python run\n(.*?)^```", DOCS.read_text(), re.M | re.S)


def test_there_are_ten_examples() -> None:
    assert [int(number) for number, _ in EXAMPLES] == list(range(1, 11))


def run_all(capsys: pytest.CaptureFixture[str]) -> list[str]:
    names: dict[str, Any] = {"ramet": ramet, "__name__": "docs"}
    printed = []
    for number, code in EXAMPLES:
        exec(compile(code, f"docs/language.md example {number}", "exec"), names)
        printed.append(capsys.readouterr().out)
    return printed


def test_every_example_runs(runtime: Any, capsys: pytest.CaptureFixture[str]) -> None:
    ramet.set_default_backend(runtime)
    try:
        printed = run_all(capsys)
    finally:
        ramet.set_default_backend(None)
    assert all(printed)
    assert "temperature" in printed[9]


@pytest.mark.real_model
def test_every_example_makes_sense_on_a_real_model(
    smollm2: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ramet.Runtime(smollm2, kv_cache_memory=512 * 1024**2) as real:
        ramet.set_default_backend(real)
        try:
            printed = run_all(capsys)
        finally:
            ramet.set_default_backend(None)
    assert printed[0].startswith(" Paris")
    assert printed[3].startswith(" positive")


def test_every_public_name_is_in_the_page() -> None:
    text = DOCS.read_text()
    for name in ramet.__all__:
        if not name.startswith("_") and name not in ("Function", "State", "StateGroup"):
            assert name.removesuffix("_begin").removesuffix("_end") in text, name
