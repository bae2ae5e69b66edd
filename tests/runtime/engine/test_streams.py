"""One consumer's stream: order, end, failure and abort."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

import pytest

from ramet.runtime.engine.streams import RequestStream
from ramet.runtime.errors import EngineDead
from ramet.runtime.request import FinishReason, RequestOutput


def output(request_id: str, token_id: int, *, last: bool = False) -> RequestOutput:
    return RequestOutput(
        request_id=request_id,
        token_ids=(token_id,),
        finish_reason=FinishReason.STOP if last else None,
    )


def make_stream(*request_ids: str) -> tuple[RequestStream, list[list[str]]]:
    aborted: list[list[str]] = []
    return RequestStream(request_ids, aborted.append), aborted


async def test_outputs_come_in_the_order_of_arrival_until_all_have_finished() -> None:
    stream, _ = make_stream("a", "b")
    outputs = [output("a", 1), output("b", 2), output("a", 3, last=True), output("b", 4, last=True)]
    for one in outputs:
        stream.deliver(one)
    assert [one async for one in stream] == outputs


async def test_a_waiting_consumer_wakes() -> None:
    stream, _ = make_stream("a")
    waiting = asyncio.create_task(anext(stream))
    await asyncio.sleep(0)
    assert not waiting.done()
    stream.deliver(output("a", 1))
    assert (await waiting).token_ids == (1,)


async def test_it_says_whether_an_output_has_come_that_was_not_read() -> None:
    stream, _ = make_stream("a")
    seen = [stream.has_unread]
    stream.deliver(output("a", 1))
    stream.deliver(output("a", 2))
    for _ in range(2):
        seen.append(stream.has_unread)
        await anext(stream)
    assert [*seen, stream.has_unread] == [False, True, True, False]


async def test_a_failure_is_raised_after_what_has_arrived() -> None:
    stream, aborted = make_stream("a")
    stream.deliver(output("a", 1))
    stream.fail("it died")
    assert (await anext(stream)).token_ids == (1,)
    for _ in range(2):
        with pytest.raises(EngineDead, match="it died"):
            await anext(stream)
    stream.abort()
    assert aborted == []


async def test_a_failure_after_the_last_output_is_none() -> None:
    stream, _ = make_stream("a")
    stream.deliver(output("a", 1, last=True))
    stream.fail("it died")
    assert len([one async for one in stream]) == 1


async def test_abort_names_what_has_not_finished_and_only_once() -> None:
    stream, aborted = make_stream("a", "b", "c")
    stream.deliver(output("b", 1, last=True))
    stream.abort()
    stream.abort()
    assert aborted == [["a", "c"]]


async def test_abort_gives_what_was_not_read_and_only_once() -> None:
    stream, _ = make_stream("a")
    outputs = [output("a", token_id) for token_id in range(3)]
    for one in outputs:
        stream.deliver(one)
    await anext(stream)
    assert [one for one, _ in stream.abort()] == outputs[1:]
    assert stream.abort() == []


async def test_abort_ends_the_iteration_of_a_waiting_consumer() -> None:
    stream, _ = make_stream("a")
    waiting = asyncio.create_task(anext(stream, None))
    await asyncio.sleep(0)
    stream.abort()
    assert await waiting is None


async def test_a_stream_of_nothing_is_at_its_end() -> None:
    stream, _ = make_stream()
    assert [one async for one in stream] == []


async def test_a_patient_consumer_is_woken_by_the_end_of_a_request_and_gets_everything() -> None:
    stream = RequestStream(["a", "b"], lambda ids: None, is_patient=True)
    waiting = asyncio.create_task(anext(stream))
    await asyncio.sleep(0)
    outputs = [output("a", 1), output("b", 2), output("a", 3, last=True)]
    for one in outputs[:2]:
        stream.deliver(one)
        await asyncio.sleep(0)
        assert not waiting.done()
    stream.deliver(outputs[2])
    assert [await waiting, await anext(stream), await anext(stream)] == outputs


async def test_a_patient_consumer_does_not_let_outputs_pile_up() -> None:
    stream = RequestStream(["a"], lambda ids: None, is_patient=True)
    waiting = asyncio.create_task(anext(stream))
    await asyncio.sleep(0)
    num_delivered = 0
    while not waiting.done():
        stream.deliver(output("a", num_delivered))
        num_delivered += 1
        await asyncio.sleep(0)
        assert num_delivered < 1000
    assert (await waiting).token_ids == (0,)


async def test_it_tells_when_an_output_had_come() -> None:
    stream, _ = make_stream("a")
    times = [time.perf_counter()]
    for token_id in range(2):
        stream.deliver(output("a", token_id))
        times.append(time.perf_counter())
    for before, after in pairwise(times):
        await anext(stream)
        assert before <= stream.arrived <= after
