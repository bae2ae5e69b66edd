"""Work lasts as long as its client stays."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from ramet.runtime.server.disconnect import while_connected


async def stays() -> dict[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError


async def test_the_result_is_passed_on() -> None:
    async def work() -> int:
        return 7

    assert await while_connected(stays, work()) == 7


async def test_an_error_is_passed_on() -> None:
    async def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await while_connected(stays, work())


async def test_a_client_that_leaves_ends_the_work_before_the_call_returns() -> None:
    ended = False

    async def work() -> None:
        nonlocal ended
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended = True

    messages = [{"type": "http.request"}, {"type": "http.disconnect"}]

    async def leaves() -> dict[str, Any]:
        await asyncio.sleep(0)
        return messages.pop(0)

    with pytest.raises(ClientDisconnect):
        await while_connected(leaves, work())
    assert ended


async def test_cancelling_the_call_ends_the_work() -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    call = asyncio.create_task(while_connected(stays, work()))
    await asyncio.sleep(0.01)
    call.cancel()
    await asyncio.wait({call})
    assert call.cancelled() and ended.is_set()
