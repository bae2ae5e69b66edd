"""What looks costly before anything is compiled."""

from __future__ import annotations

import json

import pytest

from ramet.runtime.structured.constraint import Constraint
from ramet.runtime.structured.estimate import looks_costly

DATE, UUID = r"^\d{4}-\d{2}-\d{2}$", r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint.regex(DATE),
        Constraint.regex(UUID),
        Constraint.regex("(a|b){10}{"),
        Constraint.json_object(),
        Constraint.choice(["a{1000000}"] * 2000),
        Constraint.json_schema({"maxLength": 100_000, "pattern": DATE}),
        Constraint.json_schema({"properties": {f"p{i}": {"pattern": UUID} for i in range(20)}}),
        Constraint.json_schema({"enum": [{}, {"1": {"2": []}}]}),
    ],
    ids=lambda constraint: constraint.source[:40],
)
def test_what_people_write_does_not(constraint: Constraint) -> None:
    assert not looks_costly(constraint)


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint.regex("a{2000}"),
        Constraint.regex("a{1,}b{5,2000}"),
        Constraint.regex("((a{11}){11}){11}"),
        Constraint.regex("x(" * 80 + "a{30}){40}"),
        Constraint.json_schema({"allOf": [{"pattern": f"(a|b).{{{i}}}c"} for i in range(60)]}),
        Constraint.grammar('start: "a"{3000}'),
    ],
    ids=lambda constraint: constraint.source[:40],
)
def test_what_counts_far_does(constraint: Constraint) -> None:
    assert looks_costly(constraint)


def test_the_longest_source_is_read_at_once() -> None:
    for text in ("){", "(", ")", "(){1}"):
        long = Constraint.json_schema(json.dumps({"const": text * (240_000 // len(text))}))
        assert not looks_costly(long) or "{1}" in text
