"""Patterns of member names that match no name beside the listed ones.

The grammar engine holds a listed member to the patterns that match it, and takes further members that match a
pattern; where there can be none, it would still let a model begin one, and nothing could follow. Such a
pattern is written into the members that it matches, and is gone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from .byte_vocabulary import byte_tokenizer
from .walk import items


def fold_exhausted(node: dict[str, Any]) -> None:
    """Write the exhausted patterns of a schema into its members, in place."""
    patterns, listed = node.get("patternProperties"), node.get("properties", {})
    if not isinstance(patterns, dict) or not isinstance(listed, dict):
        return
    tokenizer = byte_tokenizer()
    required = [name for name in items(node.get("required")) if isinstance(name, str)]
    names = list(dict.fromkeys([*listed, *required]))
    for pattern, schema in list(patterns.items()):
        matched = _matched(pattern, names, tokenizer)
        if matched and not _has_others(pattern, matched, tokenizer):
            del patterns[pattern]
            for name in matched:
                listed = {**listed, name: _both(listed.get(name, True), schema)}
            node["properties"] = listed
    if not patterns:
        del node["patternProperties"]


def _both(left: Any, right: Any) -> Any:
    allows_all: tuple[Any, ...] = (True, {})
    if left in allows_all:
        return right
    return left if right in allows_all else {"allOf": [left, right]}


def _matched(pattern: str, names: Sequence[str], tokenizer: LLTokenizer) -> list[str]:
    first = _matcher({"type": "string", "pattern": pattern}, tokenizer)

    def matches(name: str) -> bool:
        matcher, text = first.deep_copy(), _written(name)
        return matcher.try_consume_tokens(list(text)) == len(text) and matcher.is_accepting()

    return [] if first.is_error() else [name for name in names if matches(name)]


def _has_others(pattern: str, names: Sequence[str], tokenizer: LLTokenizer) -> bool:
    """Whether a further member may follow all of `names`."""
    nothing = {"type": "null"}
    matcher = _matcher(
        {
            "type": "object",
            "properties": dict.fromkeys(names, nothing),
            "required": names,
            "patternProperties": {pattern: nothing},
            "additionalProperties": False,
        },
        tokenizer,
    )
    text = b"{" + b"".join(_written(name) + b":null," for name in names)
    if matcher.try_consume_tokens(list(text)) < len(text):
        return False
    matcher.compute_bitmask()
    return not matcher.is_error()


def _matcher(schema: dict[str, Any], tokenizer: LLTokenizer) -> LLMatcher:
    compact: Any = {"whitespace_flexible": False}
    grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=compact)
    return LLMatcher(tokenizer, grammar, log_level=0)


def _written(name: str) -> bytes:
    return json.dumps(name, ensure_ascii=False).encode()
