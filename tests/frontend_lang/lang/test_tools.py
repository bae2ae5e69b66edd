"""Functions as tools: described from their signatures, called with checked arguments, in a loop."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ramet as sgl
from ramet import ProgramError, UsageError
from ramet.lang.tool_calls import ToolCall, parse_tool_calls
from ramet.lang.tools import as_tool, as_tools, describe


@dataclass
class Place:
    """Where."""

    lat: float
    lon: float


def weather(city: str, unit: Literal["C", "F"] = "C", days: int = 1) -> str:
    """Look up the weather
    of a city.

    It is always fine.

    Args:
        city: where, by
            its name
        unit (str): of temperature
    """
    return f"{city}: {20 * days} {unit}"


async def distance(a: Place, b: Place) -> float:
    """How far two places are apart."""
    await asyncio.sleep(0)
    return abs(a.lat - b.lat) + abs(a.lon - b.lon)


def fails(x: int) -> int:
    """Never works."""
    raise RuntimeError("broken tool")


def takes_anything(*args: int) -> int:
    """Not to be described."""
    return len(args)


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def test_a_function_describes_itself() -> None:
    definition = as_tool(weather).definition()["function"]
    assert definition["name"] == "weather"
    assert definition["description"] == "Look up the weather of a city."
    assert definition["parameters"] == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "where, by its name"},
            "unit": {"enum": ["C", "F"], "description": "of temperature"},
            "days": {"type": "integer"},
        },
        "required": ["city"],
    }
    assert "Place" in as_tool(distance).schema["$defs"]
    assert json.dumps(as_tool(weather).definition()) in describe(as_tools([weather]))


@pytest.mark.parametrize(
    "functions",
    [
        [],
        [weather, weather],
        [lambda x: x],
        [takes_anything],
    ],
)
def test_what_cannot_be_described_is_refused(functions: list[Any]) -> None:
    with pytest.raises(UsageError):
        as_tools(functions)


async def test_arguments_are_checked_and_converted() -> None:
    place = {"lat": 1, "lon": 2}
    assert await as_tool(distance).call({"a": place, "b": {"lat": 0, "lon": 0}}) == 3
    for wrong in ({}, {"city": 5}, {"city": "x", "unit": "K"}, {"city": "x", "y": 1}, None, [1]):
        with pytest.raises(UsageError):
            await as_tool(weather).call(wrong)


@pytest.mark.parametrize(
    ("text", "said", "calls"),
    [
        ("just text", "just text", ()),
        (f"I look. {call('f', x=1)}", "I look.", (ToolCall("f", {"x": 1}),)),
        (call("f") + "\n" + call("g"), "", (ToolCall("f", {}), ToolCall("g", {}))),
        ('<tool_call>{"name": "f", "arguments": {}}', "", (ToolCall("f", {}),)),
        ('<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}', "", (ToolCall("f", {"x": 1}),)),
        ('<tool_call>[{"name": "f"}, {"name": "g"}]</tool_call>', "",
         (ToolCall("f", {}), ToolCall("g", {}))),
        (call("f", x="</tool_call>") + " end", "end", (ToolCall("f", {"x": "</tool_call>"}),)),
    ],
)  # fmt: skip
def test_calls_are_found_in_text(text: str, said: str, calls: Any) -> None:
    assert parse_tool_calls(text) == (said, calls)


@pytest.mark.parametrize("body", ["{", "5", '{"name": 5}', '{"name": "f", "arguments": "{"}'])
def test_calls_that_cannot_be_read_say_why(body: str) -> None:
    ((_, (found,))) = parse_tool_calls(f"<tool_call>{body}</tool_call>")
    assert found.error


@given(st.text(alphabet='<tool_call>{}"name:f/ ', max_size=60))
def test_any_text_can_be_parsed(text: str) -> None:
    said, calls = parse_tool_calls(text)
    assert ("<tool_call>" in text) == bool(calls)
    assert said == text.strip() or calls


@sgl.function
def agent(s: sgl.State, question: str, max_rounds: int = 4) -> None:
    s += sgl.system("You help.")
    s += sgl.user(question)
    s += sgl.tool_loop("answer", [weather, distance, fails], max_rounds=max_rounds)


def test_the_loop_calls_until_the_model_is_done(backend: Any) -> None:
    def reply(prompt: str) -> str:
        if "Paris: 20 C" in prompt and "broken tool" in prompt:
            return "It is 20 C in Paris."
        return "Let me see. " + call("weather", city="Paris") + call("fails", x=1) + call("nope")

    backend.reply = reply
    state = agent.run("How warm is Paris?", max_tokens=1000)
    assert state["answer"] == "It is 20 C in Paris."
    meta = state.meta("answer")
    assert meta["rounds"] == 2
    assert [c["name"] for c in meta["calls"]] == ["weather", "fails", "nope"]
    assert meta["calls"][0]["result"] == "Paris: 20 C"
    assert "broken tool" in meta["calls"][1]["error"]
    assert "there is no function" in meta["calls"][2]["error"]
    roles = [message["role"] for message in state.messages()]
    assert roles == ["system", "user", "assistant", "tool", "tool", "tool", "assistant"]
    assert state.messages()[0]["content"].startswith("You help.\n\nYou may call functions")
    first, second = backend.requests
    assert second.prompt.ids[: len(first.prompt.text)] == tuple(first.prompt.text.encode())


def test_calls_of_one_round_run_at_the_same_time(backend: Any) -> None:
    together = threading.Barrier(3, timeout=5)

    def meet(n: int) -> int:
        """Wait for the others."""
        together.wait()
        return n

    backend.reply = lambda prompt: (
        "done" if "<tool>" in prompt else "".join(call("meet", n=i) for i in range(3))
    )

    @sgl.function
    def program(s: sgl.State) -> None:
        s += sgl.user("go") + sgl.tool_loop("x", [meet])

    state = program.run(max_tokens=1000)
    assert [c["result"] for c in state.meta("x")["calls"]] == [0, 1, 2]


def test_the_loop_has_an_end(backend: Any) -> None:
    backend.reply = lambda prompt: call("weather", city="Rome")
    with pytest.raises(ProgramError, match="still calls tools after 2 rounds") as error:
        agent.run("?", max_rounds=2)
    assert error.value.state is not None and len(backend.requests) == 2


def test_gen_tells_of_tools_and_leaves_the_calls_to_the_program(backend: Any) -> None:
    backend.reply = lambda prompt: call("weather", city="Oslo")

    @sgl.function
    def program(s: sgl.State) -> None:
        s += sgl.user("q")
        s += sgl.assistant(sgl.gen("x", tools=[weather]))

    state = program.run()
    assert state.meta("x")["tool_calls"] == (ToolCall("weather", {"city": "Oslo"}),)
    assert "<tools>" in state.messages()[0]["content"]


def test_a_template_that_lists_tools_tells_of_them_itself(backend: Any) -> None:
    backend.lists_tools = True
    backend.reply = lambda prompt: (
        "20 C" if "Paris: 20 C" in prompt else call("weather", city="Paris")
    )
    state = agent.run("How warm is Paris?", max_tokens=1000)
    assert state["answer"] == "20 C"
    assert state.messages()[0]["content"] == "You help."
    first, second = (request.prompt.whole for request in backend.requests)
    assert first.startswith("<tools>['weather', 'distance', 'fails'] as <tool_call>…</tool_call>")
    assert second.startswith(first) and second.count("<tools>") == 1


def test_tools_of_several_gens_are_listed_together_until_something_is_read(backend: Any) -> None:
    backend.lists_tools = True

    @sgl.function
    def program(s: sgl.State) -> None:
        s += sgl.user("q") + sgl.assistant_begin()
        s += sgl.gen("x", tools=[weather]) + sgl.gen("y", tools=[weather]) + sgl.assistant_end()
        s += sgl.user("r") + sgl.assistant_begin() + sgl.gen("z", tools=[fails])

    program.run()
    first, second, third = (request.prompt.whole for request in backend.requests)
    assert first.startswith("<tools>['weather'] as")
    assert second == first + "ok"
    # What has been read stays as it is; what comes later is said in a message.
    assert third.startswith(second) and "<system>You may call functions" in third
    assert '"name": "fails"' in third


@pytest.mark.parametrize("has_roles", [True, False])
def test_without_a_place_in_the_template_an_instruction_tells(
    backend: Any, has_roles: bool
) -> None:
    backend.lists_tools = not has_roles

    @sgl.function
    def program(s: sgl.State) -> None:
        s += sgl.user("q") if has_roles else "q"
        s += sgl.gen("x", tools=[weather])

    program.run()
    assert "<tools>\n{" in backend.requests[0].prompt.whole
