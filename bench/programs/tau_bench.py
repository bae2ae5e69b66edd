"""tau-bench: an airline's agent between a user and tools, under a long policy and many tools.

Data, from sierra-research/tau-bench:

    tau-bench/*airline*.json(l)     recorded sessions: {messages} or {traj}, in OpenAI's form
    tau-bench/tools_airline.json    the tools that the agent was given, in OpenAI's form

The policy is the recorded system message. Tools are described, called and answered in the form of Hermes
models, in roles that every chat template has.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ramet

from .program import Count, DataError, Program, entry, read_json, read_lines
from .replay import say

# Tokens that a chat template writes around one message, at most.
_FRAME_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a session; tools answer as the user."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Session:
    """A recorded session up to its last answer."""

    system: str
    messages: tuple[Message, ...]


@ramet.function
def tau_bench(s: ramet.State, session: Session, lengths: Sequence[int], history: str) -> None:
    """Answer the user, or call a tool, until the recording ends."""
    s += ramet.system(session.system)
    lengths_left = iter(lengths)
    for index, message in enumerate(session.messages):
        if message.role == "user":
            s += ramet.user(message.content)
            continue
        with s.assistant():
            say(s, f"turn{index}", message.content, next(lengths_left), history)


def load(data: Path) -> list[Session]:
    """Sessions of every file of the airline; raises DataError."""
    folder = data / "tau-bench"
    files = [p for p in sorted(folder.glob("*airline*.json*")) if not p.name.startswith("tools")]
    if not files:
        raise DataError(f"{folder} has no recorded sessions (*airline*.json or .jsonl).")
    tools = "\n".join(json.dumps(tool) for tool in read_json(folder / "tools_airline.json"))
    return [_session(record, tools, path) for path in files for record in read_lines(path)]


def _session(record: dict[str, Any], tools: str, path: Path) -> Session:
    recorded = entry(record, "traj" if "traj" in record else "messages", path)
    if not recorded or recorded[0].get("role") != "system":
        raise DataError(f"{path}: a session does not begin with the system message.")
    system = (
        f"{recorded[0]['content']}\n\n# Tools\n\nYou may call these functions:\n<tools>\n{tools}\n"
        "</tools>\n\nTo call one, write its name and arguments as JSON:\n<tool_call>\n"
        '{"name": <function-name>, "arguments": <arguments>}\n</tool_call>'
    )
    messages = [_message(m, path) for m in recorded[1:]]
    while messages and messages[-1].role != "assistant":
        messages.pop()
    return Session(system, tuple(messages))


def _message(recorded: dict[str, Any], path: Path) -> Message:
    role, content = entry(recorded, "role", path), recorded.get("content") or ""
    if role == "tool":
        answer = json.dumps({"name": recorded.get("name"), "content": content})
        return Message("user", f"<tool_response>\n{answer}\n</tool_response>")
    if role not in ("user", "assistant"):
        raise DataError(f"{path}: a message of role {role!r} inside a session.")
    for call in recorded.get("tool_calls") or ():
        called = entry(call, "function", path)
        asked = f'{{"name": "{called["name"]}", "arguments": {called["arguments"]}}}'
        content += f"{chr(10) if content else ''}<tool_call>\n{asked}\n</tool_call>"
    return Message(role, content)


def size(session: Session, count: Count) -> int:
    """Tokens of the whole session, with room for the template's frames."""
    texts = [session.system, *(message.content for message in session.messages)]
    return count("\n".join(texts)) + _FRAME_TOKENS * len(texts)


def arguments(session: Session, count: Count, history: str) -> dict[str, Any]:
    """Of `tau_bench`."""
    said = [message.content for message in session.messages if message.role == "assistant"]
    lengths = [max(1, count(text)) for text in said]
    return {"session": session, "lengths": lengths, "history": history}


def judge(sessions: Sequence[Session], states: Sequence[ramet.State]) -> dict[str, float]:
    """How many turns there were, and how many of them called a tool."""
    said = [m.content for s in sessions for m in s.messages if m.role == "assistant"]
    return {"turns": len(said), "tool_calls": sum("<tool_call>" in text for text in said)}


PROGRAM = Program(
    name="tau_bench",
    function=tau_bench,
    load=load,
    size=size,
    arguments=arguments,
    judge=judge,
    num_sessions=4,
    concurrency=4,
    replays=True,
)
