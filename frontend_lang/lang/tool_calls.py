"""Tool calls in a model's text, in the form of Hermes: `<tool_call>{"name": …, "arguments": …}</tool_call>`.

A call whose closing tag never came counts if its JSON is whole. What is no call stays text.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

OPENING, CLOSING = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call.

    Attributes:
        name: of the function; "" if the call could not be read.
        arguments: the JSON value that was given for them.
        error: why it could not be read, or None.
    """

    name: str
    arguments: Any
    error: str | None = None


def parse_tool_calls(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    """Split a text into what is said and what is called, both in order."""
    said: list[str] = []
    calls: list[ToolCall] = []
    while True:
        before, found, text = text.partition(OPENING)
        said.append(before)
        if not found:
            return "".join(said).strip(), tuple(calls)
        body, text = _body(text)
        calls += _read(body)


def _body(text: str) -> tuple[str, str]:
    """The JSON behind an opening tag, and what follows; a closing tag inside a string is content."""
    start = len(text) - len(text.lstrip())
    try:
        _, end = json.JSONDecoder(strict=False).raw_decode(text, start)
    except (ValueError, RecursionError):
        body, _, rest = text.partition(CLOSING)
        return body, rest
    rest = text[end:]
    return text[start:end], rest.lstrip().removeprefix(CLOSING)


def _read(body: str) -> list[ToolCall]:
    try:
        value = json.loads(body, strict=False)
    except (ValueError, RecursionError) as error:
        return [ToolCall("", None, f"the call is not valid JSON: {error}")]
    return [_call(item) for item in (value if isinstance(value, list) else [value])]


def _call(item: Any) -> ToolCall:
    if not isinstance(item, dict) or not isinstance(item.get("name"), str):
        return ToolCall("", None, "a call must be an object with a name")
    arguments = item.get("arguments", item.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return ToolCall(item["name"], None, "arguments must be a JSON object")
    return ToolCall(item["name"], {} if arguments is None else arguments)
