"""A recorder passes everything on, and keeps it."""

from __future__ import annotations

from typing import Any

import pytest

import ramet
from ramet import ProgramError, Recorder, Runtime, UsageError


@ramet.function
def branching(s: ramet.State) -> None:
    s += "Once" + ramet.gen("x", max_tokens=2)
    forks = s.fork(2)
    forks += " upon" + ramet.gen("y", max_tokens=2)
    forks.join()
    s += ramet.select("z", ["a", "b"])


def test_calls_are_kept_with_prompts_answers_and_order(exact: Any) -> None:
    recorder = Recorder(exact)
    state = branching.run(backend=recorder, temperature=0)
    first, *branches, choice = recorder.calls
    assert first.generated is not None and first.generated.samples[0].text == state["x"]
    assert [call.prompt.text for call in branches] == [" upon", " upon"]
    assert first.ended is not None
    assert all(first.ended < call.sent < (call.ended or 0) for call in branches)
    assert choice.scored is not None and choice.prompt.ids[:4] == branches[0].prompt.ids[:4]
    assert all(call.seconds > 0 and call.error is None for call in recorder.calls)
    assert state.text() == branching.run(backend=exact, temperature=0).text()


def test_failures_are_kept_and_raised(runtime: Runtime) -> None:
    recorder = Recorder(runtime)

    @ramet.function
    def wrong(s: ramet.State) -> None:
        s += "x" + ramet.gen("y", temperature=99)

    with pytest.raises(ProgramError):
        wrong.run(backend=recorder)
    (call,) = recorder.calls
    assert call.generated is None and call.error is not None and call.ended is not None


def test_what_the_backend_refuses_is_refused(backend: Any) -> None:
    def refuse(params: Any) -> None:
        raise UsageError("no")

    recorder = Recorder(backend)
    backend.refuses = refuse
    with recorder as made, pytest.raises(UsageError, match="no"):
        branching.run(backend=made)


def test_what_is_retained_is_retained_by_the_backend(backend: Any) -> None:
    recorder = Recorder(backend)

    @ramet.function
    def waits(s: ramet.State) -> None:
        s += "x" + ramet.gen("y")
        s.retain(30)

    waits.run(backend=recorder)
    assert backend.num_retained == 1 and len(recorder.calls) == 1
