"""Constraints as data: what is taken, what is equal, what crosses between processes."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from ramet.runtime.errors import GrammarError, InvalidRequest
from ramet.runtime.structured.constraint import MAX_SOURCE_LEN, Constraint

EVERY_KIND = [
    Constraint.regex("a+"),
    Constraint.json_schema({"type": "string"}),
    Constraint.json_object(),
    Constraint.choice(["a", "b"]),
    Constraint.grammar('root ::= "a"'),
]


@pytest.mark.parametrize("constraint", EVERY_KIND, ids=lambda c: c.kind)
def test_every_kind_survives_the_way_between_processes(constraint: Constraint) -> None:
    data = msgspec.msgpack.encode(constraint)
    assert msgspec.msgpack.decode(data, type=Constraint) == constraint


def test_the_field_it_came_from_is_no_part_of_a_constraint() -> None:
    one, other = Constraint.regex("a", param="regex"), Constraint.regex("a", param="guided_regex")
    assert one == other and hash(one) == hash(other)


def test_a_schema_keeps_the_order_of_its_members() -> None:
    one = Constraint.json_schema({"properties": {"b": {}, "a": {}}})
    assert one != Constraint.json_schema({"properties": {"a": {}, "b": {}}})


@pytest.mark.parametrize(
    "make",
    [
        lambda: Constraint.choice([], param="here"),
        lambda: Constraint.choice(["a", ""], param="here"),
        lambda: Constraint.json_schema("", param="here"),
        lambda: Constraint.grammar("", param="here"),
        lambda: Constraint.json_schema({"minimum": float("nan")}, param="here"),
        lambda: Constraint.regex("a" * (MAX_SOURCE_LEN + 1), param="here"),
        lambda: Constraint.choice(["a" * MAX_SOURCE_LEN, "b"], param="here"),
    ],
    ids=["no choices", "empty choice", "no schema", "no grammar", "nan", "long", "long choices"],
)
def test_what_cannot_be_compiled_at_all_is_refused_by_its_field(
    make: Callable[[], Constraint],
) -> None:
    with pytest.raises(GrammarError) as caught:
        make()
    assert caught.value.param == "here" and isinstance(caught.value, InvalidRequest)
