"""The time of a decode step is what many take less what one takes, prompts found in the cache."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ramet.bench import decode
from ramet.runtime import Engine


class Clock:
    """Stands still but for what engines take."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


class SteadyEngine:
    """Takes a minute for prompts that it has not seen, a second besides, and so long for each step."""

    def __init__(self, clock: Clock, step: float) -> None:
        self.info = SimpleNamespace(vocab_size=50)
        self.clock, self.step = clock, step
        self.seen: set[tuple[int, ...]] = set()

    def generate(self, prompts: list[list[int]], **options: Any) -> None:
        new = {tuple(prompt) for prompt in prompts} - self.seen
        self.seen |= new
        self.clock.now += 60.0 * len(new) + 1.0 + self.step * options["max_tokens"]


def test_each_engine_is_charged_for_its_steps_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(decode, "time", clock)
    engines = {name: SteadyEngine(clock, step) for name, step in (("a", 0.5), ("b", 0.25))}
    steps = decode.measure(cast(dict[str, Engine], engines), num_seqs=3, context=7, runs=2)
    assert steps == {"a": [0.5, 0.5], "b": [0.25, 0.25]}
    assert engines["a"].seen == engines["b"].seen
    assert [len(prompt) for prompt in engines["a"].seen] == [7, 7, 7]
