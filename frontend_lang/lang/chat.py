"""What a chat template writes around messages, found by rendering marks instead of contents.

A message's content is never passed through the template: a conversation of marks is rendered, and
what stands between two marks is what belongs between two contents. So tokens that exist already are
never rendered again, and a template that trims, drops or moves old contents cannot change them.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from uuid import uuid4

from .backends.base import Message
from .errors import UsageError
from .tool_calls import OPENING

MAX_CACHED = 1024

Tools = tuple[str, ...]
"""Definitions of tools as OpenAI's API has them, each as JSON."""

Key = tuple[tuple[str, ...], bool, Tools]
Render = Callable[[Sequence[Message], bool, Sequence[Mapping[str, Any]] | None], Awaitable[str]]


class Frames:
    """The frames of one model's template, by the roles of a conversation.

    Args:
        render: writes a conversation as the template does, with a generation prompt if that is true, and
            tools for the template to list.
    """

    def __init__(self, render: Render) -> None:
        self._render = render
        self._cache: OrderedDict[Key, asyncio.Task[tuple[str, ...]]] = OrderedDict()

    async def around(self, roles: tuple[str, ...], tools: Tools = ()) -> tuple[str, ...]:
        """Text before the first content, between contents, and behind the last: one more than roles.

        Raises:
            UsageError: the template does not show these messages one after the other.
        """
        return await self._frames(roles, False, tools)

    async def opening(self, roles: tuple[str, ...], tools: Tools = (), *, generates: bool) -> str:
        """Text between the content before the last and the content of the last.

        Args:
            roles: of all messages up to the one that is opened.
            generates: the model begins the message, so an assistant's is opened by the template's
                generation prompt.
        """
        *before, last = roles
        if generates and last == "assistant" and before:
            return (await self._frames(tuple(before), True, tools))[-1]
        return (await self.around(roles, tools))[-2]

    async def lists(self, tools: Tools) -> bool:
        """Whether the template tells the model of tools, and asks for calls in the form of Hermes."""
        try:
            told = await self._frames(("user",), True, tools)
        except Exception:
            return False  # It cannot take them. If nothing can be rendered, the next request will say so.
        return OPENING in "".join(told)

    async def _frames(
        self, roles: tuple[str, ...], generation: bool, tools: Tools
    ) -> tuple[str, ...]:
        key = (roles, generation, tools)
        task = self._cache.get(key)
        if task is None:
            # A task of its own: a thousand states may wait for it, and any of them be cancelled.
            task = self._cache[key] = asyncio.ensure_future(self._measure(*key))
            while len(self._cache) > MAX_CACHED:
                self._cache.popitem(last=False)
        try:
            return await asyncio.shield(task)
        except Exception:
            self._cache.pop(key, None)
            raise

    async def _measure(
        self, roles: tuple[str, ...], generation: bool, tools: Tools
    ) -> tuple[str, ...]:
        # Random, so that no template can contain it; letters, so that none will escape it.
        base = uuid4().hex
        marks = [f"{base}x{index}x" for index in range(len(roles))]
        messages = [Message(role, mark) for role, mark in zip(roles, marks, strict=True)]
        rest = await self._render(messages, generation, [json.loads(t) for t in tools] or None)
        frames = []
        for role, mark in zip(roles, marks, strict=True):
            frame, found, rest = rest.partition(mark)
            if not found or base in frame:
                raise UsageError(
                    f"The model's chat template does not show a message of role {role!r} in its "
                    f"place, in a conversation of {', '.join(roles)}."
                )
            frames.append(frame)
        return (*frames, rest)
