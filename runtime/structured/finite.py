"""Schemas that no finite text can match: those that require themselves, over whatever detours.

A schema is endless if every value that it describes contains another one of an endless schema. Such a
schema has no value at all, so it means `false`; the grammar engine would let a model begin one and
never end. Found as the complement of a least fixpoint: what can be built from what can be built already.
Keywords that are not looked at count as if they could be satisfied.
"""

from __future__ import annotations

from typing import Any

from .walk import items, nodes, replace_parts, resolve

_CONTAINERS = {"object", "array"}


def close_endless(root: dict[str, Any]) -> bool:
    """Make every endless schema below `root` false, in place; returns whether `root` itself has an end."""
    parts = list(nodes(root))
    ended: set[int] = set()
    num_before = -1
    while len(ended) > num_before:
        num_before = len(ended)
        for node in reversed(parts):  # Parts come after the whole, so one pass does nearly all.
            if id(node) not in ended and _ends(root, node, ended):
                ended.add(id(node))
    for node in parts:
        replace_parts(node, lambda part: part if id(part) in ended else False)
    return id(root) in ended


def _ends(root: dict[str, Any], node: dict[str, Any], ended: set[int]) -> bool:
    """Whether a value of the schema can be built from values of schemas that have an end."""

    def ends(part: Any) -> bool:
        return not isinstance(part, dict) or id(part) in ended

    if "$ref" in node and not ends(resolve(root, node["$ref"])):
        return False
    if not all(map(ends, items(node.get("allOf")))):
        return False
    if any(
        alternatives and not any(map(ends, alternatives))
        for alternatives in (items(node.get("anyOf")), items(node.get("oneOf")))
    ):
        return False
    if "const" in node or "enum" in node:
        return True
    kinds = node.get("type")
    allowed = {kinds} if isinstance(kinds, str) else {str(kind) for kind in items(kinds)}
    if not allowed or allowed - _CONTAINERS:
        return True
    return any(all(map(ends, _demanded(node)[kind])) for kind in _CONTAINERS if kind in allowed)


def _demanded(node: dict[str, Any]) -> dict[str, list[Any]]:
    """Schemas of the members and items that every object, and every array, must have."""
    properties = node.get("properties")
    listed = properties if isinstance(properties, dict) else {}
    required = [name for name in items(node.get("required")) if isinstance(name, str)]
    members = [listed[name] for name in required if name in listed]
    size = node.get("minItems", 0)
    size = size if isinstance(size, int) else 0
    tuple_form = isinstance(node.get("items"), list)
    first = items(node.get("items")) if tuple_form else items(node.get("prefixItems"))
    rest = node.get("additionalItems") if tuple_form else node.get("items")
    return {"object": members, "array": [*first[:size], *([rest] if size > len(first) else [])]}
