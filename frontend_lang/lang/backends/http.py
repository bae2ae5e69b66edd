"""JSON over HTTP for backends: one client per backend, on the language's loop. Knows no route."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from ..errors import BackendError

if TYPE_CHECKING:
    import httpx

_MAX_CONNECTIONS = 512
# On a machine that an engine keeps busy, fifty calls at once may wait for ten.
_CONNECT_SECONDS = 30.0


class Http:
    """Requests to one server.

    Time limits are the requests' own; only connecting has one here.

    Args:
        base_url: what paths are added to.
        api_key: sent as a bearer token.
        verify: file of the certificates that are trusted; None is the system's.
    """

    def __init__(self, base_url: str, api_key: str | None, verify: str | None = None) -> None:
        self._base_url = base_url
        self._verify = verify
        self._headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        self._client: httpx.AsyncClient | None = None

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send JSON and get JSON; raises BackendError."""
        return await self._whole("POST", path, body)

    async def get(self, path: str) -> dict[str, Any]:
        """Get JSON; raises BackendError."""
        return await self._whole("GET", path, None)

    async def _whole(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        import httpx

        try:
            response = await self._connected().request(method, path, json=body)
        except httpx.HTTPError as error:
            raise _unreachable(self._base_url, error) from error
        if response.is_error:
            raise _refused(response.status_code, response.text)
        answer: dict[str, Any] = response.json()
        return answer

    async def events(
        self, path: str, body: dict[str, Any], on_open: Callable[[], None] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """Send JSON and yield the server-sent events of the answer.

        Args:
            on_open: called once the server has taken the request.

        Raises:
            BackendError: the server refused it, or ended without `[DONE]`.
        """
        import httpx

        try:
            async with self._connected().stream("POST", path, json=body) as response:
                if response.is_error:
                    raise _refused(response.status_code, (await response.aread()).decode())
                if on_open is not None:
                    on_open()
                async for line in response.aiter_lines():
                    if line == "data: [DONE]":
                        return
                    if line.startswith("data: "):
                        yield json.loads(line[6:])
        except httpx.HTTPError as error:
            raise _unreachable(self._base_url, error) from error
        raise BackendError("The server's answer ended early.")

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _connected(self) -> httpx.AsyncClient:
        if self._client is None:
            import ssl

            import httpx

            trusts = (
                None if self._verify is None else ssl.create_default_context(cafile=self._verify)
            )
            self._client = httpx.AsyncClient(
                verify=True if trusts is None else trusts,
                base_url=self._base_url,
                headers=self._headers,
                timeout=httpx.Timeout(None, connect=_CONNECT_SECONDS),
                limits=httpx.Limits(max_connections=_MAX_CONNECTIONS),
            )
        return self._client


def _refused(status: int, text: str) -> BackendError:
    try:
        message = str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = text[:500]
    return BackendError(f"The server answered {status}: {message}", status)


def _unreachable(base_url: str, error: Exception) -> BackendError:
    return BackendError(f"{base_url}: {type(error).__name__}: {error}")
