"""Whatever a grammar of calls allows, the parser reads as valid calls: the two agree on every form."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from llguidance import LLMatcher

from ramet.runtime.server.body import convert
from ramet.runtime.server.protocol import ChatRequest
from ramet.runtime.server.tools import tool_use
from ramet.runtime.structured.byte_vocabulary import byte_tokenizer
from ramet.runtime.structured.translate import translate
from ramet.runtime.tools.form import HERMES, LLAMA3_JSON, MISTRAL_LIST, MISTRAL_NAMED, Form
from ramet.runtime.tools.parser import Argued, Called, Event, Said, ToolCallParser

SCHEMAS: dict[str, Any] = {
    "echo": {
        "type": "object",
        "properties": {"text": {"type": "string", "maxLength": 9}, "more": {"type": "boolean"}},
        "required": ["text"],
        "additionalProperties": False,
    },
    "nested": {
        "type": "object",
        "properties": {
            "name": {"enum": ["echo", None]},
            "arguments": {
                "type": "array",
                "maxItems": 2,
                "items": {"type": "object", "maxProperties": 0},
            },
        },
        "required": ["name"],
        "additionalProperties": False,
    },
    "now": {"type": "object", "properties": {}, "additionalProperties": False},
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": schema, "strict": True}}
    for name, schema in SCHEMAS.items()
]
FORMS = {
    "hermes": HERMES,
    "llama3_json": LLAMA3_JSON,
    "mistral": MISTRAL_LIST,
    "mistral-named": MISTRAL_NAMED,
}
MAX_BYTES = 400


def written(first: LLMatcher, opening: str, chooser: random.Random) -> str | None:
    """What a random writer who likes calls makes of a grammar; None if it comes to no end."""
    matcher, text = first.deep_copy(), b""
    for place in range(MAX_BYTES):
        if matcher.is_stopped() or (matcher.is_accepting() and chooser.random() < 0.15):
            return text.decode(errors="replace")
        if chooser.random() < (0.1 if place else 0.5):
            taken = matcher.try_consume_tokens(list(opening.encode()))
            text += opening.encode()[:taken]
            continue
        mask = matcher.compute_bitmask()
        assert not matcher.is_error(), matcher.get_error()
        legal = [byte for byte in range(128) if mask[byte // 8] >> byte % 8 & 1]
        closing = [byte for byte in legal if chr(byte) in '"}]<']
        byte = chooser.choice(closing if closing and chooser.random() < 0.5 else legal)
        matcher.consume_token(byte)
        text += bytes([byte])
    return None


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("form", FORMS)
def test_what_the_grammar_allows_is_read_as_valid_calls(form: str, choice: str) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS, "tool_choice": choice}
    use = tool_use(convert(body, ChatRequest), FORMS[form], None)
    assert use is not None and use.constraint is not None and use.is_held
    first = LLMatcher(byte_tokenizer(), translate(use.constraint), log_level=0)
    num_calls = num_texts = 0
    for seed in range(100):
        chooser = random.Random(seed)
        text = written(first, "{" if use.form.is_bare else use.form.opening, chooser)
        if text is None:
            continue
        num_texts += 1
        calls = called(use.form, text, chooser)
        num_calls += len(calls)
        for name, arguments in calls:
            jsonschema.validate(json.loads(arguments), SCHEMAS[name])
        assert calls or choice == "auto"
    assert num_texts > 25 and num_calls > 15


def called(form: Form, text: str, chooser: random.Random) -> list[tuple[str, str]]:
    """The calls in a text that comes in random pieces; nothing is said once one has come."""
    parser = ToolCallParser(form, SCHEMAS, is_held=True)
    calls: list[tuple[str, str]] = []
    events: list[Event] = []
    while text:
        size = chooser.randint(1, 9)
        events += parser.push(text[:size])
        text = text[size:]
    for event in [*events, *parser.finish()]:
        match event:
            case Said():
                assert not calls
            case Called(_, name):
                calls.append((name, ""))
            case Argued(index, piece):
                calls[index] = (calls[index][0], calls[index][1] + piece)
    return calls
