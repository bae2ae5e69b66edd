"""Members named by patterns: where a pattern has no name left, no further member is begun."""

from __future__ import annotations

import random
from typing import Any

import pytest
from llguidance import LLMatcher

from ramet.runtime.structured.byte_vocabulary import byte_tokenizer
from ramet.runtime.structured.constraint import Constraint
from ramet.runtime.structured.patterns import fold_exhausted
from ramet.runtime.structured.translate import translate


def folded(schema: dict[str, Any]) -> dict[str, Any]:
    fold_exhausted(schema)
    return schema


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (
            {
                "properties": {"mark": {"type": "string"}},
                "patternProperties": {"^mark$": {"enum": ["A"]}},
            },
            {"properties": {"mark": {"allOf": [{"type": "string"}, {"enum": ["A"]}]}}},
        ),
        (
            {"properties": {"a": {}, "b": True}, "patternProperties": {"^[ab]$": {"type": "null"}}},
            {"properties": {"a": {"type": "null"}, "b": {"type": "null"}}},
        ),
        (
            {
                "properties": {"a": {"type": "null"}},
                "patternProperties": {"^(a|é)$": True},
                "required": ["é"],
            },
            {"properties": {"a": {"type": "null"}, "é": True}, "required": ["é"]},
        ),
    ],
)
def test_an_exhausted_pattern_is_written_into_its_members(
    schema: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert folded(schema) == expected


@pytest.mark.parametrize(
    "schema",
    [
        {"patternProperties": {"^a$": {}}},
        {"properties": {"a": {}}, "patternProperties": {"^[ab]$": {}}},
        {"properties": {"a": {}}, "patternProperties": {"a": {}}},
        {"properties": {"a": {}}, "patternProperties": {"(": {}}},
        {"properties": {"a": {}}, "patternProperties": 7},
        {"properties": 7, "patternProperties": {"^a$": {}}},
        {"properties": {"a": {}}},
    ],
)
def test_any_other_schema_stays_as_it_is(schema: dict[str, Any]) -> None:
    before = repr(schema)
    assert repr(folded(schema)) == before


@pytest.mark.parametrize(
    "schema",
    [
        {
            "properties": {"mark": {"type": "string"}},
            "required": ["mark"],
            "patternProperties": {"^mark$": {"enum": ["A", "B"]}},
            "additionalProperties": False,
        },
        {
            "properties": {"a": {}, "b": {}},
            "patternProperties": {"^[ab]$": {"type": "integer"}},
            "additionalProperties": False,
        },
        {
            "properties": {"a": {"type": "integer"}},
            "required": ["a", "b"],
            "patternProperties": {"^b$": {"type": "boolean"}},
            "additionalProperties": False,
        },
    ],
)
def test_no_random_output_gets_stuck(schema: dict[str, Any]) -> None:
    grammar = translate(Constraint.json_schema({"type": "object", **schema}))
    first = LLMatcher(byte_tokenizer(), grammar, log_level=0)
    for seed in range(60):
        chooser, matcher = random.Random(seed), first.deep_copy()
        for _ in range(60):
            mask = matcher.compute_bitmask()
            assert not matcher.is_error(), matcher.get_error()
            legal = [byte for byte in range(256) if mask[byte // 8] >> byte % 8 & 1]
            likely = [byte for byte in legal if chr(byte) in '",}0']
            if not legal or matcher.is_stopped():
                break
            matcher.consume_token(chooser.choice(likely or legal))
