"""Ways through a JSON schema: its parts, and what its references point to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

_ONE = ("items", "additionalItems", "additionalProperties", "unevaluatedProperties", "contains")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")


def resolve(root: dict[str, Any], reference: Any) -> Any:
    """What a reference inside the document points to; None for any other, which the engine judges."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    target: Any = root
    for part in reference[1:].split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict):
            target = target.get(key)
        elif isinstance(target, list) and key.isdecimal() and int(key) < len(target):
            target = target[int(key)]
        else:
            return None
    return target


def nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """Every schema in a schema; values of `const`, `enum`, `default` and the like are none."""
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, dict):
            continue
        yield node
        waiting += [node[name] for name in _ONE if name in node]
        waiting += [part for name in _LISTS for part in items(node.get(name))]
        for name in _MAPS:
            children = node.get(name)
            waiting += children.values() if isinstance(children, dict) else ()


def replace_parts(node: dict[str, Any], change: Callable[[dict[str, Any]], Any]) -> None:
    """Put `change(part)` in the place of every schema directly in a schema."""

    def changed(part: Any) -> Any:
        return change(part) if isinstance(part, dict) else part

    for name in _ONE:
        if name in node:
            node[name] = changed(node[name])
    for name in _LISTS:
        if isinstance(node.get(name), list):
            node[name] = [changed(part) for part in node[name]]
    for name in _MAPS:
        if isinstance(node.get(name), dict):
            node[name] = {key: changed(part) for key, part in node[name].items()}


def items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
