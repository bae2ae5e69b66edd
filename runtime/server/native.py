"""/generate: programs' own route, where prompts may be token ids and several requests are one call.

    {"input_ids": [...], "text": "...", ...}     a prompt: the ids as they are, then the text's tokens
    {"options": ["yes", "no"], ...}              log-probabilities of each option behind the prompt
    {"requests": [{...}, {...}], "stream": true} several of these at once: a fork is one round trip

Without `input_ids` a text gets the tokens that the model expects at its start. Sampling fields are
those of /v1/completions; `max_tokens` is 128 unless given. The answer is `{"results": [...]}` with one
result per request, in their order. With `stream` each event names its request by `index`: `delta` is
new text of sample `sample` (with `logprobs` of the tokens since the last one, if asked for), `result` the
whole result, `error` the failure of that request alone. A request with a `request_id` can be ended alone,
by /cancel (control.py): its result is then `{"cancelled": true}`, in a stream beside its `index`.

    result of a generation: prompt_ids, num_prompt_tokens, num_cached_tokens, prompt_logprobs (per token
        from `logprob_start_len`, if that was given; the first has none), samples, each with
        text, token_ids, num_kept, rest, finish_reason, stop_reason, logprobs: per token its token_id,
        token (its text), logprob, top_ids, top_tokens, top_logprobs
    result of a scoring: num_prompt_tokens, num_cached_tokens, options, each with
        text, token_ids, tokens, logprobs, and unconditional_logprobs if `unconditional` was true

`prompt_ids` are the tokens of `text`. To go on from a sample send the ids so far, its first `num_kept`
token ids, and `rest` before any further text: a stop string may have cut its last token.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Annotated, Any
from uuid import uuid4

import msgspec
from fastapi import Request, Response
from msgspec import Meta

from ..errors import RametError
from ..tools.definitions import ToolDefinition, definitions
from ..tools.instruction import told
from .body import convert_strictly, read_object
from .branches import Branch, Branches
from .disconnect import while_connected
from .errors import error_body
from .generation import Generation
from .intake import ServerContext, begin, tenant
from .native_work import GenerateItem, ShowText, Work, prepare_work
from .stream import EventStream, event

MAX_REQUESTS = 1024

_CANCELLED = {"cancelled": True}

_encode = msgspec.json.encode


class GenerateRequests(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of /generate that brings several requests."""

    requests: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=MAX_REQUESTS)]
    model: str | None = None
    stream: bool | None = None


class RenderRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of /render: a conversation, to be written as /v1/chat/completions does."""

    messages: list[dict[str, Any]]
    model: str | None = None
    add_generation_prompt: bool = False
    tools: list[ToolDefinition] | None = None


class NativeRoutes:
    """Answers programs."""

    def __init__(self, context: ServerContext, branches: Branches) -> None:
        self._context = context
        self._branches = branches

    async def generate(self, request: Request) -> Response:
        """Answer one request, or several at once."""
        arrived = time.perf_counter()
        context = self._context
        raw = await read_object(request)
        if "requests" in raw:
            whole = convert_strictly(raw, GenerateRequests)
            items = [
                convert_strictly(item, GenerateItem, f"requests[{index}]")
                for index, item in enumerate(whole.requests)
            ]
            model, stream = whole.model, bool(whole.stream)
        else:
            item = convert_strictly(raw, GenerateItem)
            items, model, stream = [item], item.model, bool(item.stream)
        context.model.check_name(model)
        context.lifecycle.check_accepting()
        branches = self._branches.open(tenant(request), [item.request_id for item in items])
        try:
            works = await self._prepare(request, items, arrived)
            answer = NativeAnswer(context, works, branches, is_patient=not stream)
        except BaseException:
            self._branches.close(branches)
            raise

        def close() -> None:
            answer.abort()
            self._branches.close(branches)

        if stream:
            return EventStream(answer.events(), close, lambda: answer.is_ahead)
        try:
            data = await while_connected(request.receive, answer.whole())
        finally:
            close()
        return Response(data, media_type="application/json")

    async def _prepare(
        self, request: Request, items: list[GenerateItem], arrived: float
    ) -> list[Work]:
        context = self._context
        works = [await prepare_work(context, request, item, arrived) for item in items]
        context.lifecycle.check_accepting()
        call = uuid4().hex
        return [
            replace(work, job=replace(work.job, group=item.group or call))
            for work, item in zip(works, items, strict=True)
        ]

    async def render(self, request: Request) -> Response:
        """A conversation as text."""
        body = convert_strictly(await read_object(request), RenderRequest)
        model = self._context.model
        model.check_name(body.model)
        template = model.chat_template
        messages, tools = told(
            body.messages, definitions(body.tools or ()), lists_tools=template.lists_tools
        )
        text = await asyncio.to_thread(
            lambda: template.render(
                messages,
                tools=tools,
                add_generation_prompt=body.add_generation_prompt,
            )
        )
        return Response(_encode({"text": text}), media_type="application/json")


class NativeAnswer:
    """The answer to one call: all of its requests, submitted together, but those cancelled before.

    Args:
        is_patient: nobody looks at what comes before an answer's end.
    """

    def __init__(
        self,
        context: ServerContext,
        works: list[Work],
        branches: list[Branch],
        *,
        is_patient: bool,
    ) -> None:
        self._works = works
        self._branches = branches
        self._shown: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._num_running = len(works)
        self._generations: list[Generation | None] = []
        try:
            for work, branch in zip(works, branches, strict=True):
                generation = None
                if not branch.is_cancelled:
                    generation = begin(context, work.job, is_patient=is_patient)
                    branch.runs(generation.abort)
                self._generations.append(generation)
        except RametError:
            self.abort()
            raise

    @property
    def is_ahead(self) -> bool:
        """Whether what `events` does next, yield or end, takes no waiting."""
        return self._num_running == 0 or not self._shown.empty()

    def abort(self) -> None:
        """End what still runs. Safe to call twice."""
        for generation in self._generations:
            if generation is not None:
                generation.abort()

    async def whole(self) -> bytes:
        """Wait for all requests, and return the answer.

        Raises:
            RametError: one of them failed; the others are ended.
        """

        def nothing(sample: int, text: str, logprobs: list[dict[str, Any]]) -> None:
            return None

        runs = [asyncio.ensure_future(self._run(i, nothing)) for i in range(len(self._works))]
        try:
            results = await asyncio.gather(*runs)
        finally:
            for run in runs:
                run.cancel()
        return _encode({"results": [_CANCELLED if r is None else r for r in results]})

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield what every request adds, as it comes, and b"" behind the last of one; one that fails does
        not end the others."""
        queue = self._shown

        def shower(index: int) -> ShowText:
            def show(sample: int, text: str, logprobs: list[dict[str, Any]]) -> None:
                item: dict[str, Any] = {"index": index, "sample": sample, "delta": text}
                queue.put_nowait({**item, "logprobs": logprobs} if logprobs else item)

            return show

        async def run(index: int) -> None:
            try:
                result = await self._run(index, shower(index))
                end = _CANCELLED if result is None else {"result": result}
                queue.put_nowait({"index": index, **end})
            except RametError as error:
                queue.put_nowait({"index": index, **msgspec.json.decode(error_body(error))})
            finally:
                queue.put_nowait(None)

        runs = [asyncio.ensure_future(run(index)) for index in range(len(self._works))]
        try:
            while self._num_running:
                item = await queue.get()
                self._num_running -= item is None
                yield b"" if item is None else event(_encode(item))
            await asyncio.gather(*runs)
        finally:
            for task in runs:
                task.cancel()

    async def _run(self, index: int, show: ShowText) -> dict[str, Any] | None:
        """The result of one request; None if it was cancelled."""
        generation, branch = self._generations[index], self._branches[index]
        if generation is None or branch.is_cancelled:
            return None
        running = asyncio.ensure_future(self._works[index].run(generation, show))

        def stop() -> None:
            generation.abort()
            running.cancel()

        branch.runs(stop)
        try:
            result: dict[str, Any] = await running
        except asyncio.CancelledError:
            if branch.is_cancelled:
                return None
            raise
        return result
