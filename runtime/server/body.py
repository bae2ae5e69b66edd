"""Reading a request's body as one JSON object, strictly, and checking it against a type.

Knows bytes, JSON and msgspec; knows no field of any route.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, TypeVar

import msgspec
from fastapi import Request

from ..errors import InvalidRequest
from .errors import BodyTooLarge

MAX_BODY_BYTES = 64 * 1024**2
# Parsing this takes a few milliseconds, which is as long as a thread may keep the interpreter anyway.
_LONG_BODY_BYTES = 64 * 1024

T = TypeVar("T")

_AT_PATH = re.compile(r"^(?P<what>.*?)(?: - at (?:`key` in )?`\$\.?(?P<path>.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"missing required field `(?P<name>[^`]+)`")


async def read_object(request: Request, max_bytes: int = MAX_BODY_BYTES) -> dict[str, Any]:
    """The body as a JSON object.

    Raises:
        InvalidRequest: the content type is not JSON, or the body is no JSON object: bad UTF-8,
            NaN, a repeated key, a lone surrogate and nesting without end included.
        BodyTooLarge: it is longer than `max_bytes`; at most that much of it is kept.
        ClientDisconnect: the client left before all of it came.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json" and not content_type.endswith("+json"):
        raise InvalidRequest(
            f"The body must be sent as application/json, not {content_type[:100]!r}.",
            hint="Set the header Content-Type: application/json.",
        )
    body = await _read(request, max_bytes)
    if len(body) <= _LONG_BODY_BYTES:
        return parse_object(body)
    # Other requests' streams go on meanwhile, between the parser's turns with the interpreter.
    return await asyncio.to_thread(parse_object, body)


async def _read(request: Request, max_bytes: int) -> bytes:
    too_large = BodyTooLarge(f"The body is longer than {max_bytes} bytes.")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > max_bytes:
        raise too_large
    parts: list[bytes] = []
    num_bytes = 0
    async for part in request.stream():
        num_bytes += len(part)
        if num_bytes > max_bytes:
            raise too_large
        parts.append(part)
    return b"".join(parts)


def parse_object(body: bytes) -> dict[str, Any]:
    """`body` as a JSON object; raises InvalidRequest as `read_object` does."""
    try:
        value = json.loads(
            body.decode("utf-8"), object_pairs_hook=_members, parse_constant=_Constant
        )
        if b"\\u" in body:
            # An escaped half of a surrogate pair parses, but is no text that could be encoded.
            msgspec.json.encode(value)
    except RecursionError:
        raise InvalidRequest("The body is nested too deeply.") from None
    except UnicodeError:
        raise InvalidRequest("The body is not valid UTF-8.") from None
    except ValueError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.") from None
    if not isinstance(value, dict):
        raise InvalidRequest("The body must be a JSON object.")
    return value


class _Constant:
    """NaN or Infinity, which Python's parser knows and JSON does not, until its field is known."""

    def __init__(self, name: str) -> None:
        self.name = name


def convert(value: dict[str, Any], kind: type[T]) -> T:
    """`value` as `kind`; fields that `kind` does not have are left out.

    Raises:
        InvalidRequest: a field is missing or of the wrong type; `param` is its path.
    """
    try:
        return msgspec.convert(value, kind, strict=True, str_keys=True)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from None


def convert_strictly(value: dict[str, Any], kind: type[Any], where: str = "") -> Any:
    """`value` as `kind`, of which every field must be known.

    Raises:
        InvalidRequest: a field is unknown, missing or of the wrong type; `where` leads to it.
    """
    known = {field.encode_name for field in msgspec.structs.fields(kind)}
    unknown = sorted(value.keys() - known)
    prefix = f"{where}." if where else ""
    if unknown:
        raise InvalidRequest(
            f"There is no field {prefix + unknown[0]!r}.", param=prefix + unknown[0]
        )
    try:
        return convert(value, kind)
    except InvalidRequest as error:
        if not where:
            raise
        raise InvalidRequest(f"{where}: {error.message}", param=f"{prefix}{error.param}") from None


def _invalid(text: str) -> InvalidRequest:
    match = _AT_PATH.match(text)
    assert match is not None
    what, path = match["what"], match["path"] or ""
    missing = _MISSING.search(what)
    if missing is not None:
        path = f"{path}.{missing['name']}".lstrip(".")
        return InvalidRequest(f"Missing required parameter: {path!r}.", param=path)
    path = path.removesuffix("[...]") or "body"
    return InvalidRequest(f"Invalid value for {path!r}: {what[:1].lower()}{what[1:]}.", param=path)


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        names = [name for name, _ in pairs]
        name = next(name for name in members if names.count(name) > 1)
        raise ValueError(f"the key {name[:100]!r} appears twice in one object")
    for name, value in pairs:
        constant = _constant_in(value)
        if constant is not None:
            raise InvalidRequest(
                f"The body is not valid JSON: {name[:100]!r} has {constant.name}, which is not a "
                "number in JSON.",
                param=name[:100],
            )
    return members


def _constant_in(value: Any) -> _Constant | None:
    if isinstance(value, _Constant):
        return value
    if isinstance(value, list) and not all(type(item) is int for item in value):
        return next((found for item in value if (found := _constant_in(item))), None)
    return None
