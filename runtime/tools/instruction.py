"""What tells a model of tools whose chat template does not: Hermes's instruction, as a system message."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_INSTRUCTION = """\
You may call functions to answer. These are their signatures, within <tools></tools>:
<tools>
{tools}
</tools>
To call one, write a JSON object with its name and arguments within <tool_call></tool_call>:
<tool_call>
{{"name": <function name>, "arguments": <arguments as a JSON object>}}
</tool_call>"""


def instruction(tools: Sequence[Mapping[str, Any]]) -> str:
    """The text for these definitions, which are as OpenAI's API has them."""
    return _INSTRUCTION.format(tools="\n".join(json.dumps(t, ensure_ascii=False) for t in tools))


def with_instruction(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The conversation, told of the tools.

    The text follows what the first message says, if that is a system's or a developer's; otherwise it
    is a system message of its own before all others. The given messages stay as they are.
    """
    text = instruction(tools)
    first = messages[0] if messages else {}
    if first.get("role") not in ("system", "developer"):
        return [{"role": "system", "content": text}, *map(dict, messages)]
    content = first.get("content")
    if isinstance(content, list | tuple):
        told: Any = [*content, {"type": "text", "text": f"\n\n{text}"}]
    else:
        told = f"{content}\n\n{text}" if content else text
    return [{**first, "content": told}, *map(dict, messages[1:])]


def told(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    *,
    lists_tools: bool,
) -> tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]:
    """The conversation and the tools as a chat template gets them.

    Args:
        lists_tools: whether the template tells the model of tools; if not, the conversation does.
    """
    if lists_tools or not tools:
        return messages, tools
    return with_instruction(messages, tools), []
