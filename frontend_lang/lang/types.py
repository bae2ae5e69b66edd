"""Python types as constraints on what the model writes, and the way back from its text to a value."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin

from .errors import UsageError

_INT = r"[-+]?[0-9]{1,18}"
_FLOAT = r"[-+]?[0-9]{1,15}(\.[0-9]{1,15})?"
# With room for a blank, for programs that make patterns of them.
REGEX_INT = _INT + r"[ \n]?"
REGEX_FLOAT = _FLOAT + r"[ \n]?"
REGEX_BOOL = r"(True|False)"
REGEX_STR = r'"[^"\\\n]*"'

# A model ends a number by going on with something else, hardly ever with its end token; where it could
# write nothing but digits it would write them all. So what may follow is allowed, in the tokens in which
# a model writes it, and its first character is a stop string: it is no part of the answer.
_AFTER_FLOAT = tuple(" \n\t,;:!?)]}\"'/%*<=")
_AFTER_INT = (".", *_AFTER_FLOAT)

_SCALARS: dict[Any, tuple[str, Callable[[str], Any]]] = {
    int: (_INT, int),
    float: (_FLOAT, float),
    bool: (REGEX_BOOL, {"True": True, "False": False}.__getitem__),
    str: (REGEX_STR, lambda text: _unquoted(text)),
}


def _unquoted(text: str) -> str:
    if len(text) < 2 or text[0] != '"' or text[-1] != '"':
        raise ValueError("its last quote is missing")
    return text[1:-1]


_DTYPE_NAMES = {"int": int, "float": float, "bool": bool, "str": str, "string": str}


def dtype_constraint(dtype: Any) -> dict[str, Any]:
    """What `gen(dtype=…)` means, as parameters; the type itself or its name.

    Raises:
        UsageError: it is none of int, float, bool, str.
    """
    kind = _DTYPE_NAMES.get(dtype, dtype) if isinstance(dtype, str) else dtype
    if kind not in _SCALARS:
        raise UsageError(f"dtype must be int, float, bool or str, not {dtype!r}.")
    return _scalar(kind)


def _scalar(kind: Any) -> dict[str, Any]:
    pattern = _SCALARS[kind][0]
    if kind not in (int, float):
        return {"regex": pattern}
    after = _AFTER_INT if kind is int else _AFTER_FLOAT
    return {"regex": rf"{pattern}([{re.escape(''.join(after))}][\s\S]{{0,40}})?", "stop": after}


def constraint_of(kind: Any) -> tuple[dict[str, Any], Callable[[str], Any]]:
    """What `gen(type=…)` means: the constraint as parameters, and from the text to the value.

    Scalars are written as in Python; a Literal of strings becomes a choice; everything else is JSON:
    pydantic models by their own schema and parser, other types (dataclasses, TypedDicts, lists, …) by
    msgspec's.

    Raises:
        UsageError: the type has no schema.
    """
    if kind in _SCALARS:
        return _scalar(kind), _SCALARS[kind][1]
    if get_origin(kind) is Literal:
        options = {str(option): option for option in get_args(kind)}
        if len(options) < len(get_args(kind)):
            raise UsageError(f"type={kind!r} has two values that are written alike.")
        return {"choice": tuple(options)}, options.__getitem__
    if hasattr(kind, "model_json_schema"):
        return {"json_schema": json.dumps(kind.model_json_schema())}, kind.model_validate_json
    import msgspec

    try:
        schema = msgspec.json.schema(kind)
        decoder = msgspec.json.Decoder(kind)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"type={kind!r} has no JSON schema: {error}") from error
    return {"json_schema": json.dumps(schema)}, decoder.decode


def schema_text(schema: Any) -> str:
    """A JSON schema as text: given as text, a dictionary, or a pydantic model.

    Raises:
        UsageError: it is none of these, or the text is no JSON.
    """
    if isinstance(schema, str):
        try:
            json.loads(schema)
        except ValueError as error:
            raise UsageError(f"json_schema is not valid JSON: {error}") from None
        return schema
    if isinstance(schema, dict):
        return json.dumps(schema)
    if hasattr(schema, "model_json_schema"):
        return json.dumps(schema.model_json_schema())
    raise UsageError(f"json_schema must be text, a dictionary or a model, not {schema!r}.")
