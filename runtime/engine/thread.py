"""The engine's loop on a thread of this process, for use as a library.

Owns the thread and who waits for which request. It knows neither text nor asyncio: outputs are handed to
a function of the submitter's, on the engine's thread.
"""

from __future__ import annotations

import logging
import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future

from ..errors import EngineDead, InvalidRequest, QueueFull
from ..request import RequestOutput
from .loop import Core, EngineLoop
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

# Called with each output in order, and with EngineDead if none will follow; must return quickly.
Deliver = Callable[[RequestOutput | EngineDead], None]


class Mailbox:
    """Between the submitters, on any threads, and the loop: its `Channel`.

    Args:
        max_live: most requests that may be live; None for any number.
    """

    def __init__(self, max_live: int | None = None) -> None:
        self._max_live = max_live
        self.stats = EngineStats()
        self._inbox: queue.SimpleQueue[ToEngine] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._receivers: dict[str, Deliver] = {}
        self._end: str | None = None

    def post(self, message: ToEngine) -> None:
        """Leave a message for the loop. Takes no lock, so that finalizers may call it anywhere."""
        self._inbox.put(message)

    def submit(self, requests: Sequence[GenerateRequest], deliver: Deliver) -> None:
        """Leave requests for the loop; see `EngineThread.submit`."""
        request_ids = [request.request_id for request in requests]
        with self._lock:
            if self._end is not None:
                raise EngineDead(self._end)
            known = self._receivers.keys()
            if len(set(request_ids)) < len(request_ids) or not known.isdisjoint(request_ids):
                raise InvalidRequest("A request_id is in use already.", param="request_id")
            if self._max_live is not None and len(known) + len(requests) > self._max_live:
                raise QueueFull(
                    f"{len(known)} requests are running or waiting; with {len(requests)} more there "
                    f"would be more than {self._max_live}.",
                    hint="The option max_queue_len lets more of them wait.",
                )
            self._receivers.update(dict.fromkeys(request_ids, deliver))
            for request in requests:
                self._inbox.put(request)

    def receive(self, *, block: bool, timeout: float | None = None) -> list[ToEngine]:
        """Everything that arrived; with `block`, wait until there is something, or for `timeout` seconds."""
        messages: list[ToEngine] = []
        while True:
            try:
                messages.append(self._inbox.get(block and not messages, timeout))
            except queue.Empty:
                return messages

    def send(self, message: StepOutputs) -> None:
        """Hand the outputs to those who wait for them."""
        self.stats = message.stats
        with self._lock:
            deliveries = [(self._receivers.get(o.request_id), o) for o in message.outputs]
            for output in message.outputs:
                if output.finished:
                    self._receivers.pop(output.request_id, None)
        for deliver, output in deliveries:
            if deliver is not None:
                deliver(output)

    def end(self, reason: str) -> None:
        """Tell everybody who waits that nothing will come, and refuse new requests."""
        with self._lock:
            self._end = reason
            receivers, self._receivers = list(self._receivers.values()), {}
        for deliver in dict.fromkeys(receivers):
            deliver(EngineDead(reason))


class EngineThread:
    """An engine on a thread of its own, from construction to `close`.

    Args:
        create_core: makes the core, on the new thread.
        max_live: most requests that may be live; None for any number.

    Raises:
        Exception: whatever `create_core` raised.
    """

    def __init__(self, create_core: Callable[[], Core], max_live: int | None = None) -> None:
        self._mailbox = Mailbox(max_live)
        ready: Future[EngineInfo] = Future()
        # A daemon, or an engine that nobody closed would keep the interpreter from ending.
        self._thread = threading.Thread(
            target=_run, args=(create_core, self._mailbox, ready), name="ramet-engine", daemon=True
        )
        self._thread.start()
        self._finalizer = weakref.finalize(self, _finish, self._mailbox, self._thread)
        self.info = ready.result()

    @property
    def stats(self) -> EngineStats:
        """Statistics as of the newest step."""
        return self._mailbox.stats

    def submit(self, requests: Sequence[GenerateRequest], deliver: Deliver) -> None:
        """Hand requests to the engine, all or none. Callable from any thread.

        Raises:
            EngineDead: the engine was closed, or failed.
            QueueFull: more requests would be live than may be.
            InvalidRequest: an id is live already.
        """
        self._mailbox.submit(requests, deliver)

    def abort(self, request_ids: Iterable[str]) -> None:
        """End these requests; each that is live still gets its last output. Callable from anywhere."""
        self._mailbox.post(Abort(list(request_ids)))

    def post(self, message: Retain | Release) -> None:
        """Hand a message to the engine, behind what was submitted before. Callable from anywhere."""
        self._mailbox.post(message)

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix that no running request holds; later requests find none."""
        self._mailbox.post(ResetPrefixCache())

    def close(self) -> None:
        """End the engine after its current step and join the thread. Safe to call twice.

        Whoever still waits gets EngineDead.
        """
        self._finalizer()


def _run(create_core: Callable[[], Core], mailbox: Mailbox, ready: Future[EngineInfo]) -> None:
    try:
        core = create_core()
    except BaseException as error:
        mailbox.end("The engine could not start.")
        ready.set_exception(error)
        return
    ready.set_result(core.info)
    reason = "The engine was closed."
    try:
        EngineLoop(core, mailbox).run()
    except Exception:
        logger.critical("The engine ends.", exc_info=True)
        reason = "The engine failed and has ended; the log has the reason."
    mailbox.end(reason)


def _finish(mailbox: Mailbox, thread: threading.Thread) -> None:
    mailbox.post(Shutdown())
    # The engine's own thread may be the one that drops the last reference.
    if thread is not threading.current_thread():
        thread.join()
