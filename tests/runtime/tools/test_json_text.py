"""A JSON text is found to be wrong at the first character that cannot stand where it does."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.tools.json_text import At, JsonText

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def num_taken(text: str) -> int:
    reader = JsonText()
    return next((i for i, c in enumerate(text) if not reader.push(c)), len(text))


def is_whole(text: str) -> bool:
    reader = JsonText()
    return all(map(reader.push, text)) and reader.at is At.END


@given(
    st.lists(VALUES, max_size=3) | st.dictionaries(st.text(), VALUES, max_size=3),
    st.booleans(),
    st.sampled_from([None, 0, 2]),
)
def test_every_object_and_list_is_read_to_its_end_and_no_further(
    value: Any, ascii_only: bool, indent: int | None
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    reader = JsonText()
    for character in text:
        assert reader.at is not At.END and reader.push(character)
    assert reader.at is At.END and not reader.push(" ") and not reader.push("}")


@given(st.text('{}[]",:\\ tru1-.eE0"{[', max_size=12))
def test_what_is_taken_whole_is_json(text: str) -> None:
    try:
        is_json = isinstance(json.loads(text), dict | list) and text == text.rstrip()
    except ValueError:
        is_json = False
    assert is_whole(text) == is_json


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("x", 0),
        ("1", 0),
        ('"a"', 0),
        ('{"a" 1', 5),
        ('{"a": 1,}', 8),
        ("[1,]", 3),
        ("[1 2", 3),
        ("[01]", 3),
        ("[1.]", 3),
        ("[tru]", 4),
        ("[nul ", 4),
        ("{a", 1),
        ('{"a": 1]', 7),
        ('["\\x', 3),
        ('["\\u12g', 6),
        ('{"cmd": "echo "hi""}', 15),
    ],
)
def test_the_first_wrong_character_is_not_taken(text: str, place: int) -> None:
    assert num_taken(text) == place


def test_control_characters_may_stand_in_strings() -> None:
    assert is_whole('{"a": "one\ntwo\tthree"}')
    assert num_taken('{"a"\x00') == 4
