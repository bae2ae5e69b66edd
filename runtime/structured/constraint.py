"""What a request demands of its output's form. Plain data: nothing is compiled here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ..errors import GrammarError

MAX_SOURCE_LEN = 256 * 1024
"""Characters of a constraint, all choices together."""


class ConstraintKind(StrEnum):
    """Which language a constraint is written in."""

    REGEX = "regex"
    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    CHOICE = "choice"
    GRAMMAR = "grammar"
    CALLS = "calls"


@dataclass(frozen=True, slots=True)
class Constraint:
    """The whole output must match this. Equal constraints share one compiled grammar.

    Make one with the functions below, which say what each kind means, or with `CallGrammar.constraint`.

    Attributes:
        source: the pattern, the schema's JSON text, the grammar, or the JSON text of a `CallGrammar`; empty
            for the other kinds.
        choices: the texts to choose from; empty for the other kinds.
        param: the request's field that it came from, for errors; no part of its value.

    Raises:
        GrammarError: it is empty where it must not be, or too long.
    """

    kind: ConstraintKind
    source: str = ""
    choices: tuple[str, ...] = ()
    param: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        name = self.param or self.kind.value
        if self.kind is ConstraintKind.CHOICE and not all(self.choices or ("",)):
            raise GrammarError(
                f"{name} must list at least one text, and none that is empty.", param=self.param
            )
        if self.kind in (ConstraintKind.JSON_SCHEMA, ConstraintKind.GRAMMAR) and not self.source:
            raise GrammarError(f"{name} must not be empty.", param=self.param)
        if self.length > MAX_SOURCE_LEN:
            raise GrammarError(
                f"{name} has {self.length} characters; at most {MAX_SOURCE_LEN} are taken.",
                param=self.param,
            )

    @property
    def length(self) -> int:
        """Characters of it, all choices together."""
        return len(self.source) + sum(map(len, self.choices))

    @classmethod
    def regex(cls, pattern: str, *, param: str | None = None) -> Constraint:
        """The output matches a regular expression from its first character to its last.

        The syntax is that of Rust's `regex` crate: Unicode classes, no look-around and no
        back-references.
        """
        return cls(ConstraintKind.REGEX, pattern, param=param)

    @classmethod
    def json_schema(
        cls, schema: str | Mapping[str, Any], *, param: str | None = None
    ) -> Constraint:
        """The output is JSON that a schema allows; see schema.py for how it is read.

        Args:
            schema: the schema, or its JSON text.
        """
        if not isinstance(schema, str):
            try:
                schema = json.dumps(schema, ensure_ascii=False, allow_nan=False)
            except (TypeError, ValueError, RecursionError) as error:
                raise GrammarError(f"The schema is not JSON: {error}.", param=param) from None
        return cls(ConstraintKind.JSON_SCHEMA, schema, param=param)

    @classmethod
    def json_object(cls, *, param: str | None = None) -> Constraint:
        """The output is one JSON object, whatever is in it."""
        return cls(ConstraintKind.JSON_OBJECT, param=param)

    @classmethod
    def choice(cls, choices: Iterable[str], *, param: str | None = None) -> Constraint:
        """The output is one of these texts."""
        return cls(ConstraintKind.CHOICE, choices=tuple(choices), param=param)

    @classmethod
    def grammar(cls, grammar: str, *, param: str | None = None) -> Constraint:
        """The output is derived from a context-free grammar: GBNF (`root ::= ...`) or Lark's syntax."""
        return cls(ConstraintKind.GRAMMAR, grammar, param=param)
