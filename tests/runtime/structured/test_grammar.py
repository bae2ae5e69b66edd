"""Grammars by what they accept, by what a model without sense writes under them, and by their masks."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ramet.runtime.errors import GrammarError
from ramet.runtime.structured.constraint import Constraint
from ramet.runtime.structured.grammar import Grammar, Matcher, Vocabulary, allowed
from ramet.runtime.text.tokenizer import Tokenizer

Compile = Callable[[Constraint], Grammar]

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "id": {"type": "integer"},
                "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["id"],
        }
    },
}
SITE = {
    "type": "object",
    "properties": {
        "code": {"type": "string", "pattern": "^[a-f0-9]{4}$"},
        "parts": {"$ref": "#/definitions/parts"},
    },
    "required": ["code", "parts"],
    "additionalProperties": False,
    "definitions": {
        "parts": {"type": "array", "items": {"$ref": "#/definitions/part"}},
        "part": {
            "type": "object",
            "properties": {
                "path": {"type": "string", "pattern": r"^((<[\w.]+>)|([\w.]+))$"},
                "parts": {"$ref": "#/definitions/parts"},
            },
            "required": ["path"],
            "additionalProperties": False,
        },
    },
}
LETTER = {
    "type": "object",
    "properties": {
        "head": {
            "type": "object",
            "properties": {
                "tag": {"type": "string", "pattern": "^[A-Z]+$"},
                "mark": {"type": "string", "pattern": r"\d"},
                "text": {"type": "string", "minLength": 1, "maxLength": 20_000},
            },
            "required": ["tag", "mark", "text"],
            "additionalProperties": False,
        }
    },
    "required": ["head"],
    "additionalProperties": False,
}
CASES: list[tuple[Any, list[str], list[str]]] = [
    (
        SITE,
        [
            '{"code": "a0f1", "parts": []}',
            '{"code": "a0f1", "parts": [{"path": "<x.y>", "parts": [{"path": "z"}]}]}',
        ],
        [
            '{"code": "a0f", "parts": []}',
            '{"code": "a0f1", "parts": [{"path": "<x"}]}',
            '{"code": "a0f1", "parts": [{"parts": []}]}',
        ],
    ),
    (
        LETTER,
        ['{"head": {"tag": "AB", "mark": "x1 ", "text": "."}}'],
        [
            '{"head": {"tag": "Ab", "mark": "1", "text": "."}}',
            '{"head": {"tag": "AB", "mark": "none", "text": "."}}',
            '{"head": {"tag": "AB", "mark": "1", "text": ""}}',
        ],
    ),
    (
        {
            "type": "object",
            "properties": {"who": {"type": "string"}, "mark": {"type": "string"}},
            "required": ["who", "mark"],
            "patternProperties": {"^mark$": {"enum": ["C", "D"]}},
            "additionalProperties": False,
        },
        ['{"who": "Al", "mark": "D"}'],
        ['{"who": "Al", "mark": "E"}', '{"who": "Al"}', '{"who": "Al", "mark": "D", "y": 1}'],
    ),
    (
        {"type": "string", "pattern": "^b+$", "minLength": 3, "maxLength": 4},
        ['"bbb"', '"bbbb"'],
        ['"bb"', '"bbbbb"', '"bbc"'],
    ),
    (
        PERSON,
        ['{"name":"x"}', '{"name": "x", "age": 3}', '{\n  "name": "x",\n  "age": 3\n}'],
        ['{"age": 3}', '{"age": 3, "name": "x"}', '{"name": "x", "b": 1}', '{"name": "x"} '],
    ),
    ({"type": "object"}, ["{}", '{"a": {"b": [1]}}'], ["[]", "{} {}", ""]),
    ({"type": ["integer", "null"]}, ["0", "-12", "null"], ["1.5", "01", "nil"]),
    ({"enum": ["é", 3, None, {"k": [1]}]}, ['"é"', "3", "null", '{"k": [1]}'], ['"e"', "4", "{}"]),
    ({"type": "string", "pattern": "^[a-c]+$", "maxLength": 2}, ['"ab"'], ['"abc"', '"d"', '""']),
    ({"type": "string", "pattern": "b"}, ['"abc"', '"b"'], ['"ac"']),
    (
        {"type": "string"},
        [r'"\n\u00e9\\"', '"é漢😂"', r'"\ud83d\ude00"'],
        ['"\n"', '"a\tb"', r'"\x"', r'"\u0g"', '"a"b"'],
    ),
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 5}, ["0.1", "5", "5.0"], ["0", "5.01"]),
    ({"type": "array", "items": {"type": "boolean"}, "minItems": 1}, ["[true]"], ["[]", "[1]"]),
    ({"prefixItems": [{"const": 1}, {"const": "b"}], "type": "array"}, ['[1, "b"]'], ["[2]"]),
    (TREE, ['{"id": 1, "kids": [{"id": 2, "kids": []}]}'], ['{"id": 1, "kids": [{}]}']),
    ({"anyOf": [{"const": "a"}, {"type": "integer"}]}, ['"a"', "7"], ['"b"', "null"]),
    (
        {
            "oneOf": [
                {"properties": {"t": {"const": "a"}}, "required": ["t"], "type": "object"},
                {"properties": {"t": {"const": "b"}}, "required": ["t"], "type": "object"},
            ]
        },
        ['{"t": "a"}', '{"t": "b"}'],
        ['{"t": "c"}', "{}"],
    ),
    ({"type": "string", "format": "date"}, ['"2024-02-29"'], ['"2024-13-01"', '"today"']),
    (
        {"type": "object", "additionalProperties": {"type": "integer"}},
        ['{"x": 1, "y": 2}'],
        ['{"x": "1"}'],
    ),
    (
        {"allOf": [{"properties": {"a": {"type": "integer"}}}, {"required": ["a"]}]},
        ['{"a": 1}'],
        ['{"a": "x"}', "{}"],
    ),
]


def accepts(matcher: Matcher, token_ids: list[int], end_id: int) -> bool:
    try:
        for token_id in [*token_ids, end_id]:
            if not legal(matcher)[token_id]:
                return False
            matcher.advance(token_id)
    except GrammarError:
        return False
    return True


def legal(matcher: Matcher) -> NDArray[np.bool_]:
    flags: NDArray[np.bool_] = allowed(matcher.mask[None], len(matcher.mask) * 32)[0]
    return flags


def ramble(matcher: Matcher, end_ids: tuple[int, ...], seed: int, size: int) -> list[int] | None:
    """What a random model writes; None if it does not come to an end. It likes to end."""
    chooser = random.Random(seed)
    token_ids: list[int] = []
    while not matcher.is_terminated:
        choices = np.flatnonzero(legal(matcher)).tolist()
        if end_ids[0] in choices or len(token_ids) == size:
            break
        # Quotes and brackets close what is open; without a liking for them nothing would end.
        closing = [i for i in choices if i in CLOSING]
        token_id = chooser.choice(closing if closing and chooser.random() < 0.5 else choices)
        matcher.advance(token_id)
        token_ids.append(token_id)
    if matcher.is_terminated or end_ids[0] in np.flatnonzero(legal(matcher)):
        return token_ids
    return None


CLOSING: set[int] = set()


@pytest.fixture(autouse=True, scope="module")
def _closing_tokens(tokenizer: Tokenizer) -> None:
    CLOSING.update(i for text in '"]}' for i in tokenizer.encode(text, False))


@pytest.mark.parametrize(("schema", "good", "bad"), CASES)
def test_a_schema_accepts_what_it_allows_and_nothing_else(
    grammar: Compile,
    tokenizer: Tokenizer,
    vocabulary: Vocabulary,
    schema: Any,
    good: list[str],
    bad: list[str],
) -> None:
    compiled, end = grammar(Constraint.json_schema(schema)), vocabulary.eos_token_ids[0]
    for text in good:
        assert accepts(compiled.matcher(), tokenizer.encode(text, False), end), text
        assert accepts(compiled.matcher(), list(map(_byte_id(tokenizer), text.encode())), end), text
    for text in bad:
        assert not accepts(compiled.matcher(), tokenizer.encode(text, False), end), text


def _byte_id(tokenizer: Tokenizer) -> Callable[[int], int]:
    ids = {tokenizer.token_bytes(i): i for i in range(256)}
    return lambda byte: ids[bytes([byte])]


def test_recursion_goes_as_deep_as_an_output_wants(
    grammar: Compile, tokenizer: Tokenizer, vocabulary: Vocabulary
) -> None:
    inner = '{"path": "leaf"}'
    for _ in range(40):
        inner = f'{{"path": "p", "parts": [{inner}]}}'
    text = f'{{"code": "0000", "parts": [{inner}]}}'
    matcher = grammar(Constraint.json_schema(SITE)).matcher()
    assert accepts(matcher, tokenizer.encode(text, False), vocabulary.eos_token_ids[0])


def test_large_bounds_cost_little(grammar: Compile) -> None:
    started = time.process_time()
    grammar(Constraint.json_schema(LETTER))
    assert time.process_time() - started < 2.0


@pytest.mark.parametrize(
    ("constraint", "pattern"),
    [
        (Constraint.regex(r"[0-9]{3}-[a-f]{2}"), r"[0-9]{3}-[a-f]{2}"),
        (Constraint.regex("(😂|漢|ß){3}"), "(😂|漢|ß){3}"),
        (Constraint.regex("^ab|c$"), "ab|c"),
        (Constraint.regex(""), ""),
        (Constraint.regex("(|b)"), "(|b)"),
        (Constraint.choice(["a|b", "c d\n", "*", "ab", "a"]), r"a\|b|c d\n|\*|ab|a"),
        (Constraint.grammar('root ::= "yes" | "no" " way"'), "yes|no way"),
        (Constraint.grammar('start: "x" /[0-9]/ "y"'), "x[0-9]y"),
    ],
    ids=lambda value: str(getattr(value, "kind", "")),
)
def test_random_output_matches_the_whole_pattern(
    grammar: Compile,
    tokenizer: Tokenizer,
    vocabulary: Vocabulary,
    constraint: Constraint,
    pattern: str,
) -> None:
    compiled = grammar(constraint)
    for seed in range(20):
        token_ids = ramble(compiled.matcher(), vocabulary.eos_token_ids, seed, 50)
        assert token_ids is not None
        text = tokenizer.decode(token_ids, False, continues=True)
        assert re.fullmatch(pattern, text), text


KEYS = st.sampled_from(["a", "bb", "é", 'q"', "true"])
SCALARS = st.sampled_from(
    [
        {"type": "string", "maxLength": 4},
        {"type": "integer", "minimum": -20, "maximum": 300},
        {"type": "number", "exclusiveMinimum": 0.25, "maximum": 2},
        {"type": "boolean"},
        {"type": "null"},
        {"enum": ["x", 1, None]},
        {"const": "true"},
        {"type": "string", "pattern": "^[ab]{1,3}$"},
    ]
)


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    arrays = st.builds(
        lambda items, low, more: {
            "type": "array",
            "items": items,
            "minItems": low,
            "maxItems": low + more,
        },
        inner,
        st.integers(0, 2),
        st.integers(0, 2),
    )
    objects = st.dictionaries(KEYS, inner, max_size=3).flatmap(
        lambda properties: st.sets(st.sampled_from(sorted(properties) or ["a"])).map(
            lambda required: {
                "type": "object",
                "properties": properties,
                "required": [name for name in sorted(required) if name in properties],
                "additionalProperties": False,
            }
        )
    )
    return arrays | objects | st.lists(inner, min_size=1, max_size=3).map(lambda s: {"anyOf": s})


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(schema=st.recursive(SCALARS, _containers, max_leaves=6), seed=st.integers(0, 2**32))
def test_random_output_under_a_random_schema_validates(
    grammar: Compile, tokenizer: Tokenizer, vocabulary: Vocabulary, schema: Any, seed: int
) -> None:
    matcher = grammar(Constraint.json_schema(schema)).matcher()
    token_ids = ramble(matcher, vocabulary.eos_token_ids, seed, 300)
    if token_ids is not None:
        value = json.loads(tokenizer.decode(token_ids, False, continues=True))
        jsonschema.validate(value, schema)


def test_an_end_token_is_legal_where_the_output_may_end_and_nowhere_else(
    grammar: Compile, tokenizer: Tokenizer, vocabulary: Vocabulary
) -> None:
    matcher, end = grammar(Constraint.regex("a{1,2}")).matcher(), vocabulary.eos_token_ids[0]
    (a,) = tokenizer.encode("a", False)
    assert not legal(matcher)[end] and not matcher.is_terminated
    matcher.advance(a)
    assert legal(matcher)[end] and not matcher.is_terminated
    matcher.advance(a)
    assert np.flatnonzero(legal(matcher)).tolist() == [end] and matcher.is_terminated


def test_an_end_token_terminates(grammar: Compile, vocabulary: Vocabulary) -> None:
    matcher = grammar(Constraint.regex("a*")).matcher()
    matcher.advance(vocabulary.eos_token_ids[0])
    assert matcher.is_terminated


def test_markers_and_ids_without_a_token_are_never_legal(
    grammar: Compile, tokenizer: Tokenizer, vocabulary: Vocabulary
) -> None:
    mask = legal(grammar(Constraint.regex(r"[\s\S]*")).matcher())
    pad = max(tokenizer.special_ids)
    assert mask[:256].sum() > 150
    assert not mask[pad] and not mask[tokenizer.vocab_size :].any()


def test_a_token_that_does_not_fit_is_an_error(grammar: Compile, tokenizer: Tokenizer) -> None:
    (b,) = tokenizer.encode("b", False)
    with pytest.raises(GrammarError):
        grammar(Constraint.regex("a")).matcher().advance(b)


def test_blanks_between_json_tokens_are_bounded(grammar: Compile, tokenizer: Tokenizer) -> None:
    blanks = {i for text in " \n\t" for i in tokenizer.encode(text, False)}
    matcher = grammar(Constraint.json_object()).matcher()
    matcher.advance(tokenizer.encode("{", False)[0])
    num_blanks = 0
    while num_blanks < 40:
        options = [i for i in np.flatnonzero(legal(matcher)).tolist() if i in blanks]
        if not options:
            break
        matcher.advance(options[-1])
        num_blanks += 1
    assert 0 < num_blanks < 20


def test_what_is_forced_has_no_alternative_and_nothing_else_is_taken(
    grammar: Compile, tokenizer: Tokenizer
) -> None:
    matcher = grammar(Constraint.regex("x(yz|yw)q")).matcher()
    assert matcher.take_forced(0) == []
    assert tokenizer.decode(matcher.take_forced(10), False) == "xy"
    assert legal(matcher).sum() == 2
    matcher.advance(tokenizer.encode("w", False)[0])
    assert tokenizer.decode(matcher.take_forced(10), False) == "q" and matcher.is_terminated


def test_a_forced_text_is_divided_into_tokens_as_the_tokenizer_would(
    grammar: Compile, tokenizer: Tokenizer
) -> None:
    matcher = grammar(Constraint.regex("true!")).matcher()
    assert matcher.take_forced(10) == tokenizer.encode("true!", False)


def test_forced_text_whose_last_token_may_still_grow_is_not_taken_to_its_end(
    grammar: Compile, tokenizer: Tokenizer
) -> None:
    matcher = grammar(Constraint.regex("xa(b|c)")).matcher()
    assert tokenizer.decode(matcher.take_forced(10), False) == "x"
    assert legal(matcher).sum() == 2  # a, ab


def test_matchers_of_one_grammar_do_not_mix(grammar: Compile, tokenizer: Tokenizer) -> None:
    compiled = grammar(Constraint.choice(["abc", "xyz"]))
    first, second = compiled.matcher(), compiled.matcher()
    first.advance(tokenizer.encode("x", False)[0])
    assert tokenizer.decode(first.take_forced(9), False) == "yz"
    second.advance(tokenizer.encode("ab", False)[0])
    assert tokenizer.decode(second.take_forced(9), False) == "c"


@pytest.mark.parametrize(
    ("constraint", "words"),
    [
        (Constraint.json_schema({"properties": {"a": {"not": {}}}}), '"not"'),
        (Constraint.json_schema({"if": {}, "then": {}, "else": {}}), '"if"'),
        (Constraint.json_schema({"propertyNames": {"pattern": "a"}}), '"propertyNames"'),
        (Constraint.json_schema({"type": "wizard"}), "wizard"),
        (Constraint.json_schema({"$ref": "#/nowhere"}), "/nowhere"),
        (Constraint.json_schema({"$ref": "https://example.org/x"}), "example.org"),
        (Constraint.json_schema({"enum": []}), "Unsatisfiable"),
        (Constraint.json_schema({"type": "string", "minLength": 3, "maxLength": 2}), "minLength"),
        (Constraint.json_schema({"oneOf": [{"type": "string"}, {"minLength": 1}]}), "oneOf"),
        (Constraint.regex("("), "unclosed group"),
        (Constraint.regex("a(?=b)"), "look-around"),
        (Constraint.grammar("root ::= missing"), "missing"),
        (Constraint.grammar("start: unknown"), "unknown"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    grammar: Compile, constraint: Constraint, words: str
) -> None:
    with pytest.raises(GrammarError) as caught:
        grammar(constraint)
    assert words in str(caught.value)


def test_masks_spread_out_bit_by_bit() -> None:
    words = np.array([[1, -(2**31)], [0, 6]], dtype=np.int32)
    flags = allowed(words, 64)
    assert np.flatnonzero(flags[0]).tolist() == [0, 63]
    assert np.flatnonzero(flags[1]).tolist() == [33, 34]
    assert allowed(words, 40).shape == (2, 40)
