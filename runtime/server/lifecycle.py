"""Whether the server takes work: the engine's status and the decision to shut down, as one answer."""

from __future__ import annotations

from ..engine.client import EngineClient, EngineStatus
from ..errors import EngineDead, ServerDraining


class Lifecycle:
    """Says whether new work may start.

    Draining is for good: requests that run finish, everything else is refused.
    """

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._draining = False

    @property
    def draining(self) -> bool:
        """Whether the server is shutting down."""
        return self._draining

    def drain(self) -> None:
        """Take no new work from now on. Safe to call twice."""
        self._draining = True

    @property
    def alive(self) -> bool:
        """Whether the server can be left alone: it serves, or is about to."""
        return not self._draining and self._client.status in (
            EngineStatus.READY,
            EngineStatus.STARTING,
        )

    @property
    def word(self) -> str:
        """`ready`, `starting`, `dead`, `stopped` or `draining`."""
        return "draining" if self._draining else self._client.status.value

    def check_accepting(self) -> None:
        """Pass if new work may start.

        Raises:
            ServerDraining: the server shuts down, or its engine is not ready yet.
            EngineDead: the engine ended and is not back yet.
        """
        if self._draining:
            raise ServerDraining("The server is shutting down and takes no new work.")
        status = self._client.status
        if status is EngineStatus.STARTING:
            raise ServerDraining("The engine is starting and takes no work yet.")
        if status is not EngineStatus.READY:
            raise EngineDead(f"The engine is {status.value} and takes no work.")
