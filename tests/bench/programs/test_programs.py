"""Each program end to end, with two sessions, on a tiny random model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import ramet
from ramet.bench.cli import app
from ramet.bench.programs import react
from ramet.bench.programs.command import NAMES, find
from ramet.bench.programs.measure import Options, measure
from ramet.bench.programs.replay import HISTORIES
from ramet.bench.programs.target import EngineTarget, Target

CALLS = {
    "react": 4,
    "tree_of_thought": 2 * (3 + 5),
    "tau_bench": 3,
    "self_consistency": 2,
    "json_extraction": 4,
}


@pytest.fixture
def local(tiny_folder: Path) -> Iterator[EngineTarget]:
    target = EngineTarget(
        Target(backend="runtime", model=str(tiny_folder), kv_cache_memory=32 * 2**20)
    )
    yield target
    target.close()


@pytest.mark.parametrize("name", NAMES)
def test_a_program_runs_to_its_end_and_finds_what_an_infinite_cache_would(
    name: str, local: EngineTarget, data: Path
) -> None:
    options = Options(data=data, num_sessions=2)
    figures = measure(find(name), local.backend(""), local.tokens(), options)
    assert (figures["sessions"], figures["failed"], figures["failures"]) == (2, 0, {})
    assert figures["calls"] == CALLS[name]
    assert 0 < figures["cached_tokens"] < figures["prompt_tokens"]
    assert 0.95 <= figures["hit_of_ideal"] <= 1.0
    assert figures["generated_tokens"] >= figures["calls"]
    if name == "json_extraction":
        assert figures["outcome"]["valid"] == 1.0


@pytest.mark.parametrize("name", ["react", "tau_bench"])
def test_a_generated_history_is_found_with_its_outputs(
    name: str, local: EngineTarget, data: Path
) -> None:
    program = find(name)
    recorded, generated = (
        measure(
            program,
            local.backend(""),
            local.tokens(),
            Options(data=data, num_sessions=1, history=history),
        )
        for history in HISTORIES
    )
    assert generated["generated_tokens"] == recorded["generated_tokens"]
    assert generated["ideal_hit_rate"] > recorded["ideal_hit_rate"]
    assert generated["hit_of_ideal"] > 0.95


def test_a_recorded_history_sends_the_recorded_text(
    tiny_runtime: ramet.Runtime, data: Path
) -> None:
    episode = react.load(data)[0]
    state = react.react.run(
        episode=episode, lengths=[3, 3], history="recorded", backend=tiny_runtime, temperature=0
    )
    assert state.text() == episode.head + "".join(
        turn.lead + turn.said + turn.told for turn in episode.turns
    )
    assert [state.meta(f"turn{i}")["branches"][0]["completion_tokens"] for i in (0, 1)] == [3, 3]


@pytest.mark.parametrize("backend", ["endpoint", "openai"])
def test_servers_run_the_same_program_by_either_route(
    backend: str, server_url: str, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    flags = [f"--data={data}", f"--url={server_url}", f"--backend={backend}", f"--json={out}"]
    programs = [f"--program={name}" for name in NAMES]
    result = CliRunner().invoke(app, ["programs", *flags, *programs, "--sessions=2"])
    assert result.exit_code == 0, result.output
    written = json.loads(out.read_text())
    assert (written["backend"], written["model"]) == (backend, "tiny")
    for name in NAMES:
        figures = written["programs"][name]
        assert (figures["calls"], figures["failed"]) == (CALLS[name], 0)
        assert 0.95 <= figures["hit_of_ideal"] <= 1.0, name


def test_sessions_longer_than_the_context_are_counted_not_sent(
    local: EngineTarget, data: Path
) -> None:
    path = data / "gsm8k" / "test.jsonl"
    long = json.dumps({"question": "x" * 4000, "answer": "#### 1"})
    path.write_text(f"{long}\n{path.read_text()}")
    options = Options(data=data, num_sessions=1)
    figures = measure(find("self_consistency"), local.backend(""), local.tokens(), options)
    assert figures["left_out"] == {"longer than 2048 tokens": 1}
    assert (figures["sessions"], figures["calls"], figures["failed"]) == (1, 1, 0)


def test_failures_are_counted_by_reason(local: EngineTarget, data: Path) -> None:
    class Failing:
        frames = None
        retains = False
        restarts = False

        def check(self, params: Any) -> None:
            pass

        async def generate(self, request: Any) -> Any:
            raise ramet.BackendError("too busy", 503)

    figures = measure(find("react"), Failing(), local.tokens(), Options(data=data, num_sessions=2))
    assert figures["failed"] == 2
    assert figures["failures"] == {"BackendError: too busy": 2}
    assert figures["hit_rate"] is None and figures["ideal_hit_rate"] is None


@pytest.mark.parametrize(
    ("flag", "word"),
    [
        ("--program=chess", "chess"),
        ("--backend=carrier-pigeon", "carrier-pigeon"),
        ("--history=none", "none"),
    ],
)
def test_what_is_not_known_is_named(flag: str, word: str, data: Path) -> None:
    result = CliRunner().invoke(app, ["programs", f"--data={data}", flag])
    assert result.exit_code == 2
    assert word in result.output


def test_missing_data_and_servers_are_one_line(tmp_path: Path, server_url: str) -> None:
    for url in (server_url, "http://127.0.0.1:9"):
        result = CliRunner().invoke(app, ["programs", f"--data={tmp_path}", f"--url={url}"])
        assert result.exit_code == 1
        assert "error: " in result.output and "Traceback" not in result.output
