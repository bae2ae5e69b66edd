"""`serve`: the HTTP server and the engine's process as one program, from the first byte to exit code 0.

Owns the order of start and end:

1. take the port and open the model's files, so that mistakes show before anything is loaded;
2. answer HTTP (`/health` 200, `/ready` 503) while the engine loads;
3. say where it serves, once it does;
4. at SIGTERM or SIGINT refuse new requests, let running ones finish for `shutdown_timeout` seconds,
   abort the rest and leave. A second signal ends everything at once.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import uvicorn
import uvloop

from ..config import ServerConfig
from ..engine.background import in_background
from ..engine.factory import default_cache_dir, open_source
from ..engine.heap import settle
from ..engine.messages import EngineInfo
from ..engine.process import EngineProcess
from ..errors import ConfigError, InvalidRequest
from ..memory_plan import blocks_for
from ..sources.base import ModelSource
from ..text.chat_template import ChatTemplate
from ..text.tokenizer import Tokenizer
from ..tools.form import form_of
from .app import create_app
from .lifecycle import Lifecycle
from .model import ServedModel

logger = logging.getLogger(__name__)

# Longer than the idle time of usual load balancers, so that they close first and lose no request.
KEEP_ALIVE_SECONDS = 75
# After the engine has stopped, answers only have to be written out.
_FLUSH_SECONDS = 5
_DRAIN_POLL_SECONDS = 0.05
_BACKLOG = 2048


def serve(
    config: ServerConfig,
    *,
    cache_dir: Path | None = None,
    process: subprocess.Popen[bytes] | None = None,
) -> int:
    """Serve a model that is on this machine until a signal ends it; returns the exit code.

    Once it is ready the garbage collector is on, even if it was off before.

    Args:
        config: what to serve, where and for whom.
        cache_dir: folder of downloaded models; None means `~/.cache/ramet`.
        process: what `engine.spawn` started for the engine's first start; None starts one then.

    Raises:
        ConfigError: the address cannot be used, or the model cannot work with this configuration.
        ModelNotFound: the model is not on this machine.
        EngineDead: the engine's process died while it loaded.
    """
    cache_dir = cache_dir or default_cache_dir()
    with listen(config.host, config.port) as listener:
        # The source is let go: a vocabulary as a file's header has it is not needed again.
        model = served_model(config, open_source(config.engine, cache_dir))
        client = EngineProcess(config.engine, cache_dir, process=process)
        return run_server(config, listener, model, client)


def run_server(
    config: ServerConfig, listener: socket.socket, model: ServedModel, client: EngineProcess
) -> int:
    """Serve through an engine that is not started yet; see `serve`."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_Service(config, model, client).run(listener))


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket; connections queue until somebody accepts them.

    Raises:
        ConfigError: the address is taken, not ours to use, or not known.
    """
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ]
        return socket.create_server(address[4][:2], family=address[0], backlog=_BACKLOG)
    except socket.gaierror as error:
        raise ConfigError(
            f"The host {host!r} is not known: {error.strerror}.", param="host"
        ) from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"Port {port} on {host} is in use already.",
                param="port",
                hint="Stop the program that uses it, or choose another one with --port.",
            ) from error
        raise ConfigError(
            f"Cannot listen on {host}:{port}: {error.strerror}.",
            param="port",
            hint="Choose others with --host and --port.",
        ) from error


def served_model(config: ServerConfig, source: ModelSource) -> ServedModel:
    """The model as HTTP clients see it.

    Raises:
        ConfigError: its tokenizer cannot be read.
    """
    files = source.tokenizer()
    tokenizer = Tokenizer(files)
    return ServedModel(
        name=config.served_model_name or config.engine.model.model,
        tokenizer=tokenizer,
        chat_template=ChatTemplate(tokenizer),
        tokenizer_config=files.config,
        version=_version(),
        tool_form=form_of(tokenizer, config.tool_call_parser),
    )


def ready_line(name: str, address: tuple[str, int], info: EngineInfo) -> str:
    """Where the model is served, and how much fits: one line."""
    host, port = address
    shown = f"[{host}]" if ":" in host else host
    num_requests = info.num_blocks // blocks_for(info.max_model_len, info.block_size)
    weights = f"{info.quantization} weights, " if info.quantization else ""
    kept_as = f" of {info.kv_cache_dtype}" if info.kv_cache_dtype != info.dtype else ""
    return (
        f"Serving {name} at http://{shown}:{port} "
        f"(context {info.max_model_len:,} tokens; "
        f"KV cache {info.num_blocks * info.block_size:,} tokens{kept_as}, "
        f"room for {num_requests:,} {'request' if num_requests == 1 else 'requests'} of full length; "
        f"{weights}{info.dtype} on {info.device}, loaded in {info.load_seconds:.1f} s)"
    )


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: when to stop is `_Service`'s to say."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class _Service:
    def __init__(self, config: ServerConfig, model: ServedModel, client: EngineProcess) -> None:
        self._config = config
        self._model = model
        self._client = client
        self._lifecycle = Lifecycle(client)
        self._http = _Server(
            uvicorn.Config(
                create_app(config, client, model, self._lifecycle),
                http="httptools",
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                log_level=logging.WARNING,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=_FLUSH_SECONDS,
            )
        )
        self._signalled = asyncio.Event()
        self._hurried = asyncio.Event()
        self._exit_code = 0

    async def run(self, listener: socket.socket) -> int:
        """Everything between the open port and the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        http = asyncio.create_task(self._http.serve(sockets=[listener]))
        work = asyncio.create_task(self._work(listener.getsockname()[:2]))
        hurry = asyncio.create_task(self._hurried.wait())
        try:
            await asyncio.wait({http, work, hurry}, return_when=asyncio.FIRST_COMPLETED)
            if http.done():
                http.result()  # It ends by itself only if it failed.
            if work.done():
                work.result()
        finally:
            await self._end(http, work, hurry)
        return self._exit_code

    async def _work(self, address: tuple[str, int]) -> None:
        """Start the engine, wait for a signal, and let running requests finish."""
        start = asyncio.create_task(self._client.start())
        signalled = asyncio.create_task(self._signalled.wait())
        warm_up = in_background(partial(_warm_up, self._model.chat_template), "warm-up")
        try:
            await asyncio.wait({start, signalled}, return_when=asyncio.FIRST_COMPLETED)
            if start.done():
                info = start.result()
                await warm_up
                print(ready_line(self._model.name, address, info), flush=True)
                await signalled
                await self._drain()
        finally:
            pending: list[asyncio.Future[Any]] = [start, signalled, warm_up]
            for future in pending:
                future.cancel()
            await asyncio.wait(pending)

    async def _drain(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._config.shutdown_timeout
        # Tasks, not live requests: one may not have reached the engine, another be half written.
        tasks = self._http.server_state.tasks
        logger.info(
            "Shutting down. Running requests: %d; they get up to %g seconds to finish.",
            len(tasks),
            self._config.shutdown_timeout,
        )
        while tasks and loop.time() < deadline:
            await asyncio.sleep(_DRAIN_POLL_SECONDS)
        if tasks:
            logger.warning("Requests that did not finish in time and are aborted: %d.", len(tasks))

    async def _end(
        self, http: asyncio.Task[None], work: asyncio.Task[None], hurry: asyncio.Task[bool]
    ) -> None:
        hurried = self._hurried.is_set()
        self._lifecycle.drain()
        work.cancel()
        hurry.cancel()
        self._http.should_exit = True
        self._http.force_exit = hurried
        await self._client.stop(grace=0.0 if hurried else _FLUSH_SECONDS)
        if hurried:
            http.cancel()
        await asyncio.wait({http, work, hurry})

    def _on_signal(self, number: int) -> None:
        self._lifecycle.drain()
        if self._signalled.is_set():
            self._exit_code = 128 + number
            self._hurried.set()
        self._signalled.set()


def _warm_up(chat_template: ChatTemplate) -> None:
    """Render once, since the first rendering imports what takes seconds to import."""
    try:
        chat_template.render([{"role": "user", "content": "Hello"}])
    except InvalidRequest as error:
        logger.info("Chat is not available or needs other messages: %s", error)
    settle()


def _version() -> str:
    try:
        return metadata.version("ramet")
    except metadata.PackageNotFoundError:
        return "unknown"
