"""The fields that hold an answer to a form, under the names of three dialects, as one constraint.

    OpenAI    response_format
    vLLM      structured_outputs, and guided_json and its siblings of older versions
    SGLang    regex, json_schema, ebnf

A request may use one of them. Knows fields and types; whether a schema or a pattern makes sense is found
out when it is compiled.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..errors import GrammarError, InvalidRequest
from ..structured.constraint import Constraint

if TYPE_CHECKING:
    from .protocol import GenerationRequest

_KINDS = ("json", "regex", "choice", "grammar", "json_object")
_ALIASES = {
    "regex": "regex",
    "json_schema": "json",
    "ebnf": "grammar",
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_json_object": "json_object",
}


def constraint_of(request: GenerationRequest) -> Constraint | None:
    """The request's constraint; None if it has none.

    Raises:
        InvalidRequest: a field is malformed, names something unknown, or contradicts another.
    """
    found = [*_response_format(request), *_structured_outputs(request), *_aliases(request)]
    if len(found) > 1:
        names = " and ".join(constraint.param or "" for constraint in found[:2])
        raise InvalidRequest(f"Only one of {names} may be given.", param=found[1].param)
    return found[0] if found else None


def _response_format(request: GenerationRequest) -> Iterator[Constraint]:
    value = request.response_format
    if value is None:
        return
    match value.get("type"):
        case "text":
            return
        case "json_object":
            yield Constraint.json_object(param="response_format")
        case "json_schema":
            param = "response_format.json_schema"
            wrapper = value.get("json_schema")
            if not isinstance(wrapper, dict):
                raise InvalidRequest(f"{param} must be an object with a schema.", param=param)
            if wrapper.get("schema") is None:
                raise InvalidRequest(f"{param}.schema is missing.", param=f"{param}.schema")
            yield _made("json", wrapper["schema"], f"{param}.schema")
        case other:
            raise InvalidRequest(
                f"response_format.type must be text, json_object or json_schema, not {other!r}.",
                param="response_format.type",
            )


def _structured_outputs(request: GenerationRequest) -> Iterator[Constraint]:
    value = request.structured_outputs
    if value is None:
        return
    for name, content in value.items():
        param = f"structured_outputs.{name}"
        if content is None or (content is False and name not in _KINDS):
            continue
        if name not in _KINDS:
            raise InvalidRequest(f"{param} is not supported by this server.", param=param)
        yield from _wanted(name, content, param)


def _aliases(request: GenerationRequest) -> Iterator[Constraint]:
    for name, kind in _ALIASES.items():
        content = getattr(request, name)
        if content is not None:
            yield from _wanted(kind, content, name)


def _wanted(kind: str, content: Any, param: str) -> Iterator[Constraint]:
    if kind != "json_object":
        yield _made(kind, content, param)
    elif not isinstance(content, bool):
        raise InvalidRequest(f"{param} must be true or false.", param=param)
    elif content:
        yield Constraint.json_object(param=param)


def _made(kind: str, content: Any, param: str) -> Constraint:
    if kind == "choice":
        if not isinstance(content, list) or not all(isinstance(text, str) for text in content):
            raise InvalidRequest(f"{param} must be a list of texts.", param=param)
        return Constraint.choice(content, param=param)
    if kind == "json":
        if isinstance(content, str | dict):
            return Constraint.json_schema(content, param=param)
        raise GrammarError(f"{param} must be a JSON Schema: an object.", param=param)
    if not isinstance(content, str):
        raise InvalidRequest(f"{param} must be a text.", param=param)
    if kind == "regex":
        return Constraint.regex(content, param=param)
    return Constraint.grammar(content, param=param)
