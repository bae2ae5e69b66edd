"""What is too plain to be a bomb."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ramet.runtime.structured.calls import CallGrammar, CallRule
from ramet.runtime.structured.constraint import Constraint
from ramet.runtime.structured.estimate import MAX_PLAIN_LEN, is_plain

PERSON = {
    "title": "Person",
    "description": "what (a|b){1000} is",
    "type": "object",
    "properties": {
        "name": {"type": "string", "default": "a{1000}"},
        "pattern": {"type": ["integer", "null"]},
        "tags": {"type": "array", "items": {"enum": ["a", "b", {"allOf": []}]}},
        "extra": {"type": "object", "additionalProperties": False},
    },
    "required": ["name", "pattern"],
}


def calls(schema: dict[str, Any]) -> Constraint:
    rule = CallRule(before=("<call>",), schema=schema, after=("</call>",), where="tools[0]")
    return CallGrammar(head=(), separator=(), tail=(), rules=(rule,)).constraint("tools")


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint.json_object(),
        Constraint.choice(["a{1000000}", "b"]),
        Constraint.json_schema({}),
        Constraint.json_schema(PERSON),
        calls(PERSON),
    ],
)
def test_listed_members_items_and_values_are_plain(constraint: Constraint) -> None:
    assert is_plain(constraint)


@pytest.mark.parametrize(
    "part",
    [
        {"pattern": "a"},
        {"maxLength": 5},
        {"minItems": 5},
        {"maximum": 5},
        {"format": "date"},
        {"allOf": [{}]},
        {"anyOf": [{}]},
        {"$ref": "#"},
        {"patternProperties": {"a": {}}},
        {"items": [{}]},
        {"properties": []},
        {"unheard": 1},
        5,
    ],
)
def test_all_else_is_not_however_deep_it_lies(part: Any) -> None:
    around = {"type": "object", "properties": {"a": {"items": {"additionalProperties": part}}}}
    assert not is_plain(Constraint.json_schema(around))
    assert not is_plain(calls(around))


def test_what_is_long_is_not_plain() -> None:
    assert not is_plain(Constraint.choice(["a" * MAX_PLAIN_LEN, "b"]))
    assert not is_plain(Constraint.json_schema({"title": "a" * MAX_PLAIN_LEN}))
    assert not is_plain(Constraint.json_schema({"properties": {f"p{i}": {} for i in range(200)}}))


def test_other_languages_and_what_is_malformed_are_not_plain() -> None:
    assert not is_plain(Constraint.regex("a"))
    assert not is_plain(Constraint.grammar('start: "a"'))
    for text in ("{", "[" * 8000, json.dumps({"items": 3}), "[]"):
        assert not is_plain(Constraint.json_schema(text))
