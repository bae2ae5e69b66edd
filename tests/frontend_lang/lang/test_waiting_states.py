"""States that wait keep their prefix, and states that nobody wants end alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

import ramet as sgl
from ramet import ProgramCancelled, ProgramError, Runtime, Unsupported, UsageError


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def call(name: str) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>'


def test_a_tool_finds_its_states_prefix_retained_and_the_end_releases_it(backend: Any) -> None:
    held: list[Any] = []

    def look() -> str:
        """Look around."""
        until(lambda: bool(backend.retained))
        held.append(dict(backend.retained))
        return "found"

    backend.reply = lambda prompt: "done" if "found" in prompt else call("look")

    @sgl.function
    def program(s: sgl.State) -> None:
        s += sgl.user("go")
        s += sgl.tool_loop("answer", tools=[look])

    state = program.run()
    assert state["answer"] == "done"
    ((ids, seconds),) = held[0].values()
    assert bytes(ids).decode().endswith(call("look")) and seconds is None
    assert backend.retained == {}


def test_a_backend_that_cannot_retain_runs_tools_all_the_same(backend: Any) -> None:
    def look() -> str:
        """Look around."""
        return "found"

    @sgl.function
    def program(s: sgl.State) -> None:
        s += sgl.user("go") + sgl.tool_loop("answer", tools=[look])

    backend.reply = lambda prompt: "done" if "found" in prompt else call("look")
    backend.retains = False
    assert program.run()["answer"] == "done" and backend.num_retained == 0

    async def refuse(*_: Any) -> None:
        raise RuntimeError("not now")

    backend.retains, backend.retain = True, refuse
    assert program.run()["answer"] == "done"


def test_a_program_retains_and_releases_a_state_itself(backend: Any) -> None:
    held = []

    @sgl.function
    def program(s: sgl.State) -> None:
        s += "q" + sgl.gen("a")
        s.retain(30)
        s.sync()
        held.append(dict(backend.retained))
        s += "r" + sgl.gen("b")
        s.retain()
        s.sync()
        held.append(dict(backend.retained))
        s.release()
        s.sync()
        held.append(dict(backend.retained))
        s.retain(5)

    program.run()
    (first,), (second,) = held[0].items(), held[1].items()
    assert first[1] == (tuple(b"qok"), 30) and second[1] == (tuple(b"qokrok"), None)
    assert first[0] == second[0], "one name for a state"
    assert held[2] == {} and backend.retained == {}, "the end of the program releases it"


def test_branches_retain_apart_until_they_are_joined(backend: Any) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        s += "q"
        forks = s.fork(2)
        forks += sgl.gen("a")
        for fork in forks:
            fork.retain()
            fork.sync()
        assert len(backend.retained) == 2
        forks.join()
        s.sync()
        assert backend.retained == {}

    program.run()
    assert backend.num_retained == 2


def test_nothing_is_retained_of_a_state_that_no_model_has_read(backend: Any) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        s += "q"
        s.retain()

    program.run()
    assert backend.num_retained == 0


def test_what_cannot_be_retained_is_said_at_once(backend: Any) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        with pytest.raises(UsageError, match="more than 0 seconds"):
            s.retain(0)
        backend.retains = False
        with pytest.raises(Unsupported):
            s.retain(5)

    program.run()


def test_a_trace_shows_it(backend: Any) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        s += "q" + sgl.gen("a")
        s.retain(30)
        s.release()
        s.cancel()

    text = str(program.trace())
    assert "retain(30)" in text and "release()" in text


def test_the_branches_of_a_program_are_one_group_and_programs_are_several(backend: Any) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        s += "q" + sgl.gen("alone")
        s["alone"]
        forks = s.fork(2)
        forks += sgl.gen("x")
        forks[0] += sgl.gen("later")
        forks.join()

    program.run()
    program.run()
    groups = [request.group for request in backend.requests]
    assert groups[0] is groups[4] is None
    assert len(set(groups[1:4])) == len(set(groups[5:])) == 1 and groups[1] != groups[5]


# Over real backends


def test_a_retained_state_outlives_traffic(tiny_folder: Any) -> None:
    found = {}
    for seconds in (None, 60):
        with Runtime(tiny_folder, kv_cache_memory=256 * 1024, block_size=16) as small:

            @sgl.function
            def program(s: sgl.State, seconds: int | None = seconds) -> None:
                s += "Q: " + "what is it? " * 20 + sgl.gen("a", max_tokens=20, ignore_eos=True)
                s["a"]
                if seconds:
                    s.retain(seconds)
                    s.sync()
                for i in range(12):
                    small.engine.generate(f"{i} " * 200, max_tokens=1)
                s += " And then? " + sgl.gen("b", max_tokens=4, ignore_eos=True)

            state = program.run(backend=small)
            found[seconds] = state.meta("b")["cached_tokens"]
            assert small.engine.stats.evicted_blocks > 0
            until(lambda: small.engine.stats.blocks_retained == 0)
    assert found[None] == 0 and found[60] >= 240


def live(backend: Any) -> int:
    """Requests that run at a backend's engine, of this process or of a server."""
    if isinstance(backend, Runtime):
        stats = backend.engine.stats
        return stats.num_running + stats.num_waiting
    import httpx

    text = httpx.get(f"{backend._http._base_url}/metrics").text
    (line,) = [x for x in text.splitlines() if x.startswith("ramet_requests_running ")]
    return int(float(line.split()[1]))


