"""What is said and what is called, however the text of an output is cut into pieces."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.tools.form import HERMES, LLAMA3_JSON, MISTRAL_LIST, MISTRAL_NAMED, Form
from ramet.runtime.tools.parser import Argued, Called, Event, Said, ToolCallParser

NAMES = ("now", "add", "echo", "run", "f")
FORMS = {
    "hermes": HERMES,
    "llama3_json": LLAMA3_JSON,
    "mistral": MISTRAL_LIST,
    "mistral-named": MISTRAL_NAMED,
}
Calls = list[tuple[str, Any]]


def pieces(text: str, size: int) -> Iterator[str]:
    return (text[i : i + size] for i in range(0, len(text), size))


def read(form: Form, parts: Iterable[str], *, is_held: bool = False) -> list[Event]:
    parser = ToolCallParser(form, NAMES, is_held=is_held)
    events = [event for part in parts for event in parser.push(part)]
    return [*events, *parser.finish()]


def summed(events: Iterable[Event]) -> tuple[str, list[tuple[str, str]]]:
    """What was said, and the calls with the text of their arguments; the order of events is checked."""
    said = ""
    calls: list[tuple[str, str]] = []
    for event in events:
        match event:
            case Said(text):
                assert text
                said += text
            case Called(index, name):
                assert index == len(calls)
                calls.append((name, ""))
            case Argued(index, text):
                assert index == len(calls) - 1 and text
                calls[index] = (calls[index][0], calls[index][1] + text)
    return said, calls


def every_way(form: Form, text: str, *, is_held: bool = False) -> tuple[str, Calls]:
    """The outcome, which must be the same for pieces of every size; arguments as values."""
    whole = summed(read(form, [text], is_held=is_held))
    for size in range(1, 21):
        assert summed(read(form, pieces(text, size), is_held=is_held)) == whole
    return whole[0], [(name, json.loads(arguments)) for name, arguments in whole[1]]


def written(form: Form, calls: Calls, **options: Any) -> str:
    """Calls as a model of this form writes them."""
    parts = []
    for name, arguments in calls:
        before, after = form.around(name)
        parts.append(before + json.dumps(arguments, ensure_ascii=False, **options) + after)
    return form.head + form.separator.join(parts) + form.tail


SERIES: list[Calls] = [
    [("add", {"a": 42})],
    [("f", {"ok": True, "no": None, "list": [1, 2], "deep": {"k": {}}, "s": "}"})],
    [("now", {}), ("add", {"a": 1, "b": 2.5}), ("now", {}), ("echo", {"s": "x"})],
    [("run", {"cmd": "mkdir -p src/{lib,bin"}), ("run", {"cmd": 'echo "}}]" <tool_call>'})],
    [("echo", {"s": "naïve 日本 🧪 </tool_call> [TOOL_CALLS] ; \\ \n"})],
    [("f", {"name": "g", "arguments": {"name": "f"}, "parameters": {}})],
]


@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize("calls", SERIES)
@pytest.mark.parametrize("form", FORMS)
def test_calls_are_the_same_in_pieces_of_every_size(form: str, calls: Calls, is_held: bool) -> None:
    for indent in (None, 2):
        text = written(FORMS[form], calls, indent=indent)
        assert every_way(FORMS[form], text, is_held=is_held) == ("", calls)


@pytest.mark.parametrize("form", ["hermes", "mistral", "mistral-named"])
def test_text_before_calls_is_said_without_the_blanks_between(form: str) -> None:
    text = "  Let me see. <tool>\n\n" + written(FORMS[form], SERIES[2])
    assert every_way(FORMS[form], text) == ("  Let me see. <tool>", SERIES[2])


def test_text_between_and_behind_calls_is_said() -> None:
    one = written(HERMES, [("now", {})])
    assert every_way(HERMES, f"a\n{one}\nb {one} c ") == ("a\nb c ", [("now", {})] * 2)
    assert every_way(HERMES, f"\n{one}\n\n") == ("", [("now", {})])


PLAIN = [
    "",
    " ",
    "\n\n",
    "Hello there! ",
    "1 < 2 <tool <tool_ <tool_cal <TOOL_CALL> [TOOL [",
    "ends with <tool_ca",
    "Write <tool_call> to call.",
    "<tool_call>",
    "<tool_call> \n",
    "<tool_call></tool_call>",
    "<tool_call>nothing</tool_call>",
    "<tool_call>{}</tool_call>",
    "<tool_call>[]</tool_call>",
    "<tool_call>[1]</tool_call>",
    '<tool_call>["name", "f"]</tool_call>',
    '<tool_call>[{"name": "f"}, "f"]</tool_call>',
    '<tool_call>[[{"name": "f"}]]</tool_call>',
    '<tool_call>{"name": 7, "arguments": {}}</tool_call>',
    '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
    '<tool_call>{"name": "f", "arguments": "no object"}</tool_call>',
    '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"\\ud800\\"}\\ud800"}</tool_call>',
    '<tool_call>{"name": "f", "arguments": {"a": 1,}}</tool_call>',
    '<tool_call>{"name": "f", "arguments": {"a": tru}}</tool_call> and more',
    '<tool_call>{"name": "f", "arguments": {"cmd": "echo "hi""}}</tool_call>',
    '<tool_call>{"name": "f", "arguments": {"never": "ends',
    '<tool_call>{"name": "f", "arguments": {}',
    '<tool_call>\n{"name": "f"',
]


@pytest.mark.parametrize("text", PLAIN)
def test_what_is_no_call_is_said_to_the_last_character(text: str) -> None:
    assert every_way(HERMES, text) == (text, [])


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1}',
        '{"name": "unknown", "parameters": {}}',
        ' {"name": "f", "parameters": 3} ',
        '{"name": "f", "parameters": {}',
        'Say {"name": "f", "parameters": {}}',
        "<|python_tag|>print(1)",
        "<|python",
        "{not json",
    ],
)
def test_json_that_calls_nothing_is_said(text: str) -> None:
    assert every_way(LLAMA3_JSON, text) == (text, [])


@pytest.mark.parametrize(
    "text",
    [
        "[TOOL_CALLS]",
        "[TOOL_CALLS]f",
        "[TOOL_CALLS]f[ARGS]",
        "[TOOL_CALLS]unknown[ARGS]{}",
        "[TOOL_CALLS]f[ARGS]{1}",
        "[TOOL_CALLS]f g[ARGS]{}",
        "[TOOL_CALLS]no name at all, but words.\nAnd more {of them}",
        "[TOOL_CALLS] " + "x" * 300,
    ],
)
def test_a_name_without_arguments_is_said(text: str) -> None:
    assert every_way(MISTRAL_NAMED, text) == (text, [])


def test_a_call_that_comes_to_nothing_does_not_hide_the_next() -> None:
    good = written(HERMES, [("now", {})])
    assert every_way(HERMES, "<tool_call>\n" + good) == ("<tool_call>", [("now", {})])
    bad = '<tool_call>{"name": "f", "arguments": {,}}</tool_call>'
    assert every_way(HERMES, f"{bad}\n{good}") == (bad, [("now", {})])


VARIANTS: list[tuple[Form, str, Calls]] = [
    (HERMES, '<tool_call>{"name": "f", "arguments": {"a": 1}}', [("f", {"a": 1})]),
    (HERMES, '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', [("f", {"a": 1})]),
    (HERMES, '<tool_call>{"name": "f"}</tool_call>', [("f", {})]),
    (HERMES, '<tool_call>{"name": "f", "arguments": null}</tool_call>', [("f", {})]),
    (HERMES, '<tool_call>{"name": "f", "parameters": {"a": 1}}</tool_call>', [("f", {"a": 1})]),
    (
        HERMES,
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>',
        [("f", {"a": 1})],
    ),
    (
        HERMES,
        '<tool_call>{"name": "f", "arguments": {"a": "x\ny"}}</tool_call>',
        [("f", {"a": "x\ny"})],
    ),
    (HERMES, '<tool_call>[{"name": "f"}, {"name": "now"}]</tool_call>', [("f", {}), ("now", {})]),
    (
        HERMES,
        '<tool_call>{"name":"\\u0066","id":[{"name":"x"}],"arguments":{}}</tool_call>',
        [("f", {})],
    ),
    (LLAMA3_JSON, '\n{"name": "f", "parameters": {}}\n', [("f", {})]),
    (LLAMA3_JSON, '<|python_tag|>{"name": "f", "parameters": {}}', [("f", {})]),
    (LLAMA3_JSON, '{"type": "function", "name": "f", "parameters": {"a": 1}}', [("f", {"a": 1})]),
    (
        LLAMA3_JSON,
        '{"name": "f", "parameters": {}};{"name": "now", "parameters": {}}',
        [("f", {}), ("now", {})],
    ),
    (MISTRAL_LIST, '[TOOL_CALLS] [{"name": "f", "arguments": {}, "id": "123456789"}]', [("f", {})]),
    (MISTRAL_LIST, '[TOOL_CALLS]{"name": "f", "arguments": {}}', [("f", {})]),
    (MISTRAL_NAMED, "[TOOL_CALLS]f{}", [("f", {})]),
    (MISTRAL_NAMED, '[TOOL_CALLS]f[CALL_ID]abc[ARGS] {"a": 1}', [("f", {"a": 1})]),
    (MISTRAL_NAMED, '[TOOL_CALLS][{"name": "f", "arguments": {}}]', [("f", {})]),
]


@pytest.mark.parametrize(("form", "text", "calls"), VARIANTS)
def test_variants_that_models_write_are_calls(form: Form, text: str, calls: Calls) -> None:
    assert every_way(form, text) == ("", calls)


def test_arguments_are_passed_on_as_they_are_written() -> None:
    arguments = '{"b" : 1.50,\n "a": "\\u00e9\\/"}'
    text = f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'
    assert summed(read(HERMES, [text])) == ("", [("f", arguments)])


def test_held_calls_stream_their_name_and_then_their_arguments_piece_by_piece() -> None:
    parser = ToolCallParser(HERMES, NAMES, is_held=True)
    assert parser.push('<tool_call>\n{"name": "f", "argum') == []
    assert parser.push('ents": ') == []
    assert parser.push('{"a": "x') == [Called(0, "f"), Argued(0, '{"a": "x')]
    assert parser.is_inside
    assert parser.push('y"') == [Argued(0, 'y"')]
    assert parser.push('}}\n</tool_call>\n<tool_call>\n{"na') == [Argued(0, "}")]
    assert not parser.is_inside
    assert parser.push('me": "now", "arguments": {}}') == [Called(1, "now"), Argued(1, "{}")]


def test_free_calls_come_once_they_are_whole() -> None:
    parser = ToolCallParser(HERMES, NAMES)
    assert parser.push('Hm.\n<tool_call>{"name": "f", "arguments": {"a": 1}') == [Said("Hm.")]
    assert parser.push("}") == [Called(0, "f"), Argued(0, '{"a": 1}')]


def test_a_held_call_that_is_cut_off_keeps_what_it_has() -> None:
    text = written(HERMES, [("add", {"a": 1}), ("echo", {"s": "long"})])
    for form in (HERMES, MISTRAL_LIST):
        text = written(form, [("add", {"a": 1}), ("echo", {"s": "long"})])
        cut = text.index("long") + 2
        for parts in ([text[:cut]], pieces(text[:cut], 1)):
            said, calls = summed(read(form, parts, is_held=True))
            assert said == "" and calls == [("add", '{"a": 1}'), ("echo", '{"s": "lo')]


@pytest.mark.parametrize("form", FORMS)
def test_a_held_call_that_is_cut_off_before_its_arguments_is_not_said(form: str) -> None:
    text = written(FORMS[form], [("add", {"a": 1})])
    opening = "{" if FORMS[form].is_bare else FORMS[form].opening
    for size in range(text.index(opening) + len(opening), text.index('{"a"')):
        for parts in ([text[:size]], pieces(text[:size], 1)):
            assert read(FORMS[form], parts, is_held=True) == []


def test_what_may_only_be_calls_says_nothing_wherever_it_is_cut() -> None:
    text = written(HERMES, [("add", {"a": 1})])
    for size in range(len(text)):
        parser = ToolCallParser(HERMES, NAMES, is_held=True, is_only_calls=True)
        assert summed([*parser.push(text[:size]), *parser.finish()])[0] == ""


@pytest.mark.parametrize("member", ["name", "arguments"])
@pytest.mark.parametrize("value", ["[" * 5_000 + "]" * 5_000, "1" * 5_000])
def test_a_value_that_nobody_can_read_is_no_call(member: str, value: str) -> None:
    text = f'<tool_call>{{"name": "f", "{member}": {value}}}</tool_call>'
    assert summed(read(HERMES, [text])) == (text, [])


@given(
    st.lists(
        st.sampled_from(
            ["<tool_call>", "</tool_call>", '{"name": "f", "arguments": ', "{}", "}", '"', "\\",
             "[", "]", ",", " ", "\n", "a", ";", "[TOOL_CALLS]", "f[ARGS]", '{"a": 1}', "<", "é"]
        ),
        max_size=12,
    ),
    st.sampled_from(sorted(FORMS)),
    st.randoms(use_true_random=False),
)  # fmt: skip
def test_nothing_is_lost_and_no_cut_matters(parts: list[str], form: str, random: Any) -> None:
    text = "".join(parts)
    said, calls = summed(read(FORMS[form], [text]))
    cuts = sorted(random.randrange(len(text) + 1) for _ in range(4))
    bounds = [0, *cuts, len(text)]
    cut = [text[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]
    for other in (cut, pieces(text, 1), parts):
        assert summed(read(FORMS[form], other)) == (said, calls)
    assert calls or said == text
    assert all(isinstance(json.loads(arguments), dict) for _, arguments in calls)


def test_a_long_output_takes_time_in_proportion() -> None:
    parser = ToolCallParser(replace(HERMES), NAMES)
    text = '<tool_call>{"name": "f", "arguments": {"s": "' + "[{<tool_call>" * 20_000
    events = [event for part in pieces(text, 4) for event in parser.push(part)]
    assert events == [] and parser.finish() == [Said(text)]
