"""Frames come from the model's template, whatever it does to contents."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from ramet import UsageError
from ramet.lang.backends.base import Generated, Message, Sample
from ramet.lang.chat import Frames
from ramet.lang.content import Closed, Content, Opened


async def merging(messages: Sequence[Message], add_generation_prompt: bool, tools: Any) -> str:
    """Trims contents, drops thinking, puts neighbouring tool results into one turn."""
    out = "<bos>"
    for index, message in enumerate(messages):
        content = message.content.rpartition("</think>")[2].strip()
        before = messages[index - 1].role if index else None
        after = messages[index + 1].role if index + 1 < len(messages) else None
        if message.role == "tool":
            out += "" if before == "tool" else "[user]"
            out += f"({content})" + ("" if after == "tool" else "[/user]")
        else:
            out += f"[{message.role}]{content}[/{message.role}]"
    return out + ("[assistant]" if add_generation_prompt else "")


async def dropping(messages: Sequence[Message], add_generation_prompt: bool, tools: Any) -> str:
    return "".join(m.content for m in messages if m.role != "system")


def answer(prompt_text: str, text: str, kept: str, rest: str = "") -> Generated:
    sample = Sample(text=text, kept_ids=tuple(kept.encode()), rest=rest, num_tokens=len(kept))
    return Generated(
        samples=[sample],
        prompt_ids=tuple(prompt_text.encode()),
        num_prompt_tokens=0,
        num_cached_tokens=0,
    )


async def say(content: Content, frames: Frames, text: str, rest: str = "") -> str:
    resolved = await content.resolve(frames, generates=True)
    content.commit(resolved, answer(resolved.text, text + rest, text, rest))
    return resolved.text


def add(content: Content, *messages: tuple[str, str]) -> None:
    for role, text in messages:
        for item in (Opened(role), text, Closed()):
            content.add(item)


async def test_what_was_said_is_never_rendered_again() -> None:
    frames, content = Frames(merging), Content()
    add(content, ("user", " hi "))
    content.add(Opened("assistant"))
    assert (
        await say(content, frames, "<think>x</think> yes ") == "<bos>[user] hi [/user][assistant]"
    )
    content.add(Closed())
    add(content, ("user", "more"))
    content.add(Opened("assistant"))
    assert await say(content, frames, "ok") == "[/assistant][user]more[/user][assistant]"
    assert bytes(content.ids).decode() == content.text
    assert "<think>x</think> yes [/assistant]" in content.text


async def test_neighbouring_messages_are_framed_together() -> None:
    frames, content = Frames(merging), Content()
    add(content, ("user", "q"), ("tool", "1"), ("tool", "2"))
    content.add(Opened("assistant"))
    expected = "<bos>[user]q[/user][user](1)(2)[/user][assistant]"
    assert (await content.resolve(frames, generates=True)).text == expected


async def test_text_between_messages_stands_behind_the_end_of_the_first() -> None:
    frames, content = Frames(merging), Content()
    add(content, ("user", "a"))
    content.add("loose")
    add(content, ("user", "b"))
    expected = "<bos>[user]a[/user]loose[user]b[/user]"
    assert (await content.resolve(frames)).text == expected


async def test_a_template_that_hides_a_message_is_an_error() -> None:
    content = Content()
    add(content, ("system", "a"), ("user", "b"))
    with pytest.raises(UsageError, match="'system'"):
        await content.resolve(Frames(dropping))


async def test_the_rest_of_a_cut_token_is_text_again_and_shown_once() -> None:
    content = Content()
    content.add("x")
    await say(content, Frames(merging), "ab", rest="c")
    content.add("d")
    resolved = await content.resolve(Frames(merging))
    assert bytes(content.ids) == b"xab" and content.text == "xab" and resolved.text == "cd"
    assert resolved.text[content.num_shown :] == "d"


async def test_a_template_is_rendered_once_for_all_who_wait() -> None:
    calls = 0

    async def slow(messages: Sequence[Message], add_generation_prompt: bool, tools: Any) -> str:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0.01)
        return await merging(messages, add_generation_prompt, tools)

    frames = Frames(slow)
    waiting = [asyncio.ensure_future(frames.around(("user",))) for _ in range(100)]
    await asyncio.sleep(0)
    waiting.pop().cancel()
    await asyncio.gather(*waiting)
    assert calls == 1


async def test_a_rendering_that_failed_is_tried_again() -> None:
    answers: list[Any] = [RuntimeError("once")]

    async def flaky(messages: Sequence[Message], add_generation_prompt: bool, tools: Any) -> str:
        if answers:
            raise answers.pop()
        return await merging(messages, add_generation_prompt, tools)

    frames = Frames(flaky)
    with pytest.raises(RuntimeError):
        await frames.around(("user",))
    assert await frames.around(("user",)) == ("<bos>[user]", "[/user]")


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ([("system", "s"), ("user", "q")], [("system", "s\n\ntools"), ("user", "q")]),
        ([("user", "q")], [("system", "tools"), ("user", "q")]),
        ([], [("system", "tools")]),
    ],
)
def test_instructions_go_where_the_model_reads_them_first(before: Any, expected: Any) -> None:
    content = Content()
    add(content, *before)
    content.tell("tools")
    content.tell("tools")
    assert [(m.role, m.content) for m in content.messages] == expected


async def test_instructions_come_later_if_something_was_read_already() -> None:
    content = Content()
    add(content, ("user", "q"))
    content.add(Opened("assistant"))
    await say(content, Frames(merging), "a")
    with pytest.raises(UsageError):
        content.tell("tools")
    content.add(Closed())
    content.add(Opened("assistant"))
    content.tell("others")
    resolved = await content.resolve(Frames(merging), generates=True)
    assert resolved.text == "[/assistant][system]others[/system][assistant]"


def test_messages_open_and_close_in_turn() -> None:
    content = Content()
    with pytest.raises(UsageError):
        content.add(Closed())
    content.add(Opened("user"))
    with pytest.raises(UsageError):
        content.add(Opened("user"))
