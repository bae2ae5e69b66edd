"""Grammars of outputs that call functions: what fits them, and which field a bad schema is blamed on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ramet.runtime.errors import GrammarError
from ramet.runtime.structured.byte_vocabulary import byte_tokenizer
from ramet.runtime.structured.calls import CallGrammar, CallRule, OtherText
from ramet.runtime.structured.checker import check
from ramet.runtime.structured.constraint import Constraint
from ramet.runtime.structured.grammar import Grammar
from ramet.runtime.text.tokenizer import Tokenizer

Compile = Callable[[Constraint], Grammar]

STORE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "sort": {"anyOf": [{"const": "rule"}, {"enum": ["hint", "plan"]}]},
        "rank": {"anyOf": [{"type": "integer", "minimum": 2, "maximum": 4}, {"type": "null"}]},
    },
    "required": ["sort", "rank"],
    "additionalProperties": False,
}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


def rule(name: str, schema: dict[str, Any], where: str = "here") -> CallRule:
    return CallRule(
        before=(f'{{"name": "{name}", "arguments": ',), schema=schema, after=("}",), where=where
    )


def constraint(
    *rules: CallRule,
    head: tuple[str | int, ...] = ("<call>", "\n"),
    is_single: bool = False,
    text: OtherText = "none",
    answer: dict[str, Any] | None = None,
) -> Constraint:
    return CallGrammar(
        head=head,
        separator=("\n</call>\n<call>\n",),
        tail=("\n</call>",),
        rules=rules or (rule("store", STORE), rule("now", NOTHING)),
        is_single=is_single,
        text=text,
        answer=answer,
    ).constraint("tools")


def fits(grammar: Grammar, tokenizer: Tokenizer, text: str, *, special: bool = True) -> bool:
    """Whether the text, as the tokenizer divides it, and then the end may be written."""
    matcher = grammar.matcher()
    end = tokenizer.eos_token_id
    assert end is not None
    ids = tokenizer.encode(text, False) if special else list(text.encode())
    try:
        for token_id in [*ids, end]:
            matcher.advance(token_id)
    except GrammarError:
        return False
    return matcher.is_terminated


STORED = '{"name": "store", "arguments": {"sort": "hint", "rank": 3}}'
NOW = '{"name": "now", "arguments": {}}'


def block(*calls: str) -> str:
    return "\n".join(f"<call>\n{call}\n</call>" for call in calls)


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        (block(STORED), True),
        (block(NOW), True),
        (block(STORED, NOW, STORED), True),
        (block(STORED.replace("3", "null")), True),
        (block(STORED.replace("3", "5")), False),
        (block(STORED.replace("3", "2.5")), False),
        (block(STORED.replace('"hint"', '"\\"hint\\""')), False),
        (block(STORED.replace('"hint"', '"fact"')), False),
        (block(STORED.replace("store", "now")), False),
        (block(NOW.replace("now", "never")), False),
        (block(NOW) + "\n", False),
        ("Well. " + block(NOW), False),
        ("", False),
    ],
)
def test_an_output_of_calls_has_nothing_else(
    grammar: Compile, tokenizer: Tokenizer, text: str, is_one: bool
) -> None:
    assert fits(grammar(constraint()), tokenizer, text) == is_one


def test_a_single_call_is_not_followed_by_another(grammar: Compile, tokenizer: Tokenizer) -> None:
    compiled = grammar(constraint(is_single=True))
    assert fits(compiled, tokenizer, block(STORED))
    assert not fits(compiled, tokenizer, block(STORED, NOW))


def test_text_is_free_until_a_call_begins(grammar: Compile, tokenizer: Tokenizer) -> None:
    compiled = grammar(constraint(text="before"))
    for free in (
        "",
        "Hello.\n",
        "a < b <cal",
        block(STORED),
        "Well, é 日本:\n" + block(STORED, NOW),
    ):
        assert fits(compiled, tokenizer, free), free
    for wrong in ("<call>", "Use <call> so.", "Well." + block(STORED.replace("3", "9"))):
        assert not fits(compiled, tokenizer, wrong), wrong


def test_text_stands_in_the_place_of_bare_calls(grammar: Compile, tokenizer: Tokenizer) -> None:
    compiled = grammar(constraint(text="instead", head=()))
    for right in ("", "Hello {there}", NOW + "\n</call>"):
        assert fits(compiled, tokenizer, right), right
    assert not fits(compiled, tokenizer, '{"a": 1}')


def test_an_answer_of_its_own_form_may_stand_for_calls(
    grammar: Compile, tokenizer: Tokenizer
) -> None:
    compiled = grammar(constraint(answer=STORE))
    assert fits(compiled, tokenizer, '{"sort": "plan", "rank": null}')
    assert fits(compiled, tokenizer, block(STORED, NOW))
    assert not fits(compiled, tokenizer, '{"sort": "plan", "rank": 1}')
    assert not fits(compiled, tokenizer, "Hello.")


@pytest.mark.parametrize("text", ["none", "before"])
def test_a_marker_may_be_a_token_of_the_model(
    grammar: Compile, tokenizer: Tokenizer, text: OtherText
) -> None:
    marker = tokenizer.special_id("<|pad|>")
    assert marker is not None
    demanded = constraint(head=(marker,), text=text)
    assert check(demanded, byte_tokenizer()).error == ""
    compiled = grammar(demanded)
    assert fits(compiled, tokenizer, f"<|pad|>{NOW}\n</call>")
    assert not fits(compiled, tokenizer, f"<call>{NOW}\n</call>") or text == "before"
    assert fits(compiled, tokenizer, f"Hm.<|pad|>{NOW}\n</call>") == (text == "before")
    assert not fits(compiled, tokenizer, "<|pad|>Hm.")


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "object", "required": "a"}, "required"),
        ({"type": "object", "properties": {"a": {"enum": []}}, "required": ["a"]}, "nsatisfiable"),
        ({"type": "object", "properties": {"a": {"pattern": "(", "type": "string"}}}, "regex"),
        ({"type": "object", "properties": {"a": {"uniqueItems": True}}}, "uniqueItems"),
        ({"type": "object", "properties": {"a": {"type": "colour"}}}, "colour"),
    ],
)
def test_a_bad_schema_is_blamed_on_its_field(schema: dict[str, Any], reason: str) -> None:
    rules = (rule("a", NOTHING, "tools[0].parameters"), rule("b", schema, "tools[1].parameters"))
    error = check(constraint(*rules), byte_tokenizer()).error
    assert error.startswith("tools[1].parameters: ") and reason in error


def test_many_large_tools_compile_within_the_allowance(
    grammar: Compile, tokenizer: Tokenizer
) -> None:
    wide = {f"p{i}": STORE for i in range(8)}
    schema = {
        "type": "object",
        "properties": wide,
        "required": [*wide],
        "additionalProperties": False,
    }
    demanded = constraint(*[rule(f"tool_{i}", schema) for i in range(32)], rule("now", NOTHING))
    assert check(demanded, byte_tokenizer()).error == ""
    assert fits(grammar(demanded), tokenizer, block(NOW, NOW))
