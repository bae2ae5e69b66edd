"""The programs in examples/ run, and share what they should."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

import ramet

FOLDER = Path(__file__).parents[3] / "examples"
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py"))


def load(name: str) -> dict[str, Any]:
    return runpy.run_path(str(FOLDER / f"{name}.py"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_runs_on_both_kinds_of_backend(
    exact: Any, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ramet.set_default_backend(exact)
    try:
        load(name)["main"]()
    finally:
        ramet.set_default_backend(None)
    assert capsys.readouterr().out


def hit_rate(state: ramet.State) -> float:
    """Cached share of the tokens that all of a program's requests read, the first one excepted."""
    from ramet.lang.report import Step, _walk

    steps = [step for _, _, step in _walk(state._executor, 0) if isinstance(step, Step)]
    return sum(s.num_cached or 0 for s in steps[1:]) / sum(s.num_prompt for s in steps[1:])


def test_a_tree_of_thought_reads_nearly_everything_from_the_cache(exact: Any) -> None:
    program = load("tree_of_thought")["tree_of_thought"]
    question = f"A question long enough to matter, {type(exact).__name__}? " * 6
    state = program.run(question, width=3, backend=exact, seed=1, ignore_eos=True)
    assert len(state.ret_value) == 9
    assert hit_rate(state) > 0.8


@pytest.mark.real_model
def test_the_examples_make_sense_on_a_real_model(
    smollm2: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ramet.Runtime(smollm2, kv_cache_memory=512 * 1024**2) as real:
        few_shot = load("few_shot")["few_shot"]
        answers = few_shot.run_batch(
            [{"question": "What colour is blood?"}, {"question": "What colour is coal?"}],
            backend=real,
            temperature=0,
        )
        assert [state["answer"].strip() for state in answers] == ["red", "black"]
        judged = load("judge")["judge"].run("Trees are tall.", backend=real, temperature=0)
        assert set(load("judge")["json"].loads(judged["sum"])) == {"grade", "pass"}
        # The option that is likelier under joint tokenization wins, with and without a space before it.
        for space in ("", " "):
            greeting = _greeting.run(space, backend=real)
            assert greeting["v"] in ("Hello", "Goodbye")


@ramet.function
def _greeting(s: ramet.State, space: str) -> None:
    s += ramet.user("Hi!")
    with s.assistant():
        s += space + ramet.select("v", ["Hello", "Goodbye", "^*B^&A"])
