"""Many programs at once: async, batches, streams, and no thread for any of them."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest

import ramet as sgl
from ramet import ProgramError, UnknownVariable, UsageError


@sgl.function
def branching(s: sgl.State, number: int) -> None:
    s += f"<{number}>" + sgl.gen("first")
    forks = s.fork(2)
    forks += ["a", "b"]
    forks += sgl.gen("part")
    forks.join()
    s["all"] = s["first"] + "".join(s["part"])


def numbered(prompt: str) -> str:
    return f"[{prompt.partition('<')[2].partition('>')[0]}{prompt[-1]}]"


async def test_a_thousand_branching_programs_need_no_thread(backend: Any) -> None:
    backend.reply, backend.delay = numbered, 0.5
    await branching.arun(number=0)
    before, most = threading.active_count(), 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, threading.active_count())
            await asyncio.sleep(0.01)

    watcher = asyncio.ensure_future(watch())
    states = await asyncio.gather(*[branching.arun(number=i) for i in range(1000)])
    watcher.cancel()
    assert most <= before
    for i, state in enumerate(states):
        assert state["all"] == f"[{i}>][{i}a][{i}b]"
    assert backend.most_live > 500


def test_a_batch_is_in_order_and_bounded(backend: Any) -> None:
    backend.reply, backend.delay = numbered, 0.01
    before = threading.active_count()
    states = branching.run_batch([{"number": i} for i in range(40)], num_threads=8)
    assert [state["first"] for state in states] == [f"[{i}>]" for i in range(40)]
    assert 8 <= backend.most_live <= 16
    assert threading.active_count() <= before + 1


def test_a_batch_takes_lists_of_values_and_shows_progress(
    backend: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    backend.reply = numbered
    states = branching.run_batch([[3], [4]], progress_bar=True)
    assert [state["first"] for state in states] == ["[3>]", "[4>]"]
    assert "100%" in capsys.readouterr().err
    with pytest.raises(UsageError):
        branching.run_batch([5])


def test_a_batch_can_be_iterated_over_and_left(backend: Any) -> None:
    backend.reply, backend.delay = numbered, 0.005
    found = []
    states = branching.run_batch(
        [{"number": i} for i in range(100)], num_threads=2, generator_style=True
    )
    for state in states:
        found.append(state["first"])
        if len(found) == 3:
            states.close()
            break
    assert found == ["[0>]", "[1>]", "[2>]"]
    assert len(backend.requests) < 60


def test_a_batch_ends_at_the_first_failure_or_returns_it(backend: Any) -> None:
    def reply(prompt: str) -> str:
        if "<3>" in prompt:
            raise RuntimeError("three")
        return "x"

    backend.reply = reply
    calls = [{"number": i} for i in range(6)]
    with pytest.raises(ProgramError, match="three"):
        branching.run_batch(calls)
    states = branching.run_batch(calls, errors="return")
    assert [state.error() is not None for state in states] == [i == 3 for i in range(6)]
    with pytest.raises(ProgramError, match="three"):
        states[3]["first"]


async def test_a_batch_is_async_too(backend: Any) -> None:
    backend.reply, backend.delay = numbered, 0.005
    states = await branching.arun_batch([{"number": i} for i in range(20)], concurrency=5)
    assert [state["first"] for state in states] == [f"[{i}>]" for i in range(20)]
    assert backend.most_live <= 10


async def test_an_async_body_runs_on_the_callers_loop(backend: Any) -> None:
    loop = asyncio.get_running_loop()

    @sgl.function
    async def program(s: sgl.State) -> str:
        assert asyncio.get_running_loop() is loop
        s += "q " + sgl.gen("x")
        forks = s.fork(2)
        forks += sgl.gen("y")
        forks.join()
        assert await s.get("y") == ["ok", "ok"]
        assert await s.async_text() == "q ok"
        assert await s.async_messages() == []
        assert (await s.get_meta("x"))["finish_reason"] == "stop"
        with pytest.raises(UnknownVariable):
            await s.get("z")
        return str(await s.get("x"))

    state = await program.arun()
    assert state.ret_value == "ok" and state["x"] == "ok" and state.text() == "q ok"


def test_an_async_body_runs_without_a_loop_of_the_callers(backend: Any) -> None:
    @sgl.function
    async def program(s: sgl.State, n: int) -> None:
        s += sgl.gen("x")
        s["n"] = n + len(await s.get("x"))

    assert program.run(n=1)["n"] == 3
    assert [state["n"] for state in program.run_batch([{"n": i} for i in range(5)])] == [
        2, 3, 4, 5, 6
    ]  # fmt: skip


@sgl.function
def choosing(s: sgl.State) -> None:
    s += "I pick " + sgl.gen("type", choices=["apple", "orange"])
    if s["type"] == "apple":
        s += " colour " + sgl.gen("value", max_tokens=5)
    else:
        s += " shape " + sgl.gen("value", max_tokens=5)


def test_a_program_is_followed_as_it_writes(backend: Any) -> None:
    backend.reply = lambda prompt: "red, I think"
    state = choosing.run(stream=True)
    assert "".join(state.text_iter()) == "I pick apple colour red, "
    assert list(state.text_iter()) == ["I pick ", "apple", " colour ", *"red, "]
    assert state.text() == "I pick apple colour red, "


def test_one_variable_is_followed_even_before_it_is_known(backend: Any) -> None:
    state = choosing.run(stream=True)
    assert list(state.text_iter("type")) == ["apple"]
    assert "".join(state.text_iter(var_name="value")) == "ok"
    with pytest.raises(UnknownVariable):
        list(state.text_iter("nope"))


async def test_a_program_is_followed_on_a_loop(backend: Any) -> None:
    state = await choosing.arun(stream=True)
    assert [piece async for piece in state.text_async_iter("value")] == ["o", "k"]
    pairs = [pair async for pair in state.text_async_iter("type", return_meta_data=True)]
    assert pairs[0][0] == "apple" and "scores" in pairs[0][1]
    threaded = choosing.run(stream=True)
    assert "".join([p async for p in threaded.text_async_iter()]) == "I pick apple colour ok"


def test_roles_are_followed_in_the_order_in_which_the_model_reads_them(backend: Any) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        s += sgl.user("q") + sgl.assistant(sgl.gen("a"))
        s += sgl.user("r") + sgl.assistant(sgl.gen("b"))

    state = program.run(stream=True)
    assert "".join(state.text_iter()) == state.text()


def test_a_failure_reaches_whoever_follows(backend: Any) -> None:
    def reply(prompt: str) -> str:
        raise RuntimeError("no")

    @sgl.function
    def fails(s: sgl.State) -> None:
        s += "a" + sgl.gen("x")

    @sgl.function
    def raises(s: sgl.State) -> None:
        s += "a"
        raise ZeroDivisionError

    backend.reply = reply
    for name in (None, "x", "other"):
        with pytest.raises(ProgramError, match="no"):
            list(fails.run(stream=True).text_iter(name))
    with pytest.raises(ZeroDivisionError):
        list(raises.run(stream=True).text_iter())


async def test_without_a_stream_the_text_comes_in_one_piece(backend: Any) -> None:
    state = choosing.run()
    assert list(state.text_iter()) == ["I pick apple colour ok"]
    assert list(state.text_iter("value")) == ["ok"]
    assert [piece async for piece in state.text_async_iter("type")] == ["apple"]
    ((text, facts),) = [p async for p in state.text_async_iter("type", return_meta_data=True)]
    assert text == "apple" and "scores" in facts


async def test_finished_programs_leave_nothing_behind(backend: Any) -> None:
    from ramet.lang.executor import Executor

    backend.reply = numbered
    for _ in range(3):
        await asyncio.gather(*[branching.arun(number=i) for i in range(50)])
    await asyncio.sleep(0.05)
    gc.collect()
    backend.requests.clear()
    gc.collect()
    assert sum(type(thing) is Executor for thing in gc.get_objects()) < 10


def test_programs_run_from_inside_programs(backend: Any) -> None:
    @sgl.function
    def inner(s: sgl.State) -> None:
        s += "in" + sgl.gen("x")

    @sgl.function
    def outer(s: sgl.State, n: int) -> None:
        s["inner"] = inner.run()["x"] * n

    assert [s["inner"] for s in outer.run_batch([{"n": 1}, {"n": 2}])] == ["ok", "okok"]


@sgl.function
def expand(s: sgl.State, tip: str, **how: Any) -> str:
    s += f"Expand {tip}:" + sgl.gen("paragraph", **how)
    return tip


def test_programs_that_a_program_runs_go_on_beside_each_other(backend: Any) -> None:
    backend.delay = 0.02
    backend.reply = lambda prompt: prompt[-2:]

    @sgl.function
    def program(s: sgl.State) -> None:
        expanded = [expand(tip=f"tip {i}") for i in range(4)]
        assert [e.ret_value for e in expanded] == [f"tip {i}" for i in range(4)]
        with pytest.raises(UsageError, match="ended"):
            expanded[0].user("more")
        s += "".join(e["paragraph"] for e in expanded)

    (state, other) = program.run_batch([{}, {}])
    assert state.text() == other.text() == "0:1:2:3:"
    assert backend.most_live == 8


@pytest.mark.parametrize("how", ["unread", "read", "raised", "caught"])
def test_a_program_raises_the_failures_of_those_that_it_runs(backend: Any, how: str) -> None:
    def reply(prompt: str) -> str:
        if "bad" in prompt:
            raise RuntimeError("no")
        return "ok"

    @sgl.function
    def fails(s: sgl.State) -> None:
        s += "bad" + sgl.gen("x")
        if how == "raised":
            s["x"]

    @sgl.function
    def program(s: sgl.State) -> None:
        s += sgl.gen("a")
        if how != "caught":
            inner = fails()
            if how == "read":
                inner["x"]
            return
        with pytest.raises(ProgramError, match="no"):
            fails()["x"]

    backend.reply = reply
    if how == "caught":
        assert program.run()["a"] == "ok"
        return
    with pytest.raises(ProgramError, match="no") as error:
        program.run()
    assert error.value.state is not None and error.value.state["a"] == "ok"
    assert ("the program that it has run" in str(error.value)) == (how == "unread")


def test_a_program_that_ends_early_takes_those_that_it_runs_with_it(backend: Any) -> None:
    backend.delay = 30

    @sgl.function
    def program(s: sgl.State, breaks: bool) -> None:
        for i in range(3):
            expand(tip=str(i))
        if breaks:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        program.run(breaks=True)
    with pytest.raises(ProgramError, match="time limit"):
        program.run(breaks=False, timeout=0.05)
    assert backend.num_live == 0
