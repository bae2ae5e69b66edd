"""The engine's loop: take what arrived, run one step, send what it produced.

Owns the order of these three and what happens when a step fails. It does not know whether the other end
is a socket or a queue (`Channel`), nor how a step computes (`Core`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol

from msgspec.structs import replace

from ..errors import EngineError
from ..request import FinishReason, RequestOutput
from .messages import (
    Abort,
    EngineInfo,
    EngineStats,
    GenerateRequest,
    Release,
    ResetPrefixCache,
    Retain,
    Shutdown,
    StepOutputs,
    ToEngine,
)

logger = logging.getLogger(__name__)

STEP_FAILED = "The engine failed while it computed this request."
# A device that is broken for good fails every step; a new process is then the only cure.
MAX_CONSECUTIVE_FAILURES = 3


class Core(Protocol):
    """Scheduler and model behind one single-threaded surface; token ids only."""

    @property
    def info(self) -> EngineInfo:
        """What the core resolved from its configuration."""

    def add(self, request: GenerateRequest) -> None:
        """Take a request; a bad one becomes an ERROR output of the next step."""

    def abort(self, request_ids: Iterable[str]) -> None:
        """End requests before the next step, which returns an ABORT output for each live one."""

    def retain(self, message: Retain) -> None:
        """Keep what is cached of a sequence, for a session and a time."""

    def release(self, message: Release) -> None:
        """Keep nothing for a session any more."""

    def has_work(self) -> bool:
        """Whether a step would do or report anything."""

    def step(self) -> list[RequestOutput]:
        """Run one step."""

    def rest(self) -> float | None:
        """Housekeeping; called when there is no work, before waiting for some.

        Returns:
            Seconds after which there is something to do again even if nothing arrives, or None.
        """

    def stats(self) -> EngineStats:
        """Counters and gauges of now."""

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix that no running request holds."""


class Channel(Protocol):
    """The other end, as the loop sees it."""

    def receive(self, *, block: bool, timeout: float | None = None) -> list[ToEngine]:
        """Everything that arrived; with `block`, wait until there is something, or for `timeout` seconds."""

    def send(self, message: StepOutputs) -> None:
        """Hand a message over without waiting for its reader."""


class EngineLoop:
    """Runs a core until a Shutdown arrives.

    A step that raises ends the requests that the core holds with ERROR outputs, provided that the core
    can still let go of all of them and of their memory; the loop then goes on. Otherwise `run` raises.
    """

    def __init__(self, core: Core, channel: Channel) -> None:
        self._core = core
        self._channel = channel
        self._live_ids: set[str] = set()
        self._reported: EngineStats | None = None
        self._num_failures = 0

    def run(self) -> None:
        """Loop until Shutdown.

        Raises:
            EngineError: a step failed and what it left behind could not be cleaned up.
        """
        while self._take(self._receive()):
            if self._core.has_work():
                self._send(self._step())
                continue
            # What woke the loop may have been a time that has come, and it changes the statistics.
            self._core.rest()
            if self._core.stats() != self._reported:
                self._send([])

    def _receive(self) -> list[ToEngine]:
        idle = not self._core.has_work()
        timeout = self._core.rest() if idle else None
        return self._channel.receive(block=idle, timeout=timeout)

    def _take(self, messages: list[ToEngine]) -> bool:
        for message in messages:
            match message:
                case GenerateRequest():
                    self._live_ids.add(message.request_id)
                    self._core.add(message)
                case Abort():
                    self._core.abort(message.request_ids)
                case Retain():
                    self._core.retain(message)
                case Release():
                    self._core.release(message)
                case ResetPrefixCache():
                    self._core.reset_prefix_cache()
                case Shutdown():
                    return False
        return True

    def _step(self) -> list[RequestOutput]:
        try:
            outputs = self._core.step()
        except Exception as error:
            logger.exception("A step of the engine failed.")
            self._num_failures += 1
            return self._drop_everything(error)
        self._num_failures = 0
        self._live_ids.difference_update(o.request_id for o in outputs if o.finished)
        return outputs

    def _drop_everything(self, error: Exception) -> list[RequestOutput]:
        # The step may have failed anywhere, so no request of the core can be trusted to go on.
        if self._num_failures >= MAX_CONSECUTIVE_FAILURES:
            raise EngineError(f"{self._num_failures} steps failed in a row.") from error
        try:
            self._core.abort(sorted(self._live_ids))
            finished = {o.request_id: o for o in self._core.step() if o.finished}
        except Exception as again:
            raise EngineError("The step after a failed one failed too.") from again
        stats = self._core.stats()
        num_held = stats.blocks_private + stats.blocks_pinned
        num_left = len(self._live_ids - finished.keys())
        if self._core.has_work() or num_held or num_left:
            raise EngineError(
                f"After a failed step the engine still holds {num_held} blocks and "
                f"{num_left} requests."
            ) from error
        self._live_ids.clear()
        return [
            replace(output, finish_reason=FinishReason.ERROR, error=STEP_FAILED)
            for output in finished.values()
        ]

    def _send(self, outputs: list[RequestOutput]) -> None:
        self._reported = self._core.stats()
        self._channel.send(StepOutputs(outputs=outputs, stats=self._reported))
