"""Who answers in `ramet chat`: a running server, or an engine in this process.

Both take a conversation and give pieces of text, and raise errors of ramet when they cannot.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx

    from ramet.runtime import Engine

    from .conversation import Message, TextPieces

_CONNECT_TIMEOUT = 10.0


class ServerSpeaker:
    """A chat endpoint of any OpenAI-compatible server.

    Args:
        client: with the server's root as its base URL and the key in its headers.
        model: the model's name there; None takes the first that the server lists.
        options: further fields of every request.

    Raises:
        EngineError: the server cannot be reached, or lists no model.
    """

    def __init__(self, client: httpx.Client, model: str | None, options: dict[str, Any]) -> None:
        self._client = client
        self._options = options
        self.model = model or self._first_model()

    def answer(self, messages: list[Message]) -> TextPieces:
        """Stream the next message. Closing the stream disconnects, which stops the server."""
        return self._pieces(messages)

    def _pieces(self, messages: list[Message]) -> Generator[str, None, None]:
        import httpx

        body = {"model": self.model, "messages": messages, "stream": True, **self._options}
        try:
            with self._client.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.status_code != 200:
                    raise _refusal(response.status_code, response.read())
                yield from _deltas(response.iter_lines())
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def _first_model(self) -> str:
        import httpx

        try:
            response = self._client.get("/v1/models")
            if response.status_code != 200:
                raise _refusal(response.status_code, response.content)
            return str(response.json()["data"][0]["id"])
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        except (ValueError, LookupError, TypeError) as error:
            raise _engine_error(f"{self._client.base_url} lists no model.") from error

    def _unreachable(self, error: Exception) -> Exception:
        reason = str(error) or type(error).__name__
        return _engine_error(
            f"{self._client.base_url} does not answer: {reason}.",
            "Is the server running? `ramet serve` starts one.",
        )


class EngineSpeaker:
    """A model in this process.

    Args:
        engine: closed by the caller.
        options: fields of `SamplingParams`.
    """

    def __init__(self, engine: Engine, options: dict[str, Any]) -> None:
        self._engine = engine
        self._options = options

    def answer(self, messages: list[Message]) -> TextPieces:
        """Stream the next message. Closing the stream stops the engine's work on it."""
        prompt_ids = self._engine.render_chat(messages)
        return self._engine.stream(prompt_ids, **self._options)


def connect(url: str, api_key: str | None) -> httpx.Client:
    """A client for a server's root; waits for answers as long as they take."""
    import httpx

    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    return httpx.Client(
        base_url=url.rstrip("/").removesuffix("/v1"),
        headers=headers,
        timeout=httpx.Timeout(None, connect=_CONNECT_TIMEOUT),
    )


def _deltas(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
        if data == "[DONE]":
            return
        if not data:
            continue
        event = json.loads(data)
        if event.get("error"):
            raise _engine_error(_message(data.encode()))
        for choice in event.get("choices") or ():
            text = (choice.get("delta") or {}).get("content")
            if text:
                yield text
    raise _engine_error("The answer broke off.")


def _refusal(status: int, body: bytes) -> Exception:
    from ramet.runtime.errors import InvalidRequest

    message = f"The server refused (HTTP {status}): {_message(body)}"
    hint = "Give its key with --api-key." if status == 401 else None
    return InvalidRequest(message, hint=hint) if status < 500 else _engine_error(message)


def _engine_error(message: str, hint: str | None = None) -> Exception:
    from ramet.runtime.errors import EngineError

    return EngineError(message, hint=hint)


def _message(body: bytes) -> str:
    text = body.decode(errors="replace")
    try:
        error = json.loads(text)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, LookupError, TypeError):
        return text[:200]
