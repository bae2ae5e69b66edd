"""Definitions of tools, in the form of OpenAI's API: which are taken, and what models are told of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ..errors import InvalidRequest

MAX_TOOLS = 128

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class FunctionDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A function that may be called; `parameters` is a JSON schema, absent for one without any.

    `strict` holds the arguments to the schema even where nothing obliges the model to call.
    """

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A tool; only functions are understood."""

    type: str = "function"
    function: FunctionDefinition | None = None


def read_tools(tools: Sequence[Mapping[str, Any]]) -> list[ToolDefinition]:
    """Tools that are plain data; what is not understood of them is dropped.

    Raises:
        InvalidRequest: a member is missing, or of the wrong type.
    """
    try:
        return msgspec.convert(list(tools), list[ToolDefinition])
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"tools: {error}.", param="tools") from None


def definitions(tools: Sequence[ToolDefinition]) -> list[dict[str, Any]]:
    """The tools as models are told of them.

    Raises:
        InvalidRequest: one is malformed, or has the name of another; names the field.
    """
    return [
        {
            "type": "function",
            "function": {
                "name": function.name,
                **({} if function.description is None else {"description": function.description}),
                "parameters": function.parameters or {"type": "object", "properties": {}},
            },
        }
        for function in functions_of(tools)
    ]


def functions_of(tools: Sequence[ToolDefinition]) -> list[FunctionDefinition]:
    """The functions that are the tools; raises as `definitions`."""
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest(
            f"tools has {len(tools)} tools; at most {MAX_TOOLS} are taken.", param="tools"
        )
    functions: dict[str, FunctionDefinition] = {}
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        if tool.type != "function":
            raise InvalidRequest(
                f"{where}.type must be function; {tool.type[:100]!r} is not supported by this server.",
                param=f"{where}.type",
            )
        function = tool.function
        if function is None:
            raise InvalidRequest(f"{where}.function is missing.", param=f"{where}.function")
        if _NAME.fullmatch(function.name) is None:
            raise InvalidRequest(
                f"{where}.function.name must be 1 to 64 letters, digits, _ and -, not "
                f"{function.name[:100]!r}.",
                param=f"{where}.function.name",
            )
        if function.name in functions:
            raise InvalidRequest(
                f"{where}.function.name: another tool is called {function.name!r} too.",
                param=f"{where}.function.name",
            )
        _check_parameters(function.parameters or {}, f"{where}.function.parameters")
        functions[function.name] = function
    return list(functions.values())


def _check_parameters(schema: dict[str, Any], where: str) -> None:
    """Refuse what is no schema of an object; the rest is found out when it is compiled."""
    if schema.get("type", "object") != "object":
        raise InvalidRequest(
            f"{where}.type must be object, not {schema['type']!r}.", param=f"{where}.type"
        )
    properties, required = schema.get("properties"), schema.get("required")
    if properties is not None and not isinstance(properties, dict):
        raise InvalidRequest(f"{where}.properties must be an object.", param=f"{where}.properties")
    if required is not None and not (
        isinstance(required, list) and all(isinstance(name, str) for name in required)
    ):
        raise InvalidRequest(
            f"{where}.required must be a list of texts.", param=f"{where}.required"
        )
