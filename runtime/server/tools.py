"""The fields `tools`, `tool_choice` and `parallel_tool_calls` of a chat request, and what they mean.

    none        the model is told of the tools, and its text is its text
    auto        it may call; what it writes is read, and held to the tools only if one of them is strict, if
                there may be no more than one call, or if the request has a response format
    required    the whole output is calls, with arguments that their schemas allow
    a function  the whole output is one call of that function

Knows what the calls are constrained to; nothing of templates, and nothing of answers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidRequest
from ..structured.calls import CallGrammar, CallRule, OtherText
from ..structured.constraint import Constraint, ConstraintKind
from ..tools.definitions import FunctionDefinition, functions_of
from ..tools.form import Form
from .protocol import ChatRequest

_MEMBERS = (
    *("properties", "patternProperties", "additionalProperties", "propertyNames"),
    *("allOf", "anyOf", "oneOf", "$ref", "const", "enum"),
)
_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """How a request's answers may call.

    Attributes:
        form: how the model writes calls.
        names: the functions that may be called; none if the answers are only text.
        constraint: what the whole output must match, or None.
        is_held: whether that leaves no call that is not valid.
        is_only_calls: whether it leaves nothing but calls.
    """

    form: Form
    names: frozenset[str]
    constraint: Constraint | None
    is_held: bool = False
    is_only_calls: bool = False


def tool_use(body: ChatRequest, form: Form, constraint: Constraint | None) -> ToolUse | None:
    """What the request's fields mean; None if it has no tools.

    Args:
        form: of the served model.
        constraint: what the request demands of the answer's form otherwise.

    Raises:
        InvalidRequest: a field is malformed, or contradicts another; names it.
    """
    functions = functions_of(body.tools or [])
    mode, chosen = _choice(body.tool_choice, [function.name for function in functions])
    if not functions:
        return None
    names = frozenset(chosen)
    if mode == "none":
        return ToolUse(form=form, names=frozenset(), constraint=constraint)
    demands = mode != "auto"
    if demands and constraint is not None:
        raise InvalidRequest(
            f"{constraint.param} cannot be combined with a tool_choice that demands a call.",
            param=constraint.param,
        )
    is_single = body.parallel_tool_calls is False or mode == "function"
    is_strict = any(function.strict for function in functions if function.name in names)
    if not (demands or is_single or is_strict or constraint is not None):
        return ToolUse(form=form, names=names, constraint=None)
    holds_all = demands or constraint is not None
    rules = tuple(
        _rule(form, index, function, is_schema=holds_all or bool(function.strict))
        for index, function in enumerate(functions)
        if function.name in names
    )
    text: OtherText = "none" if holds_all else "instead" if form.is_bare else "before"
    grammar = CallGrammar(
        head=_head(form),
        separator=tuple(form.pieces(form.separator)),
        tail=tuple(form.pieces(form.tail)),
        rules=rules,
        is_single=is_single,
        text=text,
        answer=_answer(constraint),
    )
    # An answer that is JSON begins as bare calls do, so these are told apart once they are whole.
    is_held = not (form.is_bare and constraint is not None)
    return ToolUse(
        form=form,
        names=names,
        constraint=grammar.constraint("tools"),
        is_held=is_held,
        is_only_calls=demands,
    )


def _choice(choice: str | dict[str, Any] | None, names: list[str]) -> tuple[str, list[str]]:
    """The mode, of `none`, `auto`, `required` and `function`, and the functions that it leaves."""
    match choice:
        case None:
            return "auto", names
        case "none" | "auto":
            return choice, names
        case "required":
            if not names:
                raise InvalidRequest("tool_choice needs tools to choose from.", param="tool_choice")
            return choice, names
        case {"type": "function", "function": {"name": str(name)}}:
            return "function", [_known(name, names, "tool_choice.function.name")]
        case {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "auto" | "required" as mode, "tools": tools},
        }:
            return str(mode), _allowed(tools, names)
    raise InvalidRequest(
        "tool_choice must be none, auto, required, or an object that names a function or lists "
        "allowed_tools.",
        param="tool_choice",
    )


def _allowed(tools: Any, names: list[str]) -> list[str]:
    where = "tool_choice.allowed_tools.tools"
    allowed = []
    for tool in tools if isinstance(tools, list) else []:
        match tool:
            case {"type": "function", "function": {"name": str(name)}}:
                allowed.append(_known(name, names, where))
            case _:
                raise InvalidRequest(f"{where} must list functions by name.", param=where)
    if not allowed:
        raise InvalidRequest(f"{where} must list at least one function.", param=where)
    return allowed


def _known(name: str, names: list[str], where: str) -> str:
    if name not in names:
        raise InvalidRequest(f"{where}: tools has no function {name[:100]!r}.", param=where)
    return name


def _head(form: Form) -> tuple[str | int, ...]:
    """What stands before calls; the opening, if there is one, is a piece of its own."""
    if not form.head.startswith(form.opening):
        return tuple(form.pieces(form.head))
    return (*form.pieces(form.opening), *form.pieces(form.head.removeprefix(form.opening)))


def _rule(form: Form, index: int, function: FunctionDefinition, *, is_schema: bool) -> CallRule:
    before, after = form.around(function.name)
    return CallRule(
        before=tuple(form.pieces(before)),
        schema=_arguments(function.parameters or {}) if is_schema else {"type": "object"},
        after=tuple(form.pieces(after)),
        where=f"tools[{index}].function.parameters",
    )


def _arguments(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a function's arguments: an object, and an empty one if nothing is listed."""
    if not any(schema.get(name) not in (None, {}) for name in _MEMBERS):
        return {**schema, **_NO_ARGUMENTS}
    return {"type": "object", **schema}


def _answer(constraint: Constraint | None) -> dict[str, Any] | None:
    """The schema of an answer that is no call."""
    if constraint is None:
        return None
    if constraint.kind is ConstraintKind.JSON_OBJECT:
        return {"type": "object"}
    try:
        if constraint.kind is ConstraintKind.JSON_SCHEMA:
            schema = json.loads(constraint.source)
            if isinstance(schema, dict):
                return schema
    except (ValueError, RecursionError):
        pass
    raise InvalidRequest(
        f"{constraint.param} cannot be combined with tools unless it is a JSON schema.",
        param=constraint.param,
    )
