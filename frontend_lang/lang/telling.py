"""How a model is told of tools: by its chat template where that lists them, else by an instruction."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .tools import Tool, describe

if TYPE_CHECKING:
    from .executor import Executor


async def tell(executor: Executor, tools: Sequence[Tool]) -> None:
    """Tell the model of tools, once.

    A template writes what its model was trained on, but only at its place, so it is asked while no
    message has been written; and only if the calls that it asks for are those that are read here.

    Raises:
        UsageError: the open message has been read already.
    """
    content, frames = executor.content, executor.session.frames
    given = [json.dumps(tool.definition(), ensure_ascii=False) for tool in tools]
    if set(given) <= set(content.tools):
        return
    if frames is not None and not content.told and content.may_list_tools:
        listed = tuple(dict.fromkeys((*content.tools, *given)))
        if await frames.lists(listed):
            content.tools = listed
            content.version += 1
            return
    content.tell(describe(tools))
