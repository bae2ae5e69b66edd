"""How the server and the library reach an engine, wherever it runs.

`EngineClient` is the seam: `EngineProcess` (process.py) implements it across a private socket; a fake
one in tests/support replays canned outputs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from enum import StrEnum
from typing import Protocol

from ..request import RequestOutput
from .messages import EngineInfo, EngineStats, GenerateRequest, Release, Retain


class EngineStatus(StrEnum):
    """Whether the engine takes work."""

    STARTING = "starting"
    READY = "ready"
    DEAD = "dead"
    STOPPED = "stopped"


class OutputStream(Protocol):
    """The outputs of the requests submitted together, in the order in which they arrive."""

    def __aiter__(self) -> AsyncIterator[RequestOutput]:
        """Yield outputs until every request of the stream has finished.

        Raises:
            EngineDead: the engine process ended before they did.
        """

    @property
    def arrived(self) -> float:
        """When the output that was yielded last had come, on `time.perf_counter`'s clock."""

    @property
    def has_unread(self) -> bool:
        """Whether an output has come and was not yielded yet."""

    def abort(self) -> Sequence[tuple[RequestOutput, float]]:
        """Abort what has not finished; call it always when leaving early. Safe to call twice.

        Returns:
            The outputs that had come and will not be yielded, and when each had.
        """


class EngineClient(Protocol):
    """Submits requests to an engine. All methods are called on one asyncio loop."""

    @property
    def status(self) -> EngineStatus:
        """Whether the engine takes work now."""

    @property
    def info(self) -> EngineInfo:
        """What the engine resolved; only valid once it has been ready."""

    @property
    def stats(self) -> EngineStats:
        """The newest statistics that the engine sent."""

    @property
    def num_live(self) -> int:
        """Requests submitted and not finished yet."""

    def submit(
        self, requests: Sequence[GenerateRequest], *, is_patient: bool = False
    ) -> OutputStream:
        """Hand requests to the engine, all or none.

        With `is_patient` the stream may hold outputs back until a request has finished, which spares
        a wake-up for each.

        Raises:
            QueueFull: more than max_num_seqs + max_queue_len requests would be live.
            EngineDead: the engine is not ready (starting, restarting or stopped).
        """

    def post(self, message: Retain | Release) -> None:
        """Hand a message to the engine, behind the requests that were submitted before.

        Raises:
            EngineDead: the engine is not ready.
        """

    async def start(self) -> EngineInfo:
        """Start the engine and wait until it is ready.

        Raises:
            ConfigError: it cannot start with this configuration.
        """

    async def reset_prefix_cache(self) -> None:
        """Forget every cached prefix that no running request holds."""

    async def stop(self) -> None:
        """End the engine; requests that still run get ABORT outputs."""
