"""The loop against a channel that is a list: what it takes, what it sends, and how it fails."""

from __future__ import annotations

from typing import Any

import pytest

from ramet.runtime.engine.loop import MAX_CONSECUTIVE_FAILURES, STEP_FAILED, EngineLoop
from ramet.runtime.engine.messages import (
    Abort,
    ResetPrefixCache,
    Shutdown,
    StepOutputs,
    ToEngine,
)
from ramet.runtime.errors import EngineError
from ramet.runtime.request import FinishReason, RequestOutput


class ScriptedChannel:
    """Hands out one batch of messages per call, then Shutdown; refuses to block on work."""

    def __init__(self, batches: list[list[ToEngine]], core: Any) -> None:
        self.batches = batches
        self.core = core
        self.sent: list[StepOutputs] = []

    def receive(self, *, block: bool, timeout: float | None = None) -> list[ToEngine]:
        assert block == (not self.core.has_work())
        if not self.batches:
            return [Shutdown()] if block else []
        return self.batches.pop(0)

    def send(self, message: StepOutputs) -> None:
        self.sent.append(message)

    @property
    def outputs(self) -> list[RequestOutput]:
        return [output for message in self.sent for output in message.outputs]


def run(core: Any, *batches: list[ToEngine]) -> ScriptedChannel:
    channel = ScriptedChannel(list(batches), core)
    EngineLoop(core, channel).run()
    return channel


def test_one_step_is_one_message(fake_core: Any, make_request: Any) -> None:
    channel = run(fake_core.FakeCore(), [make_request(max_tokens=2), make_request(max_tokens=3)])
    assert [len(message.outputs) for message in channel.sent] == [2, 2, 1]


def test_requests_that_arrive_during_steps_join_them(fake_core: Any, make_request: Any) -> None:
    late = make_request([9], max_tokens=1)
    channel = run(fake_core.FakeCore(), [make_request(max_tokens=3)], [late])
    assert [o.request_id for o in channel.sent[1].outputs][-1] == late.request_id


def test_an_abort_takes_effect_before_the_next_step(fake_core: Any, make_request: Any) -> None:
    request = make_request(max_tokens=100)
    channel = run(fake_core.FakeCore(), [request], [Abort([request.request_id])])
    assert [o.finish_reason for o in channel.outputs] == [None, FinishReason.ABORT]


def test_an_unknown_abort_is_ignored(fake_core: Any) -> None:
    assert run(fake_core.FakeCore(), [Abort(["nobody"])]).outputs == []


def test_changed_statistics_are_sent_when_idle_and_unchanged_ones_are_not(fake_core: Any) -> None:
    channel = run(fake_core.FakeCore(), [ResetPrefixCache()], [Abort(["nobody"])])
    assert [(m.outputs, m.stats.evicted_blocks) for m in channel.sent] == [([], 1)]


def test_shutdown_leaves_the_rest_of_the_inbox(fake_core: Any, make_request: Any) -> None:
    assert run(fake_core.FakeCore(), [Shutdown(), make_request()]).sent == []


def test_a_failed_step_ends_what_the_core_holds_and_the_loop_goes_on(
    fake_core: Any, make_request: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bad, other, later = (make_request([fake_core.Order.FAIL_STEP]), make_request(), make_request())
    core = fake_core.FakeCore()
    channel = ScriptedChannel([[bad, other]], core)
    loop = EngineLoop(core, channel)
    loop.run()
    assert {o.request_id: (o.finish_reason, o.error) for o in channel.outputs if o.finished} == {
        bad.request_id: (FinishReason.ERROR, STEP_FAILED),
        other.request_id: (FinishReason.ERROR, STEP_FAILED),
    }
    assert "this step was asked to fail" in caplog.text
    channel.batches = [[later]]
    loop.run()
    assert channel.outputs[-1].finish_reason is FinishReason.LENGTH


def test_a_failed_step_that_leaves_requests_behind_ends_the_loop(
    fake_core: Any, make_request: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(EngineError, match="failed too"):
        run(fake_core.FakeCore(), [make_request([fake_core.Order.FAIL_STEP_AND_LEAK])])


def test_blocks_that_a_failed_step_leaves_behind_end_the_loop(
    fake_core: Any, make_request: Any, caplog: pytest.LogCaptureFixture
) -> None:
    core = fake_core.FakeCore()
    core.num_leaked_blocks = 3
    with pytest.raises(EngineError, match="still holds 3 blocks"):
        run(core, [make_request([fake_core.Order.FAIL_STEP])])


def test_steps_that_fail_in_a_row_end_the_loop(
    fake_core: Any, make_request: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bad = [[make_request([fake_core.Order.FAIL_STEP])] for _ in range(MAX_CONSECUTIVE_FAILURES)]
    with pytest.raises(EngineError, match="in a row"):
        run(fake_core.FakeCore(), *bad)


def test_failures_with_a_good_step_between_do_not_end_the_loop(
    fake_core: Any, make_request: Any, caplog: pytest.LogCaptureFixture
) -> None:
    batches = [
        [make_request([fake_core.Order.FAIL_STEP]) if i % 2 else make_request(max_tokens=1)]
        for i in range(4 * MAX_CONSECUTIVE_FAILURES)
    ]
    channel = run(fake_core.FakeCore(), *batches)
    assert sum(o.finished for o in channel.outputs) == 4 * MAX_CONSECUTIVE_FAILURES


def test_the_core_rests_only_when_there_is_no_work(fake_core: Any, make_request: Any) -> None:
    core = fake_core.FakeCore()
    run(core, [make_request(max_tokens=5)])
    assert core.num_rests == 2  # before the request came, and after it had ended
