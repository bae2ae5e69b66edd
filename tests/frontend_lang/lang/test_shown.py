"""Programs print: what they will do, and what they did; and types as constraints."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal
from xml.etree import ElementTree

import pytest

import ramet as sgl
from ramet import ProgramError, UsageError
from ramet.lang.types import constraint_of


@sgl.function
def judge(s: sgl.State, essay: str, topics: list[str]) -> None:
    s += sgl.system("You judge.")
    s += sgl.user("The essay: " + essay)
    forks = s.fork(2)
    for fork, topic in zip(forks, ["style", "sense"], strict=True):
        fork += sgl.user(f"Judge its {topic}.")
        fork += sgl.assistant(sgl.gen("verdict", max_tokens=20))
    forks.join()
    s += sgl.assistant("\n".join(s["verdict"]) + sgl.select("grade", ["A", "B"]))


def test_a_trace_shows_the_tree() -> None:
    assert str(judge.trace(topics=[])) == (
        "judge:\n"
        "  system:\n"
        "    text 'You judge.'\n"
        "  user:\n"
        "    text 'The essay: {essay}'\n"
        "  fork(2)\n"
        "    branch 0:\n"
        "      user:\n"
        "        text 'Judge its style.'\n"
        "      assistant:\n"
        "        gen('verdict', max_tokens=20)\n"
        "    branch 1:\n"
        "      user:\n"
        "        text 'Judge its sense.'\n"
        "      assistant:\n"
        "        gen('verdict', max_tokens=20)\n"
        "  join(gather_variable)\n"
        "  assistant:\n"
        "    text '{verdict}\\n{verdict}'\n"
        "    select('grade': 'A' | 'B'; token_length_normalized)"
    )


def test_a_trace_formats_arguments_and_ends_where_it_needs_a_value() -> None:
    @sgl.function
    def program(s: sgl.State, name: str) -> None:
        s += f"Hello {name}, " + sgl.gen("n", n=2)
        with s.var_scope("part"):
            s += sgl.tool_loop("t", [sgl_tool])
        with s.copy() as aside:
            aside += "aside"
        assert len(s.text()) > 5 and len(s["n"]) == 2
        s += "x" * int(s["part"])

    shown = str(program.trace())
    assert "text 'Hello {name}, '" in shown
    assert "tool_loop('t'; sgl_tool; at most 8 rounds)" in shown
    assert "ends here: the body needs real values (ValueError" in shown


def sgl_tool(x: int) -> int:
    """Nothing."""
    return x


def test_a_trace_shows_the_programs_that_a_program_runs_and_asks_no_model(backend: Any) -> None:
    @sgl.function
    def expand(s: sgl.State, tip: str) -> str:
        s += "Expand " + tip + sgl.gen("paragraph")
        return "ended"

    @sgl.function
    def suggest(s: sgl.State, topic: str) -> None:
        s += topic + sgl.gen("tip")
        expanded = expand(tip=s["tip"], temperature=0)
        assert expanded.ret_value == "ended"
        s += "So: " + expanded["paragraph"]

    assert str(suggest.trace()) == (
        "suggest:\n"
        "  text '{topic}'\n"
        "  gen('tip')\n"
        "  expand:\n"
        "    text 'Expand {tip}'\n"
        "    gen('paragraph')\n"
        "  text 'So: {paragraph}'"
    )
    assert backend.requests == []
    assert expand.run(tip="x")["paragraph"] == "ok"


def test_a_trace_of_a_loop_without_end_is_an_error() -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        while True:
            s += "again"

    with pytest.raises(UsageError, match="10000"):
        program.trace()
    with pytest.raises(UsageError, match="no argument"):
        program.trace(nope=1)


def test_a_finished_program_shows_its_branches_with_their_figures(backend: Any) -> None:
    state = judge.run("text", [])
    lines = state.tree().splitlines()
    assert lines[0] == "program" and lines[1] == "  fork0[0]"
    assert lines[2].startswith("    gen verdict: 'ok'  [")
    assert "read (" in lines[2] and "cached), 2 written, " in lines[2]
    assert lines[3] == "  fork0[1]" and lines[5].startswith("  select grade: 'A'")
    root = ElementTree.fromstring(state.to_html())
    assert len(root.findall("div")) == len(lines) - 1
    assert len(root.findall(".//svg")) == 3
    assert state._repr_html_() == state.to_html()


def test_a_failed_program_shows_where(backend: Any) -> None:
    def reply(prompt: str) -> str:
        raise RuntimeError("<no>")

    backend.reply = reply
    with pytest.raises(ProgramError) as error:
        judge.run("text", [])
    assert error.value.state is not None
    assert "failed: RuntimeError: <no>" in error.value.state.tree()
    ElementTree.fromstring(error.value.state.to_html())


@dataclass
class Person:
    """A person."""

    name: str
    age: int


@pytest.mark.parametrize(
    ("kind", "kept", "text", "value"),
    [
        (int, "regex stop", "-12", -12),
        (float, "regex stop", "1.5", 1.5),
        (bool, "regex", "True", True),
        (bool, "regex", "False", False),
        (str, "regex", '"a"', "a"),
        (Literal["a", "b"], "choice", "b", "b"),
        (Literal[1, 2], "choice", "2", 2),
        (Person, "json_schema", '{"name": "A", "age": 3}', Person("A", 3)),
        (list[int], "json_schema", "[1,2]", [1, 2]),
    ],
)
def test_types_are_constraints_and_values(kind: Any, kept: str, text: str, value: Any) -> None:
    constraint, convert = constraint_of(kind)
    assert list(constraint) == kept.split() and convert(text) == value


def test_a_pydantic_model_is_its_own_schema_and_parser(backend: Any) -> None:
    pydantic = pytest.importorskip("pydantic")
    city = pydantic.create_model("City", name=(str, ...), size=(int, ...))
    backend.reply = lambda prompt: '{"name": "Rome", "size": 3}'

    @sgl.function
    def program(s: sgl.State) -> None:
        s += sgl.gen("x", type=city) + sgl.gen("y", json_schema=city)

    state = program.run()
    assert state["x"] == city(name="Rome", size=3) and isinstance(state["y"], str)
    schemas = [json.loads(request.params.json_schema) for request in backend.requests]
    assert schemas[0] == schemas[1] == city.model_json_schema()


def test_text_that_is_no_value_of_its_type_fails(backend: Any) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        s += sgl.gen("x", type=int)

    with pytest.raises(ProgramError, match="'ok' is no value"):
        program.run()


def test_dtype_keeps_text(backend: Any) -> None:
    backend.reply = lambda prompt: "12"

    @sgl.function
    def program(s: sgl.State) -> None:
        s += sgl.gen("x", dtype=int) + sgl.gen_int("y") + sgl.gen_string("z")

    state = program.run()
    assert (state["x"], state["y"]) == ("12", "12")
    assert [bool(request.params.regex) for request in backend.requests] == [True] * 3


@pytest.mark.parametrize("kind", [object(), lambda: 0])
def test_what_is_no_type_is_refused(kind: Any) -> None:
    with pytest.raises(UsageError):
        sgl.gen("x", type=kind)
    with pytest.raises(UsageError):
        sgl.gen("x", dtype=kind)
    with pytest.raises(UsageError):
        sgl.gen("x", json_schema=kind)
