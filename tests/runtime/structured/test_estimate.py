"""What is too plain to be a bomb."""

from __future__ import annotations

import json
import random
import sys
from typing import Any

import pytest

from ramet.runtime.structured.calls import CallGrammar, CallRule
from ramet.runtime.structured.checker import Allowance, Verdict
from ramet.runtime.structured.checking import Checker
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
        {"required": ["unlisted"]},
        {"required": ["unlisted"], "additionalProperties": {"enum": [1]}},
        {"properties": {"a": {}}, "required": [["a"]]},
        {"properties": {"a": {}}, "required": "a"},
        {"enum": [{"a": 1}], "properties": {"a": {}}},
        {"enum": [1], "const": 1},
        {"minProperties": 1},
        {"maxItems": 1},
        {"prefixItems": [{}]},
        {"dependentRequired": {}},
        {"dependentSchemas": {}},
        {"propertyNames": {}},
        {"unevaluatedProperties": {}},
        {"contains": {}},
        {"not": {}},
        {"if": {}},
        {"$defs": {}},
        {"$schema": "http://json-schema.org/draft-07/schema"},
        {"oneOf": [{}]},
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


def nested(schema: Any, depth: int, name: str) -> Any:
    for _ in range(depth):
        schema = {name: {"a": schema} if name == "properties" else schema}
    return schema


def deep(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {f"p{i}": {} for i in range(200)}},
        {"properties": {"a": {}}, "required": ["a"] * 200},
        {"type": ["integer"] * 200},
        {"enum": [[]] * 200},
        {"const": [[]] * 200},
        {"const": {str(i): i for i in range(100)}},
        {"const": deep([], 20)},
        {"const": [{"a": [{"b": []}] * 20}] * 10},
        {"const": "a" * 6000},
        {"const": {"a" * 6000: 1}},
        {"enum": [10**200] * 30},
        {"properties": {"a" * 6000: {}}},
        nested({}, 20, "items"),
        nested({}, 20, "properties"),
        nested({}, 20, "additionalProperties"),
    ],
)
def test_what_has_many_parts_is_not_plain_whatever_they_are(schema: Any) -> None:
    assert not is_plain(Constraint.json_schema(schema))
    assert not is_plain(Constraint.json_schema({"items": schema}))
    assert not is_plain(calls(schema))


def test_many_functions_are_not_plain_however_little_they_take() -> None:
    rule = CallRule(before=("<call>",), schema={}, after=("</call>",), where="tools[0]")
    few, many = (CallGrammar(head=(), separator=(), tail=(), rules=(rule,) * n) for n in (3, 20))
    assert is_plain(few.constraint("tools")) and not is_plain(many.constraint("tools"))


class Schemas:
    """Random schemas of plain keywords, most of them larger than is plain."""

    TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def schema(self, size: int, depth: int = 0) -> Any:
        if size <= 1 or depth > 14:
            return self._random.choice([True, {}, {"type": list(self.TYPES)}, {"enum": [[]]}])
        if self._random.random() < 0.2:
            return {"enum": [self._value(0) for _ in range(self._random.randint(1, size))]}
        schema: dict[str, Any] = {"type": self._random.choice([*self.TYPES, "object", "array"])}
        count = self._random.choice([1, 1, 2, 4, size])
        part = max(1, (size - 1) // count)
        if self._random.random() < 0.6:
            names = [self._name() + str(i) for i in range(count)]
            schema["properties"] = {name: self.schema(part - 1, depth + 1) for name in names}
            schema["required"] = self._random.sample(names, self._random.randint(0, count))
        for name in ("items", "additionalProperties"):
            if self._random.random() < 0.4:
                schema[name] = self.schema(part, depth + 1)
        return schema

    def _value(self, depth: int) -> Any:
        kind = self._random.randint(0 if depth < 6 else 2, 6)
        count = self._random.choice([0, 1, 1, 2, 9])
        if kind == 0:
            return [self._value(depth + 1) for _ in range(count)]
        if kind == 1:
            return {self._name(): self._value(depth + 1) for _ in range(count)}
        return self._random.choice([self._name(), 1, -1.5e300, 10**40, True, None, [], {}])

    def _name(self) -> str:
        return self._random.choice(["a", "", "\u00e9", '"', "\0"]) * self._random.choice([1, 2, 31])


@pytest.mark.skipif(sys.platform != "linux", reason="needs the kernel's limits")
def test_nothing_plain_is_found_that_takes_more_than_a_small_allowance() -> None:
    schemas = Schemas(seed=1)
    allowance = Allowance(cpu_seconds=0.25, wall_seconds=40.0, niceness=0)
    checker, num_plain = Checker(), 0
    for size in [3, 20, 60, 128] * 50:
        constraint = Constraint.json_schema(json.dumps(schemas.schema(size)))
        if is_plain(constraint):
            num_plain += 1
            assert isinstance(checker.check(constraint, allowance), Verdict), constraint.source
    checker.close()
    assert num_plain > 20


def test_other_languages_and_what_is_malformed_are_not_plain() -> None:
    assert not is_plain(Constraint.regex("a"))
    assert not is_plain(Constraint.grammar('start: "a"'))
    for text in ("{", "[" * 8000, json.dumps({"items": 3}), "[]"):
        assert not is_plain(Constraint.json_schema(text))
