"""`EngineProcess`: an `EngineClient` whose engine runs in a process of its own and is kept alive.

Owns who waits for which request, and what happens when the process dies: the requests that it ran fail
with EngineDead, and a new process starts after a pause, unless they die faster than `RestartPolicy`
allows. It does not know how requests are computed or how they reached it.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ..config import EngineConfig
from ..errors import ConfigError, EngineDead, InvalidRequest, QueueFull, RametError
from ..request import FinishReason, RequestOutput
from .client import EngineStatus
from .launch import Worker, describe_exit
from .messages import (
    Abort,
    EngineInfo,
    EngineStats,
    FromEngine,
    GenerateRequest,
    Release,
    ResetPrefixCache,
    Retain,
    Shutdown,
    StartFailed,
    StepOutputs,
    ToEngine,
)
from .spawn import DEFAULT_CORE
from .streams import RequestStream

logger = logging.getLogger(__name__)

# A step in progress is finished first; one that takes longer is not worth waiting for at shutdown.
_STOP_GRACE_SECONDS = 5.0
_LAST_WORDS_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """How often, and how soon, a dead engine is started again.

    Attributes:
        max_restarts: restarts within `window`; one more death and the engine stays dead.
        window: seconds.
        first_delay: seconds before the first restart of a window; each further one waits twice as long.
        max_delay: seconds; no pause is longer.
    """

    max_restarts: int = 5
    window: float = 300.0
    first_delay: float = 0.5
    max_delay: float = 30.0

    def delay(self, num_deaths: int) -> float | None:
        """Seconds to wait after the `num_deaths`-th death (from 1) of a window; None: stay dead."""
        if num_deaths > self.max_restarts:
            return None
        return float(min(self.max_delay, self.first_delay * 2 ** (num_deaths - 1)))


@dataclass(slots=True)
class _Deaths:
    policy: RestartPolicy
    times: deque[float] = field(default_factory=deque)

    def count(self) -> float | None:
        """Note a death; returns the pause before the next start, None to give up."""
        now = time.monotonic()
        self.times.append(now)
        while self.times[0] < now - self.policy.window:
            self.times.popleft()
        return self.policy.delay(len(self.times))


class EngineProcess:
    """An engine in its own process, restarted when it dies.

    Args:
        config: what to load.
        cache_dir: folder of downloaded models, in which `config.model.model` is looked up.
        core: `module:function` of what computes; see `WorkerOptions`.
        restarts: what to do about deaths.
        process: what `spawn.spawn` started for this core, for the first start; it stays the caller's to
            end where `start` is never called. None starts one then.
    """

    def __init__(
        self,
        config: EngineConfig,
        cache_dir: Path,
        *,
        core: str = DEFAULT_CORE,
        restarts: RestartPolicy | None = None,
        process: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self._config = config
        self._cache_dir = cache_dir
        self._core = core
        self._deaths = _Deaths(restarts or RestartPolicy())
        self._spawned = process
        self._max_live = config.scheduler.max_live
        self._status = EngineStatus.STARTING
        self._info: EngineInfo | None = None
        self._stats = EngineStats()
        # Every id that the engine has not given its last output for; None once it was aborted.
        self._streams: dict[str, RequestStream | None] = {}
        self._worker: Worker | None = None
        self._started: asyncio.Future[EngineInfo] | None = None
        self._supervisor: asyncio.Task[None] | None = None

    @property
    def status(self) -> EngineStatus:
        """Whether the engine takes work now."""
        return self._status

    @property
    def info(self) -> EngineInfo:
        """What the engine resolved.

        Raises:
            EngineDead: it has never been ready.
        """
        if self._info is None:
            raise EngineDead("The engine has not started yet.")
        return self._info

    @property
    def stats(self) -> EngineStats:
        """The newest statistics that the engine sent; they start from zero with every process."""
        return self._stats

    @property
    def num_live(self) -> int:
        """Requests that the engine has not finished yet, those being aborted included."""
        return len(self._streams)

    @property
    def pid(self) -> int | None:
        """The id of the engine's process, None while there is none."""
        return None if self._worker is None else self._worker.pid

    async def start(self) -> EngineInfo:
        """Start the process and wait until it is ready; cancelling this stops it.

        Raises:
            ConfigError: it cannot start with this configuration.
            EngineDead: it died while it started, or was stopped.
        """
        if self._supervisor is not None or self._status is EngineStatus.STOPPED:
            raise EngineDead("An engine process can be started only once.")
        self._started = asyncio.get_running_loop().create_future()
        self._supervisor = asyncio.create_task(self._supervise(), name="engine-supervisor")
        try:
            return await asyncio.shield(self._started)
        except asyncio.CancelledError:
            await self.stop()
            self._started.exception()  # Seen by nobody else.
            raise

    def submit(
        self, requests: Sequence[GenerateRequest], *, is_patient: bool = False
    ) -> RequestStream:
        """Hand requests to the engine, all or none; they arrive together.

        Raises:
            QueueFull: more than max_num_seqs + max_queue_len requests would be live.
            EngineDead: the engine is not ready.
            InvalidRequest: an id is live already, or a request holds what cannot be sent.
        """
        worker = self._ready_worker()
        if len(self._streams) + len(requests) > self._max_live:
            raise QueueFull(
                f"{len(self._streams)} requests are running or waiting; at most {self._max_live} may."
            )
        request_ids = [request.request_id for request in requests]
        seen: set[str] = set()
        for request_id in request_ids:
            if request_id in seen or request_id in self._streams:
                raise InvalidRequest(
                    f"request_id {request_id!r} is in use already.", param="request_id"
                )
            seen.add(request_id)
        stream = RequestStream(request_ids, self._abort, is_patient=is_patient)
        if requests:
            self._send(worker, requests)
        self._streams.update(dict.fromkeys(request_ids, stream))
        return stream

    def post(self, message: Retain | Release) -> None:
        """Hand a message to the engine, behind the requests that were submitted before.

        Raises:
            EngineDead: the engine is not ready.
            InvalidRequest: it holds what cannot be sent.
        """
        self._send(self._ready_worker(), [message])

    async def reset_prefix_cache(self) -> None:
        """Forget every cached prefix that no running request holds; later requests find none.

        Raises:
            EngineDead: the engine is not ready.
        """
        self._send(self._ready_worker(), [ResetPrefixCache()])

    async def stop(self, grace: float = _STOP_GRACE_SECONDS) -> None:
        """End the process; requests that still run get ABORT outputs. Safe to call twice.

        Args:
            grace: seconds that the process gets to finish its current step and end by itself.
        """
        was_ready = self._status is EngineStatus.READY
        self._status = EngineStatus.STOPPED
        for request_id, stream in self._take_streams():
            stream.deliver(
                RequestOutput(
                    request_id=request_id,
                    finish_reason=FinishReason.ABORT,
                    error="The engine was stopped.",
                )
            )
        if self._started is not None and not self._started.done():
            self._started.set_exception(EngineDead("The engine was stopped while it started."))
        supervisor, worker = self._supervisor, self._worker
        if supervisor is None or supervisor.done():
            return
        if was_ready and worker is not None and grace > 0:
            try:
                self._send(worker, [Shutdown()])
                await asyncio.wait({supervisor}, timeout=grace)
            except EngineDead:
                pass  # It is gone already, which is what we want.
        supervisor.cancel()
        await asyncio.wait({supervisor})

    def _ready_worker(self) -> Worker:
        if self._status is not EngineStatus.READY or self._worker is None:
            raise EngineDead(f"The engine is not ready: it is {self._status}.")
        return self._worker

    @staticmethod
    def _send(worker: Worker, messages: Sequence[ToEngine]) -> None:
        try:
            frames = [worker.encode(message) for message in messages]
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidRequest(f"The request cannot be sent to the engine: {error}.") from error
        worker.send(frames)

    def _abort(self, request_ids: list[str]) -> None:
        live = [request_id for request_id in request_ids if request_id in self._streams]
        if not live or self._worker is None:
            return
        self._streams.update(dict.fromkeys(live))
        try:
            self._send(self._worker, [Abort(live)])
        except EngineDead:
            pass  # The supervisor is about to see it, and forgets the requests.

    async def _supervise(self) -> None:
        try:
            await self._keep_alive()
        except Exception:
            logger.critical("The engine's supervisor failed.", exc_info=True)
            self._mourn(EngineDead("The engine's supervisor failed; the log has the reason."))

    async def _keep_alive(self) -> None:
        assert self._started is not None
        while True:
            failure = await self._run_once(self._started)
            if self._status is EngineStatus.STOPPED:
                return
            had_started = self._started.done()
            self._mourn(failure)
            if not had_started:
                return
            delay = self._deaths.count()
            if delay is None:
                logger.critical(
                    "%s It died %d times within %g seconds and is not started again.",
                    failure.message,
                    len(self._deaths.times),
                    self._deaths.policy.window,
                )
                return
            logger.error("%s It is started again in %g seconds.", failure.message, delay)
            await asyncio.sleep(delay)
            self._status = EngineStatus.STARTING

    def _mourn(self, failure: RametError) -> None:
        """Tell everybody that the engine is dead."""
        assert self._started is not None
        if self._status is not EngineStatus.STOPPED:
            self._status = EngineStatus.DEAD
        self._stats = EngineStats()
        for _, stream in self._take_streams():
            stream.fail(failure.message)
        if not self._started.done():
            self._started.set_exception(failure)

    async def _run_once(self, started: asyncio.Future[EngineInfo]) -> RametError:
        """One process from start to death; returns why it died."""
        process, self._spawned = self._spawned, None
        try:
            worker = Worker.spawn(
                self._config,
                self._cache_dir,
                self._core,
                logger.getEffectiveLevel(),
                process=process,
            )
        except EngineDead as error:
            return error
        except OSError as error:
            return EngineDead(f"The engine process could not be started: {error}.")
        self._worker = worker
        reader = worker.read(lambda message: self._handle(message, started))
        exited = asyncio.create_task(worker.wait())
        try:
            return await _end_of(reader, exited)
        finally:
            # Nothing is awaited before `close`, so that even a second cancellation leaves no process.
            self._worker = None
            worker.close()
            await asyncio.wait({exited})

    def _handle(self, message: FromEngine, started: asyncio.Future[EngineInfo]) -> None:
        """Take in a message; raises ConfigError if it says that the engine could not start."""
        match message:
            case StepOutputs():
                self._stats = message.stats
                for output in message.outputs:
                    self._route(output)
            case EngineInfo():
                self._info = message
                if self._status is EngineStatus.STOPPED:
                    return
                self._status = EngineStatus.READY
                if started.done():
                    logger.info("The engine is ready again.")
                else:
                    started.set_result(message)
            case StartFailed():
                raise ConfigError(message.message, param=message.param, hint=message.hint)

    def _route(self, output: RequestOutput) -> None:
        stream = self._streams.get(output.request_id)
        if output.finished:
            self._streams.pop(output.request_id, None)
        if stream is not None:
            stream.deliver(output)

    def _take_streams(self) -> list[tuple[str, RequestStream]]:
        streams, self._streams = self._streams, {}
        return [(key, stream) for key, stream in streams.items() if stream is not None]


async def _end_of(reader: asyncio.Future[None], exited: asyncio.Future[int]) -> RametError:
    """Wait until a process has ended, or said what ends it; returns why."""
    pending: set[asyncio.Future[Any]] = {reader, exited}
    await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
    if not exited.done() and reader.exception() is None:
        await asyncio.wait({exited})
    # The kernel may still hold what a process sent just before it died.
    await asyncio.wait({reader}, timeout=_LAST_WORDS_SECONDS)
    failure = reader.exception() if reader.done() else None
    if isinstance(failure, RametError):
        return failure
    if isinstance(failure, msgspec.DecodeError | struct.error):
        return EngineDead(f"The engine process sent a broken message: {failure}.")
    if isinstance(failure, OSError):
        return EngineDead(f"The engine process could not be connected: {failure}.")
    if failure is not None:
        raise failure
    return EngineDead(f"The engine process {describe_exit(exited.result())}.")
