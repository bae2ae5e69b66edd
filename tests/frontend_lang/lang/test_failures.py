"""Programs fail loudly: what SGLang's frontend (0.5.23) swallows, drops, or hangs on.

What goes wrong there, and where it is tested here, in this file unless another is named:

    reads hang after a failure                   after_a_failure_nothing_hangs_and_every_read_raises
    run hides failures, reads raise KeyError     run_raises_and_brings_what_there_was
    a parent does not learn of a branch's        a_branch_that_fails_fails_its_parent_at_the_join
    concate_and_append has no route              test_exact: branches_that_are_appended_keep_…
    the caller's list of stops grows             the_callers_lists_stay_as_they_are
    a log-probability of 0.0 counts as missing   a_certain_token_counts_in_the_mean
    a block that raises stays open               a_block_is_closed_when_it_raises
    branches lose meta data                      branches_keep_parameters_facts_and_the_system_message
    branches, and bind, lose the speculation     test_speculation: branches_have_the_guess_…;
                                                 test_sglang: a_program_keeps_its_function_and_…
    branches lose pictures                       test_sglang: pictures_are_refused_before_anything_…
    copies of parameters lose regex and dtype    test_sglang: a_form_survives_the_runs_parameters_…
    gens without a name share one                gens_without_a_name_do_not_share_one
    speculation compares characters to tokens    test_speculation: a_limit_holds_as_if_nothing_…
    the system message is lost on the second gen branches_keep_parameters_facts_and_the_system_message
    a thread for every state                     test_concurrency
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

import ramet as sgl
from ramet import ProgramCancelled, ProgramError, UnknownVariable, UsageError
from ramet.lang.choices import token_length_normalized


class Broken(Exception):
    """What the backend fails with."""


def breaks_on(word: str) -> Any:
    def reply(prompt: str) -> str:
        if word in prompt:
            raise Broken(word)
        return "ok"

    return reply


def test_after_a_failure_nothing_hangs_and_every_read_raises(backend: Any) -> None:
    backend.reply = breaks_on("bad")
    raised = []

    @sgl.function
    def program(s: sgl.State) -> None:
        s += "bad" + sgl.gen("x")
        s += "more" + sgl.gen("y")
        for read in (lambda: s["x"], lambda: s["y"], s.text, s.messages, s.sync):
            with pytest.raises(ProgramError, match="Broken: bad") as error:
                read()
            raised.append(error.value)

    with pytest.raises(ProgramError, match="the program failed: Broken: bad") as at_run:
        program.run()
    assert isinstance(at_run.value.__cause__, Broken)
    assert len(raised) == 5 and len(backend.requests) == 1


def test_run_raises_and_brings_what_there_was(backend: Any) -> None:
    backend.reply = breaks_on("bad")

    @sgl.function
    def program(s: sgl.State) -> None:
        s += sgl.gen("x")
        s += "bad" + sgl.gen("y")

    with pytest.raises(ProgramError) as error:
        program.run()
    assert error.value.state is not None
    assert error.value.state["x"] == "ok"
    assert isinstance(error.value.state.error(), Broken)


def test_a_branch_that_fails_fails_its_parent_at_the_join(backend: Any) -> None:
    backend.reply = breaks_on("bad")

    @sgl.function
    def program(s: sgl.State) -> None:
        forks = s.fork(3)
        forks += ["good", "bad", "good"]
        forks += sgl.gen("x")
        forks.join()
        s += sgl.gen("y")

    with pytest.raises(ProgramError, match=r"Branch fork0\[1\] failed: Broken: bad") as error:
        program.run()
    assert error.value.state is not None and error.value.state.error() is not None


def test_a_branch_that_nobody_joins_or_reads_is_not_forgotten(backend: Any) -> None:
    backend.reply = breaks_on("bad")

    @sgl.function
    def program(s: sgl.State) -> None:
        forks = s.fork(2)
        forks += ["good", "bad"]
        forks += sgl.gen("x")

    with pytest.raises(ProgramError, match=r"branch fork0\[1\]"):
        program.run()


def test_a_failure_that_the_body_has_caught_is_dealt_with(backend: Any) -> None:
    backend.reply = breaks_on("bad")

    @sgl.function
    def program(s: sgl.State) -> None:
        forks = s.fork(2)
        forks += ["good", "bad"]
        forks += sgl.gen("x")
        for fork in forks:
            try:
                s["found"] = fork["x"]
            except ProgramError as error:
                assert error.failed is fork

    assert program.run()["found"] == "ok"


def test_a_branch_of_a_failed_state_fails_like_it(backend: Any) -> None:
    backend.reply = breaks_on("bad")

    @sgl.function
    def program(s: sgl.State) -> None:
        s += "bad" + sgl.gen("x")
        (fork,) = s.fork(1)
        fork += sgl.gen("y")
        with pytest.raises(ProgramError, match="Broken"):
            fork["y"]

    with pytest.raises(ProgramError):
        program.run()


def test_the_callers_lists_stay_as_they_are(backend: Any) -> None:
    stop, choices = ["\n"], ["a", "b"]

    @sgl.function
    def program(s: sgl.State) -> None:
        s += sgl.user("q")
        s += sgl.assistant(sgl.gen("x", stop=stop))
        s += sgl.assistant(sgl.gen("y", choices=choices))

    for _ in range(3):
        program.run(stop=stop)
    assert stop == ["\n"] and choices == ["a", "b"]
    assert all(request.params.stop == ("\n",) for request in backend.requests)


def test_a_certain_token_counts_in_the_mean() -> None:
    assert token_length_normalized.score([[0.0, -2.0], [0.0]], [[], []]) == [-1.0, 0.0]


@pytest.mark.parametrize("kind", ["user", "system", "assistant", "var_scope"])
def test_a_block_is_closed_when_it_raises(backend: Any, kind: str) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        block = s.var_scope("part") if kind == "var_scope" else getattr(s, kind)()
        with pytest.raises(ZeroDivisionError), block:
            s += "inside"
            raise ZeroDivisionError
        s += sgl.user("outside")

    state = program.run()
    if kind == "var_scope":
        assert state["part"] == "inside"
    else:
        assert state.messages()[0] == {"role": kind, "content": "inside"}
    assert state.messages()[-1] == {"role": "user", "content": "outside"}


def test_a_message_inside_a_message_is_an_error(backend: Any) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        with s.user():
            s += sgl.assistant(sgl.gen("x"))

    with pytest.raises(ProgramError, match="inside the user message"):
        program.run()


def test_a_message_ends_as_what_it_began(backend: Any) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        s += sgl.user_begin() + "q" + sgl.assistant_end()
        s += sgl.gen("x")

    with pytest.raises(
        ProgramError, match="user message is open, and cannot end as one of assistant"
    ):
        program.run()
    with pytest.raises(UsageError, match="user message is open"):
        program.trace()


@pytest.mark.parametrize(("kind", "text"), [(bool, "Tru"), (str, '"abc'), (str, '"'), (int, "+")])
def test_a_value_whose_text_was_cut_is_an_error_and_no_other_value(
    backend: Any, kind: type, text: str
) -> None:
    backend.reply = lambda prompt: text

    @sgl.function
    def program(s: sgl.State) -> None:
        s += sgl.gen("x", type=kind, max_tokens=2)

    with pytest.raises(ProgramError, match="is no value of the type asked for"):
        program.run()


def test_branches_keep_parameters_facts_and_the_system_message(backend: Any) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        s += sgl.system("be kind")
        s += sgl.user("q") + sgl.assistant(sgl.gen("x"))
        (fork,) = s.fork(1)
        assert fork.meta("x")["completion_tokens"] == 2
        fork += sgl.user("r") + sgl.assistant(sgl.gen("y"))
        assert fork.messages()[0] == {"role": "system", "content": "be kind"}
        s["y_text"] = fork.text()

    state = program.run(temperature=0.25)
    assert all(request.params.temperature == 0.25 for request in backend.requests)
    assert state["y_text"].startswith("<system>be kind</system>")


def test_gens_without_a_name_do_not_share_one(backend: Any) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        s += "a" + sgl.gen() + "b" + sgl.gen()

    state = program.run()
    assert state.text() == "aokbok"
    with pytest.raises(UnknownVariable):
        state[None]  # type: ignore[index]


def test_what_the_body_raises_comes_out_and_ends_its_requests(backend: Any) -> None:
    backend.delay = 30

    @sgl.function
    def program(s: sgl.State) -> None:
        forks = s.fork(3)
        forks += sgl.gen("x")
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        program.run()
    assert backend.num_live == 0


def test_a_gen_has_a_time_limit(backend: Any) -> None:
    backend.delay = 30

    @sgl.function
    def program(s: sgl.State) -> None:
        s += sgl.gen("x", timeout=0.02)

    with pytest.raises(ProgramError, match="The time limit of 0.02 seconds passed"):
        program.run()
    assert backend.cancelled == 1


def test_a_program_has_a_time_limit(backend: Any) -> None:
    backend.delay = 30

    @sgl.function
    def program(s: sgl.State) -> None:
        s += sgl.gen("x")
        s["x"]

    started = time.monotonic()
    with pytest.raises(ProgramCancelled, match=r"time limit of 0\.05 seconds"):
        program.run(timeout=0.05)
    assert time.monotonic() - started < 5 and backend.cancelled == 1


async def test_cancelling_a_program_cancels_its_requests(backend: Any) -> None:
    backend.delay = 30

    @sgl.function
    def program(s: sgl.State) -> None:
        forks = s.fork(4)
        forks += sgl.gen("x")
        forks.join()
        s["x"]

    task = asyncio.ensure_future(program.arun())
    while backend.num_live < 4:
        await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    while backend.num_live:
        await asyncio.sleep(0.005)
    assert backend.cancelled == 4


def test_what_a_backend_cannot_do_is_said_before_anything_is_sent(backend: Any) -> None:
    def refuse(params: Any) -> None:
        if params.regex is not None:
            raise sgl.Unsupported("no regex")

    backend.refuses = refuse

    @sgl.function
    def program(s: sgl.State) -> None:
        s += sgl.gen("x") + sgl.gen("y", regex="a+")

    with pytest.raises(sgl.Unsupported, match="no regex"):
        program.run()
    assert backend.requests == []


def test_reading_before_it_is_there_in_an_async_body_is_an_error(backend: Any) -> None:
    backend.delay = 0.01

    @sgl.function
    async def program(s: sgl.State) -> None:
        s += sgl.gen("x")
        with pytest.raises(UsageError, match="await"):
            s["x"]
        assert await s.get("x") == "ok" and s["x"] == "ok"

    assert program.run()["x"] == "ok"


def test_a_failing_program_leaves_no_thread_behind(backend: Any) -> None:
    backend.reply = breaks_on("")

    @sgl.function
    def program(s: sgl.State) -> None:
        s += sgl.gen("x")

    with pytest.raises(ProgramError):
        program.run()
    before = threading.active_count()
    for _ in range(20):
        with pytest.raises(ProgramError):
            program.run()
    assert threading.active_count() == before
