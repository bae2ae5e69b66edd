"""Which constraints cannot take more than some milliseconds to compile, told from their text alone.

Only what was measured counts as such (tests/runtime/structured/test_estimate.py searches for more), and
compiling what does not is bounded where it is done (checker.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from .calls import schemas
from .constraint import Constraint, ConstraintKind

MAX_PLAIN_LEN = 8 * 1024
MAX_PLAIN_CHOICES_LEN = 4 * 1024

MAX_PLAIN_PARTS = 128
"""Schemas, values and names, some 45 µs each at worst."""

MAX_PLAIN_DEPTH = 16
"""Of schemas and values in each other; what values cost grows with its square."""

_LENGTH_OF_PART = 32
"""Characters of a name or a value that cost no more than a part does."""

_PARTS_OF_RULE = 20
"""What a function costs beside its schema, which is compiled alone and in the whole."""

_REMARKS = frozenset(("$comment", "title", "description", "default", "examples", "deprecated"))
_VALUES = frozenset(("enum", "const"))
_SHAPES = frozenset(("properties", "items", "additionalProperties", "required"))


def is_plain(constraint: Constraint) -> bool:
    """Whether it is short, and has nothing but listed members, items and values, one inside the other.

    No patterns, no counts, no numbers' bounds, no references, nothing that combines schemas and nothing that
    is required without being listed, which the engine writes out once for each name: what is compiled is
    no larger than the text.
    """
    if constraint.kind is ConstraintKind.CHOICE:
        return constraint.length <= MAX_PLAIN_CHOICES_LEN
    if constraint.length > MAX_PLAIN_LEN:
        return False
    if constraint.kind is ConstraintKind.JSON_OBJECT:
        return True
    try:
        if constraint.kind is ConstraintKind.JSON_SCHEMA:
            return _num_parts(json.loads(constraint.source)) <= MAX_PLAIN_PARTS
        if constraint.kind is ConstraintKind.CALLS:
            rules = [schema for _, schema in schemas(constraint.source)]
            parts = sum(_PARTS_OF_RULE + 2 * _num_parts(schema) for schema in rules)
            return parts <= MAX_PLAIN_PARTS
    except (ValueError, RecursionError, _NotPlainError):
        pass  # What is wrong with it is said where it is translated.
    return False


class _NotPlainError(Exception):
    pass


def _num_parts(schema: Any) -> int:
    """Parts of a schema; raises _NotPlainError if there is anything in it that is not plain."""
    waiting, num_parts = [(schema, 1)], 0
    while waiting:
        node, depth = waiting.pop()
        num_parts += 1
        if depth > MAX_PLAIN_DEPTH or not isinstance(node, bool | dict):
            raise _NotPlainError
        if isinstance(node, dict):
            num_parts += _parts_of(node)
            waiting += ((child, depth + 1) for child in _children(node))
    return num_parts


def _parts_of(node: Mapping[str, Any]) -> int:
    """Parts of a schema that are no schemas."""
    names = node.keys() - _REMARKS - {"type"}
    has_values = bool(names & _VALUES)
    # A value beside other keywords would be held to each of them.
    if not names <= (_VALUES if has_values else _SHAPES) or len(names & _VALUES) > 1:
        raise _NotPlainError
    properties, required = node.get("properties", {}), node.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise _NotPlainError
    if not all(isinstance(name, str) and name in properties for name in required):
        raise _NotPlainError
    num_types = len(node["type"]) if isinstance(node.get("type"), list) else 0
    num_values = sum(_num_values(node[name]) for name in names & _VALUES)
    num_long = sum(len(name) // _LENGTH_OF_PART for name in [*properties, *required])
    return num_types + num_values + len(required) + num_long


def _children(node: Mapping[str, Any]) -> Iterator[Any]:
    yield from node.get("properties", {}).values()
    for name in ("items", "additionalProperties"):
        if name in node:
            yield node[name]


def _num_values(value: Any) -> int:
    """JSON values in a value and itself, long texts counted as several."""
    waiting, num_values = [(value, 1)], 0
    while waiting:
        node, depth = waiting.pop()
        num_values += 1
        if depth > MAX_PLAIN_DEPTH:
            raise _NotPlainError
        if isinstance(node, dict):
            num_values += len(node) + sum(len(name) // _LENGTH_OF_PART for name in node)
            waiting += ((child, depth + 1) for child in node.values())
        elif isinstance(node, list):
            waiting += ((child, depth + 1) for child in node)
        else:
            num_values += len(json.dumps(node)) // _LENGTH_OF_PART
    return num_values
