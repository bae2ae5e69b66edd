"""From a constraint to the text that llguidance compiles. Pure, but slow for a hostile constraint."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher, LLParserLimits, grammar_from

from ..errors import GrammarError
from .calls import lark
from .constraint import Constraint, ConstraintKind
from .schema import prepare

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

WHITESPACE = r"( |\n[ \t]{0,16})?"
"""What may stand between two tokens of JSON: nothing, a space, or an indented new line.

Bounded, as a weak model left alone writes blanks to the end of its context.
"""

_JSON_OPTIONS: JsonCompileOptions = {
    "whitespace_pattern": WHITESPACE,
    "json_allow_general_unicode_escapes": True,
}


def limits() -> LLParserLimits:
    """What one grammar may cost: about 20 ms for a mask at worst, and tens of megabytes."""
    return LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_items_in_row=2_000,
        max_lexer_states=50_000,
        max_grammar_size=500_000,
        verbose_errors=False,
    )


def translate(constraint: Constraint, *, has_tokens: bool = True) -> str:
    """The constraint as a grammar of llguidance.

    Args:
        has_tokens: false for a vocabulary of bytes, which lacks the tokens that a constraint may name.

    Raises:
        GrammarError: it is malformed; not every fault shows before it is compiled.
    """
    match constraint.kind:
        case ConstraintKind.REGEX:
            return LLMatcher.grammar_from_regex(constraint.source)
        case ConstraintKind.CHOICE:
            return LLMatcher.grammar_from_regex("|".join(map(re.escape, constraint.choices)))
        case ConstraintKind.JSON_OBJECT:
            return _json_grammar({"type": "object"})
        case ConstraintKind.JSON_SCHEMA:
            return _json_grammar(prepare(constraint.source))
        case ConstraintKind.GRAMMAR:
            return _free_grammar(constraint.source)
        case ConstraintKind.CALLS:
            return _free_grammar(lark(constraint.source, _JSON_OPTIONS, has_tokens=has_tokens))


def explain(constraint: Constraint, error: str) -> str:
    """The engine's error as a sentence for whoever sent the constraint."""
    missing = re.search(r"Unimplemented keys: \[(.*)\]", error)
    if missing is not None:
        return f"The schema has keywords that are not supported: {missing[1]}."
    if "oneOf constraints are not supported" in error:
        return "oneOf is only supported where its alternatives plainly exclude each other."
    if "panic" in error:
        error = "the grammar engine cannot take it"
    if "NoExtension" in error:
        error = "no text can match it"
    if "SearchRegex" in error or "too many expressions" in error:
        error = "it is too complex"
    reason = " ".join(error.replace("<non-verbose/>", "").split())
    return f"The {_NAMES[constraint.kind]} cannot be used: {reason[:500]}"


_NAMES = {
    ConstraintKind.REGEX: "regular expression",
    ConstraintKind.CHOICE: "list of choices",
    ConstraintKind.JSON_OBJECT: "JSON mode",
    ConstraintKind.JSON_SCHEMA: "schema",
    ConstraintKind.GRAMMAR: "grammar",
    ConstraintKind.CALLS: "list of tools",
}


def _json_grammar(schema: dict[str, Any]) -> str:
    try:
        return LLMatcher.grammar_from_json_schema(
            json.dumps(schema, ensure_ascii=False), overrides=_JSON_OPTIONS
        )
    except ValueError as error:
        raise GrammarError(f"The schema cannot be used: {error}.") from None


def _free_grammar(text: str) -> str:
    try:
        return grammar_from("grammar", text)
    except ValueError as error:
        reason = " ".join(str(error).split())[:500]
        raise GrammarError(f"The grammar cannot be used: {reason}") from None
