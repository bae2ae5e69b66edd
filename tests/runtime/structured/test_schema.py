"""How a schema is read before it is compiled."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ramet.runtime.errors import GrammarError
from ramet.runtime.structured.schema import MAX_DEPTH, prepare


def prepared(schema: Any) -> Any:
    return prepare(json.dumps(schema))


def test_an_object_that_lists_its_members_takes_no_others() -> None:
    schema = prepared({"properties": {"a": {"properties": {"b": {}}}}})
    assert schema["additionalProperties"] is False
    assert schema["properties"]["a"]["additionalProperties"] is False


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"properties": {"a": {}}, "additionalProperties": True},
        {"properties": {"a": {}}, "additionalProperties": {"type": "string"}},
        {"enum": [{"properties": {"a": 1}}]},
        {"default": {"properties": {"a": 1}}},
    ],
)
def test_what_says_enough_or_is_no_schema_stays_as_it_is(schema: Any) -> None:
    assert prepared(schema) == schema


def test_parts_of_a_combined_object_stay_open_and_so_do_those_they_refer_to() -> None:
    schema = prepared(
        {
            "allOf": [{"$ref": "#/$defs/a"}, {"properties": {"b": {}}}],
            "$defs": {"a": {"properties": {"a": {}}}, "c": {"properties": {"c": {}}}},
        }
    )
    assert "additionalProperties" not in schema["allOf"][1]
    assert "additionalProperties" not in schema["$defs"]["a"]
    assert schema["$defs"]["c"]["additionalProperties"] is False


def test_an_only_part_and_alternatives_without_common_members_are_closed() -> None:
    schema = prepared(
        {
            "properties": {
                "one": {"allOf": [{"$ref": "#/$defs/a"}]},
                "either": {"oneOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]},
            },
            "$defs": {"a": {"properties": {"a": {}}}},
        }
    )
    assert schema["$defs"]["a"]["additionalProperties"] is False


def test_a_required_member_that_is_not_listed_is_still_possible() -> None:
    schema = prepared({"properties": {"a": {}}, "required": ["b"]})
    assert list(schema["properties"]) == ["a", "b"] and schema["additionalProperties"] is False


def test_formats_outside_the_standard_are_remarks() -> None:
    assert prepared({"type": "string", "format": "password"}) == {"type": "string"}
    assert prepared({"format": "date"}) == {"format": "date"}


@pytest.mark.parametrize("text", ["false", "[]", '"x"', "null", "{", '{"minimum": NaN}'])
def test_what_is_no_schema_object_is_refused(text: str) -> None:
    with pytest.raises(GrammarError):
        prepare(text)


def test_the_engines_own_options_are_refused() -> None:
    with pytest.raises(GrammarError, match="x-guidance"):
        prepared({"properties": {"a": {"x-guidance": {"lenient": True}}}})


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 100_000])
def test_nesting_is_bounded(depth: int) -> None:
    with pytest.raises(GrammarError, match="nested deeper than 100"):
        prepare('{"not":' * depth + "{}" + "}" * depth)
