"""Each program's data, from the files of the public data sets to sessions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from ramet.bench.programs import (
    json_extraction,
    react,
    self_consistency,
    tau_bench,
    tree_of_thought,
)
from ramet.bench.programs.command import NAMES, find
from ramet.bench.programs.program import Count, DataError


def test_react_episodes_alternate_and_begin_with_their_few_shot_text(data: Path) -> None:
    claim, shop, second_claim = react.load(data)
    assert claim.head == "Decide.\nClaim: number 0.\n"
    assert claim.turns[0] == react.Turn(
        "Thought 1:", " look\nAction 1: Search[x]", "\nObservation 1: x\n"
    )
    assert second_claim.head.endswith("number 1.\n")
    assert shop.head == "Webshop\n\nAction: reset\nObservation: buy soap\n\n"
    assert [turn.said for turn in shop.turns] == [" search[soap]", " click[Buy Now]"]


def test_a_tau_bench_session_ends_with_its_last_answer_and_shows_its_calls(data: Path) -> None:
    first, second = tau_bench.load(data)
    assert first.system.startswith("Be an agent.") and '{"name": "find"}' in first.system
    assert [message.role for message in first.messages] == ["user", "assistant"] * 2
    assert first.messages[1].content == (
        '<tool_call>\n{"name": "find", "arguments": {"id":1}}\n</tool_call>'
    )
    assert "<tool_response>" in first.messages[2].content
    assert second.system == first.system and len(second.messages) == 2


def test_a_search_has_the_prompts_of_the_original(data: Path) -> None:
    search, _ = tree_of_thought.load(data)
    first, second, third = search.steps
    (proposal,) = first.proposals
    assert search.heads[proposal.kind] + proposal.tail == "Input: 3 4 4\nPossible next steps:\n"
    assert proposal.said == "4 + 4 = 8 (left: 3 8)\n4 - 4 = 0 (left: 0 3)\n"
    assert first.judged == (("value", "3 8\n"), ("value", "0 3\n"))
    assert first.kept == {("value", "3 8\n")}
    assert second.proposals[0].tail == "3 8\nPossible next steps:\n"
    (answer,) = third.proposals
    kind, tail = third.judged[0]
    assert search.heads[answer.kind] + answer.tail == (
        "Reach 24.\nInput: 3 4 4\nSteps:\n4 + 4 = 8 (left: 3 8)\n3 * 8 = 24 (left: 24)\n"
    )
    assert search.heads[kind] + tail == "Judge.\nInput: 3 4 4\nAnswer: 3 * (4 + 4) = 24\nJudge:"
    assert search.is_solved


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("10 + 14 = 24\nsure\n11 12\nimpossible", 20.0),
        ("likely", 1.0),
        ("5 5\nimpossible\n", 0.001),
        ("surely not", 0.0),
        ("", 0.0),
    ],
)
def test_a_judgement_is_its_first_verdict(text: str, value: float) -> None:
    assert tree_of_thought.value_of(text) == value


def test_problems_stand_behind_examples_without_calculations(data: Path) -> None:
    first, second = self_consistency.load(data)
    assert "It is 1.\n#### 1\n\n" in first.examples and "<<" not in first.examples
    assert (first.answer, second.question) == ("1", "What is 1 + 1?")


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        ("… #### 1,200", "1200"),
        ("#### -3.50", "-3.5"),
        ("#### 7.0 #### 8", "7"),
        ("#### 100", "100"),
        ("no", None),
    ],
)
def test_an_answer_is_the_first_number_behind_its_mark(solution: str, answer: str | None) -> None:
    assert self_consistency.answer_in(solution) == answer


def test_the_commonest_answer_wins_the_vote() -> None:
    assert self_consistency.vote(["#### 1", "#### 2", "x", "#### 2.0", "x", "x"]) == "2"
    assert self_consistency.vote(["x"]) is None


def test_requests_stand_behind_solved_ones(data: Path) -> None:
    first, _ = json_extraction.load(data)
    assert first.text.count("Request: Size 3.") == 1 + json_extraction.NUM_EXAMPLES
    assert 'Arguments of a.b: {"size": 3}\n' in first.text
    assert list(first.schemas) == ["a.b", "c"]
    assert first.right == {"a.b": {"size": [3]}}


def test_described_types_become_bounded_schemas() -> None:
    described: dict[str, Any] = {
        "type": "dict",
        "properties": {
            "n": {"type": "float"},
            "t": {"type": "tuple", "items": {"type": "any"}},
            "e": {"type": "string", "enum": ["x"]},
            "d": {"type": "dict"},
            "b": {"type": "boolean", "default": True},
        },
        "required": ["n", "unknown"],
    }
    schema = json_extraction.json_schema(described)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["required"] == ["n"]
    assert json_extraction.fits('{"n": 1.5, "t": ["a"], "e": "x", "d": {}, "b": true}', schema)
    for wrong in ('{"n": 1e12}', '{"n": 1, "e": "y"}', '{"n": 1, "z": 1}', "{}", '{"n": 1'):
        assert not json_extraction.fits(wrong, schema)


def test_arguments_are_right_if_each_is_among_the_right_values() -> None:
    right: dict[str, list[Any]] = {"size": [3], "unit": ["", "cm"]}
    for text in ('{"size": 3}', '{"size": 3, "unit": "cm"}'):
        assert json_extraction.is_right(text, right)
    for text in ('{"size": 4}', '{"unit": "cm"}', '{"size": 3, "x": 1}', "{"):
        assert not json_extraction.is_right(text, right)


def test_the_size_of_a_session_covers_every_call(data: Path, count: Count) -> None:
    for episode in react.load(data):
        assert react.size(episode, count) >= count(episode.head)
    for session in tau_bench.load(data):
        assert tau_bench.size(session, count) > count(session.system)


@pytest.mark.parametrize("name", NAMES)
def test_missing_data_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no|cannot be read"):
        find(name).load(tmp_path)


def test_a_broken_line_is_named_with_its_number(data: Path) -> None:
    path = data / "gsm8k" / "test.jsonl"
    path.write_text(path.read_text() + "{\n")
    with pytest.raises(DataError, match="line 3"):
        self_consistency.load(data)


def test_a_record_without_its_field_is_named(data: Path) -> None:
    path = data / "react" / "trajectories" / "fever.jsonl"
    path.write_text(json.dumps({"turns": [{"env": "x"}]}) + "\n")
    with pytest.raises(DataError, match="'model'"):
        react.load(data)
