"""Schemas that require themselves without end are refused, or never entered."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ramet.runtime.errors import GrammarError
from ramet.runtime.structured.byte_vocabulary import byte_tokenizer
from ramet.runtime.structured.checker import check
from ramet.runtime.structured.constraint import Constraint
from ramet.runtime.structured.schema import prepare

ENDLESS = {"type": "object", "properties": {"x": {"$ref": "#/$defs/e"}}, "required": ["x"]}


def schema(**members: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": members,
        "required": list(members),
        "$defs": {"e": ENDLESS},
    }


@pytest.mark.parametrize(
    "endless",
    [
        schema(a={"type": "integer"}, c={"$ref": "#"}),
        schema(c={"$ref": "#/$defs/e"}),
        {"type": "array", "minItems": 1, "items": {"$ref": "#"}},
        {"type": "array", "minItems": 1, "prefixItems": [{"$ref": "#"}]},
        {"type": "array", "minItems": 2, "items": [{"type": "null"}], "additionalItems": ENDLESS}
        | {"$defs": {"e": ENDLESS}},
        schema(a={"anyOf": [{"$ref": "#"}, {"$ref": "#/$defs/e"}]}),
        schema(a={"allOf": [{"type": "object"}, {"$ref": "#"}]}),
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    ],
)
def test_a_schema_that_requires_itself_is_refused(endless: dict[str, Any]) -> None:
    with pytest.raises(GrammarError, match="requires itself without end"):
        prepare(json.dumps(endless))
    assert "without end" in check(Constraint.json_schema(endless), byte_tokenizer()).error


@pytest.mark.parametrize(
    "ends",
    [
        schema(v={"type": "integer"}, kids={"type": "array", "items": {"$ref": "#"}}),
        schema(next={"anyOf": [{"$ref": "#"}, {"type": "null"}]}),
        schema(next={"type": ["object", "null"], "properties": {"x": {"$ref": "#"}}}),
        {"type": "object", "properties": {"child": {"$ref": "#"}}},
        schema(a={"properties": {"x": {"$ref": "#"}}, "required": ["x"]}),
        {"type": "array", "maxItems": 3, "items": {"$ref": "#"}},
    ],
)
def test_a_schema_that_has_an_end_stays(ends: dict[str, Any]) -> None:
    ends.pop("$defs", None)
    before = json.loads(json.dumps(ends))
    after = prepare(json.dumps(ends))
    after.pop("additionalProperties", None)
    assert {**after, "properties": None} == {**before, "properties": None}
    assert not check(Constraint.json_schema(before), byte_tokenizer()).error


def test_alternatives_and_members_without_end_are_never_entered() -> None:
    alternative = {"anyOf": [{"$ref": "#/$defs/e"}, {"type": "null"}]}
    optional = schema(a={"type": "integer"}) | {
        "properties": {"a": {"type": "integer"}, "b": {"$ref": "#/$defs/e"}, "c": alternative}
    }
    made = prepare(json.dumps(optional))
    assert made["properties"]["b"] is False
    assert made["properties"]["c"]["anyOf"] == [False, {"type": "null"}]
    assert not check(Constraint.json_schema(optional), byte_tokenizer()).error
