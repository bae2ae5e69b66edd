"""Python functions that a model may call: their description, and calling them with what it wrote.

Arguments are checked against the function's type hints before it is called.
"""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import UsageError


@dataclass(frozen=True, slots=True)
class Tool:
    """A function with its description.

    Attributes:
        schema: JSON schema of its arguments.
        types: what each argument is converted to.
    """

    name: str
    description: str
    schema: dict[str, Any]
    function: Callable[..., Any]
    types: Mapping[str, Any]

    def definition(self) -> dict[str, Any]:
        """As OpenAI's API describes a function."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": self.schema,
        }
        return {"type": "function", "function": function}

    async def call(self, arguments: Any) -> Any:
        """The function's result; a plain function runs on a thread, so that others go on.

        Raises:
            UsageError: the arguments are not what its signature asks for.
            Exception: whatever the function raises.
        """
        given = self._checked(arguments)
        if inspect.iscoroutinefunction(self.function):
            return await self.function(**given)
        return await asyncio.to_thread(self.function, **given)

    def _checked(self, arguments: Any) -> dict[str, Any]:
        import msgspec

        if not isinstance(arguments, dict):
            raise UsageError("arguments must be a JSON object")
        unknown = sorted(arguments.keys() - self.types.keys())
        missing = [name for name in self.schema["required"] if name not in arguments]
        if unknown or missing:
            words = [f"unknown: {', '.join(unknown)}"] if unknown else []
            words += [f"missing: {', '.join(missing)}"] if missing else []
            raise UsageError(f"wrong arguments ({'; '.join(words)})")
        try:
            return {n: msgspec.convert(v, self.types[n]) for n, v in arguments.items()}
        except msgspec.ValidationError as error:
            raise UsageError(f"wrong arguments: {error}") from None


def as_tool(function: Callable[..., Any] | Tool) -> Tool:
    """Describe a function: name, docstring, and a schema from its type hints.

    The docstring's first paragraph describes the function; lines `name: text` in a section `Args:`
    describe its arguments.

    Raises:
        UsageError: an argument has no type hint, a type has no schema, or it is *args or **kwargs.
    """
    if isinstance(function, Tool):
        return function
    import msgspec

    name = getattr(function, "__name__", type(function).__name__)
    text = inspect.getdoc(function) or ""
    notes = _argument_notes(text)
    hints = typing.get_type_hints(function)
    properties: dict[str, Any] = {}
    required = []
    definitions: dict[str, Any] = {}
    for argument in inspect.signature(function).parameters.values():
        if argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD):
            raise UsageError(f"The tool {name} takes *{argument.name}; name its arguments.")
        if argument.name not in hints:
            raise UsageError(f"The argument {argument.name} of the tool {name} has no type hint.")
        try:
            (schema,), parts = msgspec.json.schema_components(
                [hints[argument.name]], ref_template="#/$defs/{name}"
            )
        except (TypeError, RuntimeError) as error:
            raise UsageError(f"The argument {argument.name} of the tool {name}: {error}") from error
        definitions |= parts
        if argument.name in notes:
            schema = {**schema, "description": notes[argument.name]}
        if argument.default is argument.empty:
            required.append(argument.name)
        properties[argument.name] = schema
    schema = {"type": "object", "properties": properties, "required": required}
    if definitions:
        schema["$defs"] = definitions
    types = {name: hints[name] for name in properties}
    return Tool(name, text.split("\n\n")[0].replace("\n", " "), schema, function, types)


def as_tools(functions: Sequence[Callable[..., Any] | Tool]) -> tuple[Tool, ...]:
    """Describe several functions.

    Raises:
        UsageError: as `as_tool`; or two have one name, or there is none.
    """
    tools = tuple(as_tool(function) for function in functions)
    names = [tool.name for tool in tools]
    if not tools or len(set(names)) < len(names):
        raise UsageError("tools must be functions with different names, at least one.")
    return tools


def describe(tools: Sequence[Tool]) -> str:
    """The instruction that tells a model of the tools, in the form that Hermes models know."""
    from ramet.runtime.tools.instruction import instruction

    return instruction([tool.definition() for tool in tools])


def _argument_notes(text: str) -> dict[str, str]:
    """From `Args:` of a docstring: name -> description, continued lines joined."""
    notes: dict[str, str] = {}
    _, found, section = text.partition("Args:\n")
    current = None
    for line in section.splitlines() if found else []:
        if not line.startswith(" "):
            break
        name, colon, note = line.strip().partition(":")
        indented_more = len(line) - len(line.lstrip()) > 4
        if colon and name.split(" ")[0].isidentifier() and not indented_more:
            current = name.split(" ")[0]
            notes[current] = note.strip()
        elif current is not None:
            notes[current] += " " + line.strip()
    return notes
