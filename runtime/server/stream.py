"""Server-sent events: bytes on the hot path, errors and the end of a stream.

A chunk is a skeleton whose constant parts are encoded once per choice; a step only splices in the
text. Knows how a stream is framed; what a chunk holds is decided by chat.py and completions.py.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Protocol

import msgspec
from fastapi import Request, Response
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from ..errors import RametError
from .disconnect import while_connected
from .errors import error_body
from .generation import Generation

logger = logging.getLogger(__name__)

_encode = msgspec.json.encode

DONE = b"data: [DONE]\n\n"

_MOST_TOGETHER = 256
"""Events in one write at most, so that a client far behind gets on with some before all are there."""


def event(data: bytes) -> bytes:
    """One line of JSON as an event."""
    return b"data: " + data + b"\n\n"


class ChunkSkeleton:
    """The constant parts of one stream's chunks.

    Args:
        head: the fields before `choices`, the same in every chunk.
        usage_everywhere: put the usage so far on every chunk.
    """

    def __init__(self, head: dict[str, Any], usage_everywhere: bool) -> None:
        self._head = _encode(head)[:-1]
        self._usage_everywhere = usage_everywhere
        self._prefix = b"data: " + self._head + b',"choices":['
        self._suffix = b"]}\n\n"

    def chunk(self, choice: bytes, generation: Generation, extra: bytes = b"") -> bytes:
        """An event with one choice; `extra` is appended to the chunk's fields."""
        if self._usage_everywhere:
            usage = _encode(generation.usage.as_dict())
            return b"".join((self._prefix, choice, b'],"usage":', usage, extra, b"}\n\n"))
        if extra:
            return b"".join((self._prefix, choice, b"]", extra, b"}\n\n"))
        return b"".join((self._prefix, choice, self._suffix))

    def last(self, generation: Generation) -> bytes:
        """The event with the usage and no choice."""
        usage = _encode(generation.usage.as_dict())
        return event(self._head + b',"choices":[],"usage":' + usage + b"}")


class EventStream(Response):
    """Sends events until they end, then `[DONE]`.

    The status line goes out at once. An error after it becomes an event with an `error` key. If the
    client leaves, the generator is closed. Events that are there at the same time go out together, since
    each write wakes the client: those of a step's samples, and the last with what ends the stream.

    Args:
        events: yields whole events, or nothing as b"".
        close: called once the stream is over, however it ended, even if it never began.
        is_ahead: whether the next event, or the end, takes no waiting.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        close: Callable[[], None],
        is_ahead: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(
            headers={
                "content-type": "text/event-stream; charset=utf-8",
                "cache-control": "no-cache",
                "x-accel-buffering": "no",
            }
        )
        del self.headers["content-length"]
        self._events = events
        self._close = close
        self._is_ahead = is_ahead

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            await while_connected(receive, self._send_all(send))
        except ClientDisconnect:
            logger.debug("a client left its stream")
        finally:
            self._close()

    async def _send_all(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            parts: list[bytes] = []
            try:
                async for data in events:
                    parts.append(data)
                    if not self._is_ahead() or len(parts) >= _MOST_TOGETHER:
                        body, parts = b"".join(parts), []
                        if body:
                            await send(
                                {"type": "http.response.body", "body": body, "more_body": True}
                            )
            except Exception as error:
                if not isinstance(error, RametError):
                    logger.exception("a stream failed")
                parts.append(event(error_body(error)))
            body = b"".join([*parts, DONE])
            await send({"type": "http.response.body", "body": body, "more_body": False})


class Answer(Protocol):
    """The JSON of one answer."""

    async def whole(self, generation: Generation) -> bytes:
        """Wait for all samples, and return the answer."""

    def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """Yield the answer's events as its tokens come: something for each delta, be it b""."""


async def respond(
    request: Request, generation: Generation, answer: Answer, *, stream: bool
) -> Response:
    """Turn a running generation into a response; a client that leaves aborts it, streamed or not.

    Raises:
        ClientDisconnect: the client left before the whole answer was there.
        RametError: as `Generation.deltas`, if the answer is not streamed.
    """
    if stream:
        events = answer.events(generation)
        if generation.may_be_refused:
            try:
                events = await while_connected(request.receive, _begun(events))
            except BaseException:
                generation.abort()
                raise
        return EventStream(events, generation.abort, lambda: generation.is_ahead)
    try:
        data = await while_connected(request.receive, answer.whole(generation))
    finally:
        generation.abort()
    return Response(data, media_type="application/json")


async def _begun(events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The same events, once the first is there: until then an error can still be a status."""
    first = await anext(events)

    async def all_events() -> AsyncGenerator[bytes, None]:
        async with aclosing(events):
            yield first
            async for data in events:
                yield data

    return all_events()
