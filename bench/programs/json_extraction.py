"""JSON extraction: the arguments of every function that a request might mean, held to their schemas.

Data, from the Berkeley Function-Calling Leaderboard:

    bfcl/BFCL_v4_multiple.json                    {id, question, function}: a request, several functions
    bfcl/possible_answer/BFCL_v4_multiple.json    {id, ground_truth}: the right call

The first requests are the examples of every prompt. Strings, lists and numbers are bounded, so that an
answer that fits its schema cannot be longer than `MAX_TOKENS`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ramet

from .program import Count, DataError, Program, entry, read_lines

FILE = "BFCL_v4_multiple.json"
NUM_EXAMPLES = 3
MAX_TOKENS = 512
MAX_LENGTH, MAX_ITEMS, MAX_NUMBER = 48, 6, 10**9

_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}
_INSTRUCTION = "Read what is asked for, and write the arguments of each function as JSON.\n\n"


@dataclass(frozen=True, slots=True)
class Request:
    """A request and the functions that it might mean.

    Attributes:
        text: instruction, examples, functions and request.
        schemas: function's name -> schema of its arguments.
        right: function's name -> argument -> values that are right; "" if it may be left out.
    """

    text: str
    schemas: Mapping[str, dict[str, Any]]
    right: Mapping[str, Mapping[str, Sequence[Any]]]


@ramet.function
def json_extraction(s: ramet.State, request: Request) -> dict[str, str]:
    """The arguments of each function, as JSON."""
    s += request.text
    names = list(request.schemas)
    branches = s.fork(len(names))
    for name, branch in zip(names, branches, strict=True):
        branch += f"Arguments of {name}: "
        branch += ramet.gen("arguments", MAX_TOKENS, json_schema=request.schemas[name])
    return {name: b["arguments"] for name, b in zip(names, branches, strict=True)}


def json_schema(described: Mapping[str, Any]) -> dict[str, Any]:
    """The leaderboard's description of a type as a JSON schema, with bounds."""
    if "enum" in described:
        return {"enum": list(described["enum"])}
    kind = _TYPES.get(described.get("type", "any"), described.get("type", "string"))
    if kind == "object":
        properties = described.get("properties") or {}
        return {
            "type": "object",
            "properties": {name: json_schema(value) for name, value in properties.items()},
            "required": [name for name in described.get("required", ()) if name in properties],
            "additionalProperties": False,
        }
    if kind == "array":
        items = json_schema(described.get("items") or {})
        return {"type": "array", "items": items, "maxItems": MAX_ITEMS}
    if kind == "string":
        return {"type": "string", "maxLength": MAX_LENGTH}
    if kind in ("integer", "number"):
        return {"type": kind, "minimum": -MAX_NUMBER, "maximum": MAX_NUMBER}
    return {"type": kind}


def load(data: Path) -> list[Request]:
    """Every request but those that are examples; raises DataError."""
    path = data / "bfcl" / FILE
    answers_path = data / "bfcl" / "possible_answer" / FILE
    answers = {
        entry(record, "id", answers_path): entry(record, "ground_truth", answers_path)
        for record in read_lines(answers_path)
    }
    records = list(read_lines(path))
    if len(records) <= NUM_EXAMPLES:
        raise DataError(f"{path} has no more than the {NUM_EXAMPLES} requests used as examples.")
    right = [_right(entry(answers, entry(r, "id", path), answers_path)) for r in records]
    head = _INSTRUCTION + "".join(
        _shown(record, path) + _solved(calls)
        for record, calls in zip(records[:NUM_EXAMPLES], right, strict=False)
    )
    return [
        _request(head, record, calls, path)
        for record, calls in zip(records[NUM_EXAMPLES:], right[NUM_EXAMPLES:], strict=True)
    ]


def _right(calls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {name: arguments for call in calls for name, arguments in call.items()}


def _shown(record: Mapping[str, Any], path: Path) -> str:
    functions = "\n".join(json.dumps(f) for f in entry(record, "function", path))
    question = entry(record, "question", path)[0][-1]["content"]
    return f"Functions:\n{functions}\nRequest: {question}\n"


def _solved(calls: Mapping[str, Mapping[str, Sequence[Any]]]) -> str:
    lines = []
    for name, arguments in calls.items():
        values = {key: options[0] for key, options in arguments.items() if options[0] != ""}
        lines.append(f"Arguments of {name}: {json.dumps(values)}\n")
    return "".join(lines) + "\n"


def _request(head: str, record: Mapping[str, Any], right: Mapping[str, Any], path: Path) -> Request:
    schemas = {
        entry(f, "name", path): json_schema(entry(f, "parameters", path))
        for f in entry(record, "function", path)
    }
    return Request(head + _shown(record, path), schemas, right)


def size(request: Request, count: Count) -> int:
    """Tokens of the prompt and of the longest answer."""
    return count(request.text) + MAX_TOKENS + 32


def arguments(request: Request, count: Count, history: str) -> dict[str, Any]:
    """Of `json_extraction`."""
    return {"request": request}


def fits(text: str, schema: dict[str, Any]) -> bool:
    """Whether the text is JSON that fits the schema."""
    import jsonschema  # type: ignore[import-untyped]

    try:
        jsonschema.validate(json.loads(text), schema)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def is_right(text: str, right: Mapping[str, Sequence[Any]]) -> bool:
    """Whether every argument is one of the right values, and none is missing that must be there."""
    try:
        given = json.loads(text)
    except ValueError:
        return False
    return given.keys() <= right.keys() and all(
        given[name] in options if name in given else "" in options
        for name, options in right.items()
    )


def judge(requests: Sequence[Request], states: Sequence[ramet.State]) -> dict[str, float]:
    """Answers, the share that is valid, and of the calls that were meant the share that is right."""
    valid, right = [], []
    for request, state in zip(requests, states, strict=True):
        for name, text in state.ret_value.items():
            valid.append(fits(text, request.schemas[name]))
            if name in request.right:
                right.append(is_right(text, request.right[name]))
    return {
        "answers": len(valid),
        "valid": sum(valid) / len(valid) if valid else 0.0,
        "right": sum(right) / len(right) if right else 0.0,
    }


PROGRAM = Program(
    name="json_extraction",
    function=json_extraction,
    load=load,
    size=size,
    arguments=arguments,
    judge=judge,
    num_sessions=24,
    concurrency=8,
)
