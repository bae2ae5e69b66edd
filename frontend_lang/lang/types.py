"""Python types as constraints on what the model writes, and the way back from its text to a value."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin

from .errors import UsageError

# A model that has written a number goes on with a blank far rather than with its end token, so numbers
# may be followed by one, which is a stop string: it ends the answer and is no part of it.
REGEX_INT = r"[-+]?[0-9]{1,18}[ \n]?"
REGEX_FLOAT = r"[-+]?[0-9]{1,15}(\.[0-9]{1,15})?[ \n]?"
REGEX_BOOL = r"(True|False)"
REGEX_STR = r'"[^"\\\n]*"'
BLANKS = (" ", "\n")

_SCALARS: dict[Any, tuple[str, Callable[[str], Any]]] = {
    int: (REGEX_INT, int),
    float: (REGEX_FLOAT, float),
    bool: (REGEX_BOOL, lambda text: text == "True"),
    str: (REGEX_STR, lambda text: text[1:-1]),
}


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
    regex = {"regex": _SCALARS[kind][0]}
    return {**regex, "stop": BLANKS} if kind in (int, float) else regex


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
