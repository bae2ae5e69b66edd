"""Awaiting a function that blocks."""

from __future__ import annotations

import asyncio
import threading

import pytest

from ramet.runtime.engine.background import in_background


async def test_the_result_arrives_and_the_loop_goes_on_meanwhile() -> None:
    gate = threading.Event()
    future = in_background(lambda: gate.wait(10), "gate")
    await asyncio.sleep(0)
    assert not future.done()
    gate.set()
    assert await future is True


async def test_an_error_arrives() -> None:
    def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await in_background(fail, "fail")


async def test_a_cancelled_future_ignores_the_result() -> None:
    gate = threading.Event()
    future = in_background(lambda: gate.wait(10), "gate")
    future.cancel()
    gate.set()
    await asyncio.sleep(0.05)
    assert future.cancelled()


def test_a_loop_that_was_closed_is_left_alone() -> None:
    gate, left = threading.Event(), threading.Event()

    def wait() -> None:
        gate.wait(10)
        left.set()

    async def begin() -> None:
        in_background(wait, "wait")

    asyncio.run(begin())
    gate.set()
    assert left.wait(10)
