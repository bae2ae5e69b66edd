"""Bodies: strict JSON, within a limit, and errors that say where."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from ramet.runtime.errors import InvalidRequest
from ramet.runtime.server.body import MAX_BODY_BYTES, convert, parse_object

JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'{"prompt": "x", ',
        b"[1, 2]",
        b'"text"',
        b"null",
        b"\xff\xfe\x00",
        b'{"prompt": "\xff"}',
        b'{"prompt": "x", "prompt": "y"}',
        b'{"prompt": "x", "metadata": {"a": 1, "a": 2}}',
        b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}",
        b'{"prompt": "half a pair \\ud83d"}',
        b'{"prompt": "x", "request_id": "\\ud83d"}',
        b'{"prompt": ' + b"[" * 100_000,
        b'{"prompt": "x", "x": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_001,
    ],
    ids=lambda body: repr(body[:40]),
)
async def test_a_body_that_is_no_strict_json_object_is_a_400(
    http: httpx.AsyncClient, body: bytes
) -> None:
    response = await http.post("/v1/completions", content=body, headers=JSON)
    error = response.json()["error"]
    assert response.status_code == 400 and error["type"] == "invalid_request_error"
    assert error["message"] and error["param"] is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"prompt": "x", "temperature": NaN}', "temperature"),
        (b'{"prompt": "x", "top_p": -Infinity}', "top_p"),
        (b'{"prompt": "x", "stop_token_ids": [1, [Infinity]]}', "stop_token_ids"),
        (b'{"prompt": "x", "logit_bias": {"5": NaN}}', "5"),
    ],
)
async def test_a_number_that_json_does_not_have_is_a_400_that_names_its_field(
    http: httpx.AsyncClient, body: bytes, param: str
) -> None:
    response = await http.post("/v1/completions", content=body, headers=JSON)
    assert response.status_code == 400 and response.json()["error"]["param"] == param


async def test_a_whole_surrogate_pair_and_other_escapes_pass(
    http: httpx.AsyncClient, engine: Any, tokenizer: Any
) -> None:
    body = b'{"prompt": "\\ud83e\\uddea\\u00e9"}'
    response = await http.post("/v1/completions", content=body, headers=JSON)
    assert response.status_code == 200
    assert tokenizer.decode(engine.requests[0].prompt_ids, False) == "🧪é"


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ("Application/JSON", 200),
        ("application/vnd.api+json", 200),
        ("text/plain", 400),
        ("application/x-www-form-urlencoded", 400),
        ("", 400),
    ],
)
async def test_only_json_is_read(http: httpx.AsyncClient, content_type: str, status: int) -> None:
    headers = {"content-type": content_type}
    response = await http.post("/v1/completions", content=b'{"prompt": "x"}', headers=headers)
    assert response.status_code == status


async def test_a_body_beyond_the_limit_is_a_413_by_its_length_or_as_it_comes(
    http: httpx.AsyncClient,
) -> None:
    headers = {**JSON, "content-length": str(MAX_BODY_BYTES + 1)}
    response = await http.post("/v1/completions", content=b"{}", headers=headers)
    assert response.status_code == 413 and response.json()["error"]["message"]

    async def parts() -> AsyncIterator[bytes]:
        for _ in range(MAX_BODY_BYTES // 2**20 + 1):
            yield b" " * 2**20

    response = await http.post("/v1/completions", content=parts(), headers=JSON)
    assert response.status_code == 413


class _Inner(msgspec.Struct):
    size: int


class _Outer(msgspec.Struct):
    items: list[_Inner]
    bias: dict[int, float] | None = None


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ({}, "items"),
        ({"items": 5}, "items"),
        ({"items": [{}]}, "items[0].size"),
        ({"items": [{"size": "x"}]}, "items[0].size"),
        ({"items": [3]}, "items[0]"),
        ({"items": [], "bias": {"cat": 1}}, "bias"),
        ({"items": [], "bias": {"5": "x"}}, "bias"),
    ],
    ids=str,
)
def test_a_wrong_field_is_named_by_its_path(value: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        convert(value, _Outer)
    assert caught.value.param == param and param in str(caught.value)


def test_unknown_fields_are_left_out() -> None:
    assert convert({"items": [{"size": 1, "new": 2}], "newer": 3}, _Outer) == _Outer([_Inner(1)])


def test_an_object_keeps_its_values() -> None:
    assert parse_object(b' {"a": [1, 2.5, null, "x"]} ') == {"a": [1, 2.5, None, "x"]}


async def test_only_a_long_body_is_parsed_beside_the_loop(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_loop = []

    def parse(body: bytes) -> dict[str, Any]:
        on_loop.append(threading.current_thread() is threading.main_thread())
        return parse_object(body)

    monkeypatch.setattr("ramet.runtime.server.body.parse_object", parse)
    for size in (10, 200_000):
        body = {"prompt": "x", "max_tokens": 1, "user": "u" * size}
        assert (await http.post("/v1/completions", json=body)).status_code == 200
    bad = b'{"prompt": "' + b"x" * 200_000
    assert (await http.post("/v1/completions", content=bad, headers=JSON)).status_code == 400
    assert on_loop == [True, False, False]
