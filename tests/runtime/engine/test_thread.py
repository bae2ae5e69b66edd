"""The engine on a thread: delivery, ends and failures."""

from __future__ import annotations

import gc
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ramet.runtime.engine.thread import EngineThread
from ramet.runtime.errors import ConfigError, EngineDead, InvalidRequest
from ramet.runtime.request import FinishReason

Items = queue.SimpleQueue[Any]


@pytest.fixture
def engine(fake_core: Any) -> Iterator[EngineThread]:
    """A running engine thread."""
    thread = EngineThread(fake_core.FakeCore)
    yield thread
    thread.close()


def take(items: Items) -> Any:
    return items.get(timeout=10)


def num_engine_threads() -> int:
    return sum(thread.name == "ramet-engine" for thread in threading.enumerate())


def test_outputs_are_delivered_in_order_on_the_engines_thread(
    engine: EngineThread, make_request: Any
) -> None:
    names: list[str] = []
    items: Items = queue.SimpleQueue()

    def deliver(item: Any) -> None:
        names.append(threading.current_thread().name)
        items.put(item)

    engine.submit([make_request([900], max_tokens=300)], deliver)
    assert [take(items).token_ids[0] for _ in range(300)] == [i % 256 for i in range(300)]
    assert set(names) == {"ramet-engine"}
    assert engine.info.model_name == "fake"
    assert engine.stats.steps == 300


def test_many_threads_may_submit_at_once(engine: EngineThread, make_request: Any) -> None:
    requests = [make_request([i], max_tokens=5) for i in range(40)]
    answers: dict[str, list[int]] = {request.request_id: [] for request in requests}

    def submit(request: Any) -> None:
        items: Items = queue.SimpleQueue()
        engine.submit([request], items.put)
        answers[request.request_id] = [take(items).token_ids[0] for _ in range(5)]

    threads = [threading.Thread(target=submit, args=(request,)) for request in requests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert [answers[request.request_id] for request in requests] == [[i] * 5 for i in range(40)]


def test_an_aborted_request_gets_its_last_output(engine: EngineThread, make_request: Any) -> None:
    items: Items = queue.SimpleQueue()
    request = make_request([905])
    engine.submit([request], items.put)
    engine.abort([request.request_id, "nobody"])
    assert take(items).finish_reason is FinishReason.ABORT


def test_an_id_that_is_live_raises(engine: EngineThread, make_request: Any) -> None:
    items: Items = queue.SimpleQueue()
    request = make_request([905])
    engine.submit([request], items.put)
    with pytest.raises(InvalidRequest):
        engine.submit([request], items.put)
    with pytest.raises(InvalidRequest):
        engine.submit([make_request(request_id="x"), make_request(request_id="x")], items.put)


def test_close_joins_the_thread_and_tells_who_waits(fake_core: Any, make_request: Any) -> None:
    before = num_engine_threads()
    engine = EngineThread(fake_core.FakeCore)
    items: Items = queue.SimpleQueue()
    engine.submit([make_request([905]), make_request([905])], items.put)
    engine.close()
    engine.close()
    assert num_engine_threads() == before
    ended = take(items)
    while not isinstance(ended, EngineDead):
        ended = take(items)
    assert "closed" in ended.message
    assert items.empty()
    with pytest.raises(EngineDead, match="closed"):
        engine.submit([make_request()], items.put)


def test_an_engine_that_is_dropped_ends_its_thread(fake_core: Any) -> None:
    before = num_engine_threads()
    engine = EngineThread(fake_core.FakeCore)
    assert num_engine_threads() == before + 1
    del engine
    gc.collect()
    assert num_engine_threads() == before


def test_what_the_core_raises_while_it_is_made_is_raised(fake_core: Any) -> None:
    def refuse() -> Any:
        raise ConfigError("too big")

    before = num_engine_threads()
    with pytest.raises(ConfigError, match="too big"):
        EngineThread(refuse)
    gc.collect()
    assert num_engine_threads() == before


def test_a_failure_that_cannot_be_cleaned_up_ends_the_engine(
    engine: EngineThread, make_request: Any, caplog: pytest.LogCaptureFixture
) -> None:
    items: Items = queue.SimpleQueue()
    engine.submit([make_request([902])], items.put)
    ended = take(items)
    assert isinstance(ended, EngineDead)
    assert "failed" in ended.message
    assert "this step was asked to fail" in caplog.text
    with pytest.raises(EngineDead, match="failed"):
        engine.submit([make_request()], items.put)


def test_resetting_the_cache_reaches_the_core(engine: EngineThread, make_request: Any) -> None:
    items: Items = queue.SimpleQueue()
    engine.reset_prefix_cache()
    engine.submit([make_request(max_tokens=1)], items.put)
    take(items)
    assert engine.stats.evicted_blocks == 1


def test_an_engine_that_nobody_closed_does_not_keep_the_interpreter(fake_core: Any) -> None:
    code = (
        "from fake_core import FakeCore\n"
        "from ramet.runtime.engine.messages import GenerateRequest\n"
        "from ramet.runtime.engine.thread import EngineThread\n"
        "from ramet.runtime.request import SamplingParams\n"
        "engine = EngineThread(FakeCore)\n"
        "request = GenerateRequest(request_id='a', prompt_ids=[905], params=SamplingParams())\n"
        "engine.submit([request], lambda item: None)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
