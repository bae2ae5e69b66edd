"""Calls of functions as a grammar: texts around JSON that schemas allow, alone or after free text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from ..errors import GrammarError
from .constraint import Constraint, ConstraintKind
from .schema import prepare

Pieces = tuple[str | int, ...]
"""Text, in which a number is the token with this id."""

OtherText = Literal["none", "before", "instead"]

_ANSWER = "response_format"
_ONE_LINE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""Arguments are written as chat templates write those of past calls, so that their KV is found again."""


class CallRule(msgspec.Struct, frozen=True, kw_only=True):
    """One function that may be called.

    Attributes:
        before, after: what stands around the arguments.
        schema: of the arguments.
        where: the request's field that has the schema.
    """

    before: Pieces
    schema: dict[str, Any]
    after: Pieces
    where: str


class CallGrammar(msgspec.Struct, frozen=True, kw_only=True):
    """What an output with calls looks like: `head`, calls with `separator` between them, `tail`.

    Attributes:
        rules: at least one.
        is_single: there is one call, not several.
        text: whether there may be other text: "none"; "before" the first call, which then begins wherever
            the first piece of `head` is written; or "instead" of calls, if it does not begin with a brace.
            Special tokens are no text.
        answer: a schema that the output may match instead of holding calls.
    """

    head: Pieces
    separator: Pieces
    tail: Pieces
    rules: tuple[CallRule, ...]
    is_single: bool = False
    text: OtherText = "none"
    answer: dict[str, Any] | None = None

    def constraint(self, param: str) -> Constraint:
        """As a constraint that comes from the field `param`.

        Raises:
            GrammarError: it is too long.
        """
        source = msgspec.json.encode(self).decode()
        return Constraint(ConstraintKind.CALLS, source, param=param)


def schemas(source: str) -> list[tuple[str, dict[str, Any]]]:
    """All schemas of a constraint, each with the field that has it."""
    grammar = _decoded(source)
    answer = [] if grammar.answer is None else [(_ANSWER, grammar.answer)]
    return [*((rule.where, rule.schema) for rule in grammar.rules), *answer]


def lark(source: str, options: Mapping[str, Any], *, has_tokens: bool) -> str:
    """A constraint's grammar in Lark's syntax.

    Args:
        options: of the engine, for JSON.
        has_tokens: false puts a text into the place of each token, for a vocabulary without them.

    Raises:
        GrammarError: a schema is malformed; the message names its field.
    """
    grammar = _decoded(source)

    def written(pieces: Pieces) -> str:
        return " ".join(_literal(piece, has_tokens) for piece in pieces)

    more = "" if grammar.is_single else f"({written(grammar.separator)} call)*"
    rest = f"call {more} {written(grammar.tail)}"
    outputs = [f"{written(grammar.head)} {rest}"]
    lines = []
    if grammar.text == "before":
        trigger, head = grammar.head[0], grammar.head[1:]
        outputs = ["TEXT", f"lead {written(head)} {rest}"]
        lines.append("TEXT: /(.|\\n)*/")
        if isinstance(trigger, int) and has_tokens:
            lines.append(f"lead: TEXT {written((trigger,))}")
        else:
            lines.append(f"lead[lazy]: TEXT {written((trigger,))}")
    elif grammar.text == "instead":
        outputs.append("TEXT?")
        lines.append("TEXT: /[ \\t\\r\\n]*[^{ \\t\\r\\n](.|\\n)*/")
    if grammar.answer is not None:
        outputs.append("answer")
        lines.append(f"answer: {_json(grammar.answer, options, _ANSWER)}")
    calls = []
    others = {name: value for name, value in options.items() if name != "whitespace_pattern"}
    options = {**others, **_ONE_LINE}
    for index, rule in enumerate(grammar.rules):
        calls.append(f"{written(rule.before)} arguments_{index} {written(rule.after)}")
        lines.append(f"arguments_{index}: {_json(rule.schema, options, rule.where)}")
    return "\n".join([f"start: {' | '.join(outputs)}", f"call: {' | '.join(calls)}", *lines])


def _decoded(source: str) -> CallGrammar:
    return msgspec.json.decode(source, type=CallGrammar)


def _literal(piece: str | int, has_tokens: bool) -> str:
    if isinstance(piece, int):
        return f"<[{piece}]>" if has_tokens else f'"token {piece}"'
    return json.dumps(piece)


def _json(schema: dict[str, Any], options: Mapping[str, Any], where: str) -> str:
    try:
        prepared = prepare(json.dumps(schema))
    except GrammarError as error:
        raise GrammarError(f"{where}: {error}") from None
    return f"%json {json.dumps({**prepared, 'x-guidance': dict(options)})}"
