"""Structured output of the real model, sampled hot: whatever it writes fits, and ends."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import jsonschema  # type: ignore[import-untyped]
import pytest

pytestmark = pytest.mark.real_model

NUM_SAMPLES = 50
ROWS: dict[str, Any] = {
    "type": "array",
    "maxItems": 4,
    "items": {
        "anyOf": [
            {"type": "number", "exclusiveMinimum": 0, "maximum": 2.5},
            {"type": "integer", "minimum": -9, "maximum": -7},
        ]
    },
}
CARD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "suit": {"$ref": "#/$defs/suit"},
        "code": {"type": "string", "pattern": "^[a-z]+[0-9]$", "minLength": 3, "maxLength": 5},
        "mark": {"type": "string"},
    },
    "required": ["suit", "code", "mark"],
    "patternProperties": {"^mark$": {"enum": ["C", "D"]}},
    "additionalProperties": False,
    "$defs": {"suit": {"enum": ["hearts", "cœur", 7, None, {"of": ["any"]}]}},
}
FOLDER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "pattern": r"^((<[\w.]{1,8}>)|([\w.]{1,8}))$"},
        "inside": {"type": "array", "maxItems": 1, "items": {"$ref": "#"}},
    },
    "required": ["path"],
    "additionalProperties": False,
}
NOTE: dict[str, Any] = {"type": "string", "maxLength": 40}


def post(server: Any, path: str, **body: Any) -> Any:
    response = httpx.post(f"{server.url}/v1/{path}", json={"model": "smollm2", **body}, timeout=240)
    assert response.status_code == 200, response.text
    return response.json()


def samples(server: Any, **form: Any) -> list[str]:
    """The whole answers among many; some may not come to an end, most do."""
    body = {"prompt": "An example:\n", "n": NUM_SAMPLES, "temperature": 1.5, "seed": 11, **form}
    choices = post(server, "completions", max_tokens=120, **body)["choices"]
    texts = [choice["text"] for choice in choices if choice["finish_reason"] == "stop"]
    assert len(texts) > NUM_SAMPLES // 4
    return texts


@pytest.mark.parametrize(
    "schema", [ROWS, CARD, FOLDER, NOTE], ids=["rows", "card", "folder", "note"]
)
def test_sampled_json_is_valid(server: Any, schema: dict[str, Any]) -> None:
    validator = jsonschema.Draft202012Validator(schema)
    for text in samples(server, json_schema=schema):
        validator.validate(json.loads(text))


@pytest.mark.parametrize(
    "pattern", ["(🧪|語|ñ){5}", "[^a-z0-9 ]{4}", r"[\s\S]{6}", r"(yes|no)(, (yes|no)){0,3}"]
)
def test_sampled_text_matches_the_whole_pattern(server: Any, pattern: str) -> None:
    for text in samples(server, regex=pattern):
        assert re.fullmatch(pattern, text) and "\ufffd" not in text


@pytest.mark.parametrize("pattern", ["", "b?", "(|c)", "b{0}", "^$"])
def test_an_empty_match_is_an_answer(server: Any, pattern: str) -> None:
    (choice,) = post(server, "completions", prompt="x", regex=pattern, max_tokens=4)["choices"]
    assert re.fullmatch(pattern, choice["text"]) and choice["finish_reason"] == "stop"


def test_a_limit_cuts_a_match_and_is_told(server: Any) -> None:
    answer = post(server, "completions", prompt="x", regex=r"([^\n]{9,}\n){2}", max_tokens=6)
    (choice,) = answer["choices"]
    assert answer["usage"]["completion_tokens"] == 6 and choice["finish_reason"] == "length"


def test_a_love_of_blanks_does_not_fill_an_object(server: Any) -> None:
    bias = {}
    for blank in ("\n", " "):
        url = f"{server.url}/tokenize"
        found = httpx.post(url, json={"prompt": blank, "add_special_tokens": False}).json()
        bias[str(found["tokens"][-1])] = 100
    messages = [{"role": "user", "content": "Generate a sample JSON document."}]
    answer = post(
        server,
        "chat/completions",
        messages=messages,
        response_format={"type": "json_object"},
        logit_bias=bias,
        max_tokens=120,
    )
    (choice,) = answer["choices"]
    content = choice["message"]["content"]
    outside = re.sub(r'"(?:[^"\\]|\\.)*("|$)', '""', content)
    assert max(map(len, re.findall(r"\s+", outside)), default=0) < 20
    if choice["finish_reason"] == "stop":
        json.loads(content)
