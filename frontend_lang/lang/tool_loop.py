"""The model answers, calling functions until it needs none; each round adds to the same state."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from . import nodes
from .asking import generate, retain
from .content import Closed, Opened
from .errors import ToolLoopError
from .telling import tell
from .tool_calls import ToolCall, parse_tool_calls
from .tools import Tool

if TYPE_CHECKING:
    from .executor import Executor


async def run_tool_loop(executor: Executor, node: nodes.ToolLoop) -> None:
    """Run the loop; the variable gets the last answer, its meta data every call and result.

    While functions run the backend retains the prefix, where it can.

    Raises:
        ToolLoopError: the model still calls functions after the last round.
    """
    try:
        await _run(executor, node)
    finally:
        executor.release()


async def _run(executor: Executor, node: nodes.ToolLoop) -> None:
    content = executor.content
    await tell(executor, node.tools)
    params = node.params.over(executor.session.defaults)
    calls: list[dict[str, Any]] = []
    totals = dict.fromkeys(("completion_tokens", "latency"), 0.0)
    for num_rounds in range(1, node.max_rounds + 1):
        content.add(Opened("assistant"))
        generated, meta = await generate(executor, params, node.name)
        content.add(Closed())
        for key in totals:
            totals[key] += meta[key]
        said, asked = parse_tool_calls(generated.samples[0].text)
        if not asked:
            facts = {**meta, **totals, "rounds": num_rounds, "calls": calls}
            executor.set(node.name, said, facts)
            return
        answers, _ = await asyncio.gather(_call_all(node.tools, asked), _retain(executor))
        for call, answer in zip(asked, answers, strict=True):
            calls.append({"name": call.name, "arguments": call.arguments, **answer})
            content.add(Opened("tool"))
            content.add(_written(answer))
            content.add(Closed())
    raise ToolLoopError(
        f"{node.name!r}: the model still calls tools after {node.max_rounds} rounds."
    )


async def _retain(executor: Executor) -> None:
    # Nobody asked for it, so a backend that refuses it is no failure of the program's.
    if executor.session.backend.retains:
        with suppress(Exception):
            await retain(executor, None)


async def _call_all(tools: Sequence[Tool], asked: Sequence[ToolCall]) -> list[dict[str, Any]]:
    """Results, or errors, of all calls, which run at the same time."""
    known = {tool.name: tool for tool in tools}
    return list(await asyncio.gather(*[_call(known, call) for call in asked]))


async def _call(known: dict[str, Tool], call: ToolCall) -> dict[str, Any]:
    if call.error is not None:
        return {"error": call.error}
    if call.name not in known:
        return {"error": f"there is no function {call.name!r}; there are: {', '.join(known)}"}
    try:
        return {"result": await known[call.name].call(call.arguments)}
    except Exception as error:
        # The model is told, and may try something else; the program finds it in the meta data.
        return {"error": f"{type(error).__name__}: {error}"}


def _written(answer: dict[str, Any]) -> str:
    if "error" in answer:
        return json.dumps({"error": answer["error"]}, ensure_ascii=False)
    result = answer["result"]
    if isinstance(result, str):
        return result
    import msgspec

    return msgspec.json.encode(result, enc_hook=str).decode()
