"""Which constraints cannot cost more than a millisecond or two to compile, told from their text alone.

What compiling the others takes is bounded where it is done (checker.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .calls import schemas
from .constraint import Constraint, ConstraintKind

MAX_PLAIN_LEN = 8 * 1024
_MAX_PLAIN_PARTS = 128

_REMARKS = frozenset(
    ("$schema", "$id", "$comment", "title", "description", "default", "examples", "deprecated")
)
_VALUES = frozenset(("type", "enum", "const", "required"))


def is_plain(constraint: Constraint) -> bool:
    """Whether it is short, and has nothing but listed members, items and values, one inside the other.

    No patterns, no counts, no numbers' bounds, nothing that combines schemas: there is no automaton in it
    that is larger than its text.
    """
    if constraint.kind is ConstraintKind.CHOICE:
        return sum(map(len, constraint.choices)) <= MAX_PLAIN_LEN
    if len(constraint.source) > MAX_PLAIN_LEN:
        return False
    if constraint.kind is ConstraintKind.JSON_OBJECT:
        return True
    try:
        if constraint.kind is ConstraintKind.JSON_SCHEMA:
            return _are_plain([json.loads(constraint.source)])
        if constraint.kind is ConstraintKind.CALLS:
            return _are_plain([schema for _, schema in schemas(constraint.source)])
    except (ValueError, RecursionError):
        pass  # What is wrong with it is said where it is translated.
    return False


def _are_plain(waiting: list[Any]) -> bool:
    num_parts = 0
    while waiting:
        schema = waiting.pop()
        num_parts += 1
        if num_parts > _MAX_PLAIN_PARTS:
            return False
        if isinstance(schema, bool):
            continue
        if not isinstance(schema, Mapping):
            return False
        for name, value in schema.items():
            if name == "properties" and isinstance(value, Mapping):
                waiting += value.values()
            elif name in ("items", "additionalProperties"):
                waiting.append(value)
            elif name not in _REMARKS and name not in _VALUES:
                return False
    return True
