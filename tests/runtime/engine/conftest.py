"""Engines that run the fake core: in this thread's process, or in one of their own."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ramet.runtime.config import EngineConfig, ModelOptions, SchedulerConfig
from ramet.runtime.engine.messages import GenerateRequest
from ramet.runtime.engine.process import EngineProcess, RestartPolicy
from ramet.runtime.errors import RametError
from ramet.runtime.request import SamplingParams

StartEngine = Callable[..., Awaitable[EngineProcess]]
MakeRequest = Callable[..., GenerateRequest]

FOLDER = Path(__file__).parent


@pytest.fixture
def fake_core(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module fake_core, importable by name here and in child processes."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("PYTHONPATH", str(FOLDER))
    return importlib.import_module("fake_core")


@pytest.fixture
def make_engine(fake_core: Any, tmp_path: Path) -> Callable[..., EngineProcess]:
    """Makes an engine process that is not started yet."""

    def make(
        model: str = "steady",
        *,
        max_live: int = 10_000,
        restarts: RestartPolicy | None = None,
    ) -> EngineProcess:
        config = EngineConfig(
            model=ModelOptions(model=model),
            scheduler=SchedulerConfig(max_num_seqs=1, max_queue_len=max_live - 1),
        )
        policy = restarts or RestartPolicy(first_delay=0.01)
        return EngineProcess(config, tmp_path, core="fake_core:create", restarts=policy)

    return make


@pytest.fixture
async def start_engine(
    make_engine: Callable[..., EngineProcess],
) -> AsyncIterator[StartEngine]:
    """Starts engine processes, and stops them after the test."""
    engines: list[EngineProcess] = []

    async def start(*args: Any, **kwargs: Any) -> EngineProcess:
        engine = make_engine(*args, **kwargs)
        engines.append(engine)
        await engine.start()
        return engine

    yield start
    for engine in engines:
        with suppress(RametError):
            await engine.stop()


@pytest.fixture
def make_request() -> MakeRequest:
    """Makes a request with a fresh id."""
    count = 0

    def make(
        prompt_ids: Sequence[int] = (5, 6, 7),
        *,
        request_id: str | None = None,
        max_tokens: int | None = 4,
        **params: Any,
    ) -> GenerateRequest:
        nonlocal count
        count += 1
        return GenerateRequest(
            request_id=request_id or f"r{count}",
            prompt_ids=list(prompt_ids),
            params=SamplingParams(max_tokens=max_tokens, **params),
        )

    return make
