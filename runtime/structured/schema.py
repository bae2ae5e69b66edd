"""JSON Schema as the grammar engine takes it: checked where the engine is lax, closed where schemas forget.

Read as JSON Schema says (2020-12, and draft 7's tuples and definitions), except that

- an object that lists `properties` or `patternProperties` and says nothing of `additionalProperties` takes
  no others, since a model that may add members does so until it is cut off. Objects that are combined
  from several schemas (`allOf`, or `$ref` or `anyOf` beside `properties`) stay open, as none of the parts
  knows all members;
- members come in the schema's order;
- integers are written without a fraction, though 5.0 is one;
- a schema that requires itself without end, so that no text is ever complete, is `false`;
- `format` asserts if it is one of the standard's, and is a remark otherwise.

Keywords that cannot be honoured are refused by name, by the engine or here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ..errors import GrammarError
from .finite import close_endless
from .patterns import fold_exhausted
from .walk import items, nodes, resolve

MAX_DEPTH = 100
"""Nesting of a schema, in JSON values."""

FORMATS = frozenset(
    "date-time time date duration email idn-email hostname idn-hostname ipv4 ipv6 uuid uri "
    "uri-reference iri iri-reference uri-template json-pointer relative-json-pointer regex".split()
)
"""The formats of the standard; all others are remarks."""

_COMBINING = ("allOf", "anyOf", "oneOf", "$ref")
_MEMBERS = ("properties", "patternProperties")


def prepare(text: str) -> dict[str, Any]:
    """The schema in `text`, ready for the engine.

    Raises:
        GrammarError: it is no JSON object, is nested too deeply, has no end, or sets the engine's own
            options.
    """
    try:
        schema = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise GrammarError(f"The schema is nested deeper than {MAX_DEPTH} levels.") from None
    except ValueError as error:
        raise GrammarError(f"The schema is not JSON: {error}.") from None
    if not isinstance(schema, dict):
        raise GrammarError(f"A schema must be a JSON object, not {_kind(schema)}.")
    if _depth(schema, MAX_DEPTH) > MAX_DEPTH:
        raise GrammarError(f"The schema is nested deeper than {MAX_DEPTH} levels.")
    for node in list(nodes(schema)):
        _check(node)
        fold_exhausted(node)
    combined = {id(part) for part in _combined(schema)}
    for node in list(nodes(schema)):
        if id(node) not in combined:
            _close(node)
    if not close_endless(schema):
        raise GrammarError(
            "The schema cannot be used: no text can match it, as it requires itself without end."
        )
    return schema


def _check(node: dict[str, Any]) -> None:
    if "x-guidance" in node:
        raise GrammarError("The schema has a keyword that is not supported: x-guidance.")
    if "format" in node and node["format"] not in FORMATS:
        del node["format"]


def _close(node: dict[str, Any]) -> None:
    """Let an object have no members beside those it lists, and those it requires."""
    if "additionalProperties" in node or not any(node.get(name) for name in _MEMBERS):
        return
    required, properties = node.get("required", []), node.get("properties", {})
    if not isinstance(required, list) or not isinstance(properties, dict):
        return  # The engine says what is wrong with it.
    unlisted = [name for name in required if isinstance(name, str) and name not in properties]
    if unlisted and node.get("patternProperties"):
        return
    if unlisted:
        node["properties"] = {**properties, **{name: {} for name in unlisted}}
    node["additionalProperties"] = False


def _combined(root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Schemas that describe only a part of an object, with those that they refer to."""
    waiting: list[Any] = []
    for node in nodes(root):
        parts = [part for name in _COMBINING[:3] for part in items(node.get(name))]
        has_members = any(node.get(name) for name in _MEMBERS)
        num_groups = sum(name in node for name in _COMBINING)
        num_conjuncts = len(items(node.get("allOf"))) or 1
        if num_groups and (has_members or num_groups > 1 or num_conjuncts > 1):
            waiting += [node, *parts]
    seen: set[int] = set()
    while waiting:
        node = waiting.pop()
        if not isinstance(node, dict) or id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        waiting.append(resolve(root, node.get("$ref")))
        waiting += [part for name in _COMBINING[:3] for part in items(node.get(name))]


def _depth(value: Any, limit: int) -> int:
    children = (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    )
    if limit < 0 or not children:
        return 1
    return 1 + max(_depth(child, limit - 1) for child in children)


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "a boolean", str: "a string", list: "an array"}
    return names.get(type(value), "a number")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number in JSON")
