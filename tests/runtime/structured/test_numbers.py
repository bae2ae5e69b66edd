"""Numbers between bounds: exactly those that JSON Schema allows, each in its usual spelling."""

from __future__ import annotations

import json
import random
from fractions import Fraction
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from llguidance import LLMatcher

from ramet.runtime.structured.byte_vocabulary import byte_tokenizer
from ramet.runtime.structured.checker import check
from ramet.runtime.structured.constraint import Constraint

WHOLE = [str(value) for value in range(-24, 25)]
FRACTIONS = [str(float(Fraction(k, 8))) for k in range(-192, 193) if k % 8]
"""The texts of decimals that are no integers."""


def bounds(chooser: random.Random) -> dict[str, float]:
    """None, one or two bounds, inclusive or not, some of them whole."""

    def value() -> float:
        return chooser.choice([chooser.randint(-22, 22), chooser.randint(-176, 176) / 8])

    low, high = sorted((value(), value()))
    names = (
        chooser.choice(["minimum", "exclusiveMinimum", None]),
        chooser.choice(["maximum", "exclusiveMaximum", None]),
    )
    return {name: bound for name, bound in zip(names, (low, high), strict=True) if name}


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("kind", ["integer", "number"])
def test_random_bounds_admit_what_a_validator_admits(kind: str, seed: int) -> None:
    schema: dict[str, Any] = {"type": kind, **bounds(random.Random(f"{kind} {seed}"))}
    validator = jsonschema.Draft202012Validator(schema)
    texts = [*WHOLE, *FRACTIONS]
    wanted = [text for text in texts if validator.is_valid(json.loads(text))]
    verdict = check(Constraint.json_schema(schema), byte_tokenizer())
    if verdict.error:
        assert not wanted, (schema, verdict.error)
        return
    first = LLMatcher(byte_tokenizer(), verdict.grammar, log_level=0)

    def fits(text: str) -> bool:
        matcher = first.deep_copy()
        return (
            matcher.try_consume_tokens(list(text.encode())) == len(text) and matcher.is_accepting()
        )

    assert [text for text in texts if fits(text)] == wanted, schema


@pytest.mark.parametrize(
    ("text", "is_one"),
    [("0.5", True), ("4", True), ("4.0", True), ("3.999", True), ("-3", True), ("-6", True)]
    + [(text, False) for text in ("0", "0.0", "4.125", "4.0001", "-2", "-7", "-3.5")],
)
def test_one_of_two_ranges_is_enough(text: str, is_one: bool) -> None:
    schema = {
        "anyOf": [
            {"type": "number", "exclusiveMinimum": 0, "maximum": 4},
            {"type": "integer", "minimum": -6, "maximum": -3},
        ]
    }
    verdict = check(Constraint.json_schema(schema), byte_tokenizer())
    matcher = LLMatcher(byte_tokenizer(), verdict.grammar, log_level=0)
    taken = matcher.try_consume_tokens(list(text.encode()))
    assert (taken == len(text) and matcher.is_accepting()) == is_one
