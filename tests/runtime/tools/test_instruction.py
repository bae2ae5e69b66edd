"""A model without tools in its template is told of them by a system message."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from ramet.runtime.tools.instruction import instruction, with_instruction

TOOLS = [
    {"type": "function", "function": {"name": "heat", "description": "Wärme", "parameters": {}}}
]
USER = {"role": "user", "content": "hi"}


def test_the_instruction_lists_the_definitions_and_shows_the_form_of_a_call() -> None:
    text = instruction(TOOLS)
    assert json.dumps(TOOLS[0], ensure_ascii=False) in text
    assert '<tool_call>\n{"name": <function name>, "arguments":' in text


def test_a_conversation_without_a_system_message_gets_one() -> None:
    assert with_instruction([USER], TOOLS) == [
        {"role": "system", "content": instruction(TOOLS)},
        USER,
    ]


@pytest.mark.parametrize("role", ["system", "developer"])
@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("Be brief.", "Be brief.\n\n{}"),
        ("", "{}"),
        (None, "{}"),
        (
            [{"type": "text", "text": "Be brief."}],
            [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "\n\n{}"}],
        ),
    ],
)
def test_a_system_message_goes_on_with_the_instruction(role: str, content: Any, told: Any) -> None:
    messages = [{"role": role, "content": content, "name": "n"}, USER]
    before = copy.deepcopy(messages)
    first, *rest = with_instruction(messages, TOOLS)
    text = instruction(TOOLS)
    if isinstance(told, str):
        expected: Any = told.format(text)
    else:
        expected = [{**part, "text": part["text"].format(text)} for part in told]
    assert first == {"role": role, "content": expected, "name": "n"} and rest == [USER]
    assert messages == before
