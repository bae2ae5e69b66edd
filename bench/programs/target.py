"""Where programs run: an engine in this process, a ramet server, or any OpenAI-compatible one; and how
the tokens of a text are told there.

Every run starts with a cold cache: servers get a salt of its own with every request, an engine in
this process forgets what it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import httpx

import ramet

from ..protocol import ServerError, error_message

BACKENDS = ("runtime", "endpoint", "openai")
_TIMEOUT = 60.0


class Tokens(Protocol):
    """The tokens of texts, as the target sees them."""

    def of_text(self, text: str, *, bare: bool = False) -> list[int]:
        """Of a prompt; `bare` leaves out what the model expects around a text."""

    def of_messages(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Of a conversation that the assistant goes on with."""

    def max_context(self) -> int:
        """Most tokens of a prompt and its answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where programs run.

    Attributes:
        backend: one of `BACKENDS`.
        url: of a server, without /v1.
        model: of the engine, or the name at the server; the first that it lists if empty.
        kv_cache_memory: of the engine, in bytes; None for its own choice.
    """

    backend: str
    url: str = "http://127.0.0.1:8000"
    model: str = ""
    api_key: str | None = None
    kv_cache_memory: int | None = None

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, not {self.backend!r}")


class EngineTarget:
    """An engine in this process."""

    def __init__(self, target: Target) -> None:
        memory = target.kv_cache_memory
        options = {} if memory is None else {"kv_cache_memory": memory}
        self._runtime = ramet.Runtime(target.model or None, **options)
        self.name = self._runtime.engine.info.model_name

    def backend(self, salt: str) -> Any:
        """The same for every run, with nothing in its cache."""
        self._runtime.flush_cache()
        return self._runtime

    def tokens(self) -> Tokens:
        """The engine's own."""
        return _EngineTokens(self._runtime)

    def close(self) -> None:
        """End the engine."""
        self._runtime.close()


class ServerTarget:
    """A server, by ramet's native route or as any OpenAI-compatible one."""

    def __init__(self, target: Target) -> None:
        root = target.url.rstrip("/").removesuffix("/v1")
        self._target, self._root = target, root
        headers = {"authorization": f"Bearer {target.api_key}"} if target.api_key else {}
        self._client = httpx.Client(base_url=root, headers=headers, timeout=_TIMEOUT)
        self.name = target.model or self._first_model()
        self._opened: list[Any] = []

    def backend(self, salt: str) -> Any:
        """A backend whose requests share no cache with those of another salt."""
        key = self._target.api_key
        made: Any
        if self._target.backend == "endpoint":
            made = ramet.RuntimeEndpoint(self._root, key, cache_salt=salt)
        else:
            extra = {"cache_salt": salt, "ignore_eos": False}
            made = ramet.OpenAI(self.name, f"{self._root}/v1", key, extra=extra)
        self._opened.append(made)
        return made

    def tokens(self) -> Tokens:
        """By the server's /tokenize."""
        return _ServerTokens(self._client, self.name)

    def close(self) -> None:
        """Close the connections."""
        for backend in self._opened:
            backend.close()
        self._client.close()

    def _first_model(self) -> str:
        try:
            return str(self._client.get("/v1/models").json()["data"][0]["id"])
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            raise ServerError(
                f"{self._root}/v1/models lists no model ({type(error).__name__}: {error})"
            ) from error


def open_target(target: Target) -> EngineTarget | ServerTarget:
    """Load the engine, or find the server's model.

    Raises:
        ServerError: the server cannot be reached, or lists no model.
    """
    return EngineTarget(target) if target.backend == "runtime" else ServerTarget(target)


class _EngineTokens:
    def __init__(self, runtime: ramet.Runtime) -> None:
        self._engine = runtime.engine

    def of_text(self, text: str, *, bare: bool = False) -> list[int]:
        return self._engine.tokenizer.encode(text, not bare)

    def of_messages(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        raise TypeError("an engine is sent tokens, never messages")

    def max_context(self) -> int:
        return self._engine.info.max_model_len


class _ServerTokens:
    def __init__(self, client: httpx.Client, model: str) -> None:
        self._client, self._model = client, model

    def of_text(self, text: str, *, bare: bool = False) -> list[int]:
        return list(self._ask(prompt=text, add_special_tokens=not bare)["tokens"])

    def of_messages(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        return list(self._ask(messages=messages, add_generation_prompt=True)["tokens"])

    def max_context(self) -> int:
        return int(self._ask(prompt="a")["max_model_len"])

    def _ask(self, **body: Any) -> dict[str, Any]:
        try:
            response = self._client.post("/tokenize", json={"model": self._model, **body})
            if response.is_error:
                raise ServerError(f"/tokenize: {error_message(response.text)}")
            answer: dict[str, Any] = response.json()
            return answer
        except (httpx.HTTPError, ValueError) as error:
            raise ServerError(f"/tokenize: {type(error).__name__}: {error}") from error