def test_a_cancelled_branch_ends_at_the_engine_and_its_siblings_go_on(exact: Any) -> None:
    seen = []

    @sgl.function
    def program(s: sgl.State) -> None:
        s += "Count: "
        forks = s.fork(3)
        forks += ["one", "two", "three"]
        forks += sgl.gen("text", max_tokens=1500, ignore_eos=True, temperature=0)
        until(lambda: live(exact) == 3)
        forks[1].cancel()
        until(lambda: live(exact) == 2)
        seen.append([fork["text"] for fork in (forks[0], forks[2])])
        with pytest.raises(ProgramCancelled):
            forks[1]["text"]
        with pytest.raises(ProgramCancelled):
            forks[1] += sgl.gen("more")
            forks[1]["more"]

    @sgl.function
    def alone(s: sgl.State, word: str) -> None:
        s += "Count: " + word
        s += sgl.gen("text", max_tokens=1500, ignore_eos=True, temperature=0)

    program.run(backend=exact)
    words = ["one", "three"]
    assert seen[0] == [alone.run(word=word, backend=exact)["text"] for word in words]


def test_a_cancelled_state_takes_its_branches_with_it(backend: Any) -> None:
    backend.delay = 5.0

    @sgl.function
    def program(s: sgl.State) -> None:
        fork = s.fork(1)[0]
        inner = fork.fork(2)
        inner += sgl.gen("x")
        other = s.fork(1)[0]
        until(lambda: backend.num_live == 2)
        fork.cancel("enough")
        until(lambda: backend.num_live == 0)
        for branch in inner:
            with pytest.raises(ProgramCancelled, match="enough"):
                branch["x"]
        backend.delay = 0.0
        other += sgl.gen("y")
        assert other["y"] == "ok"

    program.run()
    assert backend.cancelled == 2


def test_a_branch_cancelled_before_it_began_never_asks(backend: Any) -> None:
    backend.delay = 0.2

    @sgl.function
    def program(s: sgl.State) -> None:
        s += sgl.gen("first")
        forks = s.fork(2)
        forks += sgl.gen("x")
        forks[0].cancel()
        assert forks[1]["x"] == "ok"

    program.run()
    assert len(backend.requests) == 2


def test_joining_a_cancelled_branch_fails_with_its_reason(backend: Any) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        forks = s.fork(2)
        forks += sgl.gen("x")
        forks[0].cancel("not this one")
        forks.join()

    with pytest.raises(ProgramError, match="not this one"):
        program.run()


async def test_the_first_answer_wins_and_the_others_are_cancelled(backend: Any) -> None:
    backend.reply = lambda prompt: prompt[-1]
    delays = {"a": 300.0, "b": 0.01, "c": 300.0}
    generate = backend._generate

    async def slowly(request: Any) -> Any:
        await asyncio.sleep(delays[request.prompt.whole[-1]])
        return await generate(request)

    backend._generate = slowly

    @sgl.function
    async def race(s: sgl.State) -> str:
        forks = s.fork(3)
        forks += ["a", "b", "c"]
        forks += sgl.gen("x")
        reads = {asyncio.ensure_future(fork.get("x")): fork for fork in forks}
        done, rest = await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
        for read in rest:
            read.cancel()
            reads[read].cancel()
        return str(done.pop().result())

    assert (await race.arun()).ret_value == "b"
    assert backend.cancelled == 2 and backend.num_live == 0
