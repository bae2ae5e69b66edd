"""Sends requests to a server and times what comes back.

It never raises for a request that failed: failures are results, counted by the report. It knows
nothing of workloads.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import aiohttp

from .protocol import AnswerStream, Prompt, Result, ServerError, Target, error_message

_LINE_LIMIT = 2**20


class Client:
    """Sends prompts, as many at once as it is asked to.

    Args:
        session: the connections; closed by the caller.
        target: the server.
        timeout: seconds that one request may take.
    """

    def __init__(self, session: aiohttp.ClientSession, target: Target, *, timeout: float) -> None:
        self._session = session
        self._target = target
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        path = "chat/completions" if target.endpoint == "chat" else "completions"
        self._url = f"{target.url.rstrip('/')}/v1/{path}"

    async def send(self, prompt: Prompt) -> Result:
        """Send one prompt and follow its stream to the end."""
        stream = AnswerStream(prompt)
        try:
            body = self._target.body(prompt)
            async with self._session.post(self._url, json=body, timeout=self._timeout) as response:
                if response.status != 200:
                    text = await response.text(errors="replace")
                    raise ServerError(f"HTTP {response.status}: {error_message(text)}")
                async for line in response.content:
                    if not stream.feed(line, time.perf_counter()):
                        break
            return stream.result()
        except ServerError as error:
            return stream.failed(str(error))
        except TimeoutError:
            return stream.failed(f"no complete answer in {self._timeout.total:g} s")
        except (aiohttp.ClientError, ValueError) as error:
            return stream.failed(f"{type(error).__name__}: {error}")


def open_session(api_key: str | None) -> aiohttp.ClientSession:
    """Connections without a limit on their number; to be used as a context manager.

    Each request opens its own: servers differ in how long they keep idle ones, and a request on one
    that was just closed would count as a failure.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    return aiohttp.ClientSession(connector=connector, headers=headers, read_bufsize=_LINE_LIMIT)


async def first_model(session: aiohttp.ClientSession, url: str) -> str:
    """The name of the first model that the server lists.

    Raises:
        ServerError: it lists none, or cannot be reached.
    """
    where = f"{url.rstrip('/')}/v1/models"
    try:
        async with session.get(where, timeout=aiohttp.ClientTimeout(total=10)) as response:
            listing = await response.json()
        return str(listing["data"][0]["id"])
    except (aiohttp.ClientError, TimeoutError, ValueError, LookupError, TypeError) as error:
        raise ServerError(f"{where} lists no model ({type(error).__name__}: {error})") from error


async def server_token_counter(
    session: aiohttp.ClientSession, target: Target
) -> _RouteCounter | None:
    """A token counter that asks the server's /tokenize route; None where there is no such route."""
    for body in ({"model": target.model, "add_special_tokens": False}, {}):
        for field_name in ("prompt", "content"):
            counter = _RouteCounter(session, target.url, body, field_name)
            try:
                # A route that ignores the field would count the same for any text.
                if 0 < await counter("one") < await counter("one two three four five"):
                    return counter
            except ServerError:
                continue
    return None


class _RouteCounter:
    def __init__(
        self, session: aiohttp.ClientSession, url: str, body: Mapping[str, Any], field_name: str
    ) -> None:
        self._session = session
        self._url = f"{url.rstrip('/')}/tokenize"
        self._body = body
        self._field = field_name

    async def __call__(self, text: str) -> int:
        body = {**self._body, self._field: text}
        try:
            async with self._session.post(self._url, json=body) as response:
                if response.status != 200:
                    raise ServerError(f"{self._url}: HTTP {response.status}")
                answer = await response.json()
            return len(answer["tokens"])
        except (aiohttp.ClientError, TimeoutError, ValueError, LookupError, TypeError) as error:
            raise ServerError(f"{self._url}: {type(error).__name__}: {error}") from error
