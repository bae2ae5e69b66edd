"""/v1/chat/completions: conversations in, one message per sample out."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import msgspec
from fastapi import Request, Response

from ..tools.definitions import definitions
from ..tools.instruction import told
from .answer import answer_head, choice_end
from .body import convert, read_object
from .generation import Delta, Generation, Job, Prompt, Sample
from .intake import ServerContext, begin, prepare_job
from .logprobs import TokenNames, chat_logprobs, prompt_logprobs
from .protocol import ChatMessage, ChatRequest, check_chat, sampling_params
from .refusals import CHAT, refuse
from .stream import ChunkSkeleton, respond
from .tool_answer import ToolAnswer
from .tools import ToolUse, tool_use

_encode = msgspec.json.encode


class ChatRoute:
    """Answers chat requests for the served model."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    async def create(self, request: Request) -> Response:
        """Answer one request, whole or as a stream."""
        arrived = time.perf_counter()
        context = self._context
        raw = await read_object(request)
        body = convert(raw, ChatRequest)
        context.model.check_name(body.model)
        refuse(raw, CHAT)
        check_chat(body)
        params = sampling_params(body, max_tokens=body.token_limit, logprobs=body.num_logprobs)
        tools = tool_use(body, context.model.tool_form, params.constraint)
        if tools is not None:
            params = replace(params, constraint=tools.constraint)
        context.lifecycle.check_accepting()
        job = await prepare_job(
            context,
            request,
            body,
            params=params,
            encode=lambda: [encode_chat(context, body)],
            param="messages",
            arrived=arrived,
        )
        if tools is not None and tools.names:
            job = replace(job, shown_ids=tools.form.shown_ids)
        answer = ChatAnswer(context, body, job, tools)
        context.lifecycle.check_accepting()
        generation = begin(context, job, is_patient=not body.stream)
        return await respond(request, generation, answer, stream=bool(body.stream))


class ChatAnswer:
    """The JSON of one answer, as a whole or in chunks."""

    def __init__(
        self, context: ServerContext, body: ChatRequest, job: Job, tools: ToolUse | None
    ) -> None:
        self._body = body
        self._job = job
        self._tools = tools if tools is not None and tools.names else None
        self._names = TokenNames(
            context.model.tokenizer, as_ids=bool(body.return_tokens_as_token_ids)
        )
        self._head = answer_head(context, body, job, prefix="chatcmpl", kind="chat.completion")

    async def whole(self, generation: Generation) -> bytes:
        """Wait for all samples, and return the answer."""
        deltas: list[list[Delta]] = [[] for _ in generation.samples]
        async with aclosing(generation.deltas()) as stream:
            async for sample, delta in stream:
                if delta is not None:
                    deltas[sample.index].append(delta)
        choices = [self._whole(sample, deltas[sample.index]) for sample in generation.samples]
        answer = {**self._head, "choices": choices, "usage": generation.usage.as_dict()}
        if self._body.metadata is not None:
            answer["metadata"] = self._body.metadata
        if self._body.return_token_ids:
            answer["prompt_token_ids"] = self._job.prompts[0].ids
        if self._body.prompt_logprobs is not None:
            scored = generation.samples[0].prompt_logprobs
            answer["prompt_logprobs"] = prompt_logprobs(self._names, scored)
        return _encode(answer)

    def _whole(self, sample: Sample, deltas: list[Delta]) -> dict[str, Any]:
        finish_reason: str | None = sample.finish_reason
        message: dict[str, Any] = {"content": "".join(delta.text for delta in deltas)}
        if self._tools is not None:
            answer = ToolAnswer(self._tools)
            for delta in deltas:
                answer.take(delta)
            finish_reason, message = answer.finish_reason(sample.finish_reason), answer.message()
        choice: dict[str, Any] = {
            "index": sample.index,
            "message": {"role": "assistant", **message, "refusal": None, "annotations": []},
            "logprobs": self._logprobs([entry for delta in deltas for entry in delta.logprobs]),
            "finish_reason": finish_reason,
            "stop_reason": sample.stop_reason,
        }
        if self._body.return_token_ids:
            choice["token_ids"] = [token_id for delta in deltas for token_id in delta.token_ids]
        return choice

    async def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """Yield the answer's events; all choices open, in order, with the first token of any.

        What adds nothing to a choice is an empty event.
        """
        head = {**self._head, "object": "chat.completion.chunk"}
        skeleton = ChunkSkeleton(head, self._body.continuous_usage)
        prefixes = [
            b'{"index":%d,"delta":{"content":' % sample.index for sample in generation.samples
        ]
        tools = self._tools
        answers = [] if tools is None else [ToolAnswer(tools) for _ in generation.samples]
        opened = False
        async with aclosing(generation.deltas()) as deltas:
            async for sample, delta in deltas:
                if not opened:
                    opened = True
                    for other in generation.samples:
                        yield skeleton.chunk(*self._opening(other, generation))
                if delta is None:
                    yield b""
                elif answers:
                    choices = self._tool_choices(answers[sample.index], sample, delta)
                    yield b"".join([skeleton.chunk(choice, generation) for choice in choices])
                else:
                    choice = self._choice(prefixes[sample.index], sample, delta)
                    yield skeleton.chunk(choice, generation)
        if self._body.include_usage:
            yield skeleton.last(generation)

    def _opening(self, sample: Sample, generation: Generation) -> tuple[bytes, Generation, bytes]:
        choice = (
            b'{"index":%d,"delta":{"role":"assistant","content":""},'
            b'"logprobs":null,"finish_reason":null}' % sample.index
        )
        extra = b""
        if self._body.return_token_ids and sample.index == 0:
            extra = b',"prompt_token_ids":' + _encode(sample.prompt.ids)
        return choice, generation, extra

    def _choice(self, prefix: bytes, sample: Sample, delta: Delta) -> bytes:
        parts = [prefix, _encode(delta.text), b'},"logprobs":']
        parts.append(_encode(self._logprobs(delta.logprobs)) if delta.logprobs else b"null")
        parts += choice_end(delta, sample, with_ids=bool(self._body.return_token_ids))
        return b"".join(parts)

    def _tool_choices(self, answer: ToolAnswer, sample: Sample, delta: Delta) -> Iterator[bytes]:
        """Of an answer that may call, what the chunks for a delta have: a piece of text or of a call each,
        the tokens since the last chunk in the first, and at the end one with the finish reason alone."""
        pieces = answer.take(delta)
        finish_reason = answer.finish_reason(delta.finish_reason)
        if finish_reason is not None:
            pieces.append({})
        for place, piece in enumerate(pieces):
            token_ids, logprobs = answer.release_tokens()
            choice: dict[str, Any] = {
                "index": sample.index,
                "delta": piece,
                "logprobs": self._logprobs(logprobs) if logprobs else None,
                "finish_reason": None,
            }
            if finish_reason is not None and place == len(pieces) - 1:
                choice |= {"finish_reason": finish_reason, "stop_reason": sample.stop_reason}
            if self._body.return_token_ids:
                choice["token_ids"] = token_ids
            yield _encode(choice)

    def _logprobs(self, tokens: Any) -> dict[str, Any] | None:
        return chat_logprobs(self._names, tokens) if self._body.logprobs else None


def encode_chat(context: ServerContext, body: ChatRequest) -> Prompt:
    """The prompt of a conversation, as tokens.

    Raises:
        InvalidRequest: the model's template cannot render it; names the field.
    """
    template = context.model.chat_template
    messages, tools = told(
        [template_message(message) for message in body.messages],
        definitions(body.tools or ()),
        lists_tools=template.lists_tools,
    )
    text = template.render(
        messages,
        tools=tools,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=bool(body.continue_final_message),
        template_kwargs=template_kwargs(body),
    )
    # A rendered conversation has its own markers, so none are added unless the client insists.
    ids = context.model.tokenizer.encode(text, bool(body.add_special_tokens))
    return Prompt(ids, text)


def template_kwargs(body: ChatRequest) -> dict[str, Any]:
    """Variables for the template: what the effort of reasoning means, then the client's own."""
    kwargs: dict[str, Any] = {}
    if body.reasoning_effort is not None:
        thinks = body.reasoning_effort != "none"
        kwargs = {
            "reasoning_effort": body.reasoning_effort,
            "enable_thinking": thinks,
            "thinking": thinks,
        }
    return {**kwargs, **(body.chat_template_kwargs or {})}


def template_message(message: ChatMessage) -> dict[str, Any]:
    """A message as the template layer takes it: plain objects, absent fields left out."""
    plain: dict[str, Any] = {"role": message.role}
    if isinstance(message.content, str):
        plain["content"] = message.content
    elif message.content is not None:
        plain["content"] = [
            {"type": "text", "text": part.refusal if part.type == "refusal" else part.text}
            if part.type in ("text", "refusal")
            else {"type": part.type}
            for part in message.content
        ]
    reasoning = message.reasoning_content
    if reasoning is None and isinstance(message.reasoning, str):
        reasoning = message.reasoning
    calls = [msgspec.to_builtins(call) for call in message.tool_calls or ()]
    if message.function_call is not None:
        calls.append({"type": "function", "function": msgspec.to_builtins(message.function_call)})
    for name, value in (
        ("name", message.name),
        ("tool_call_id", message.tool_call_id),
        ("reasoning_content", reasoning),
        ("tool_calls", calls or None),
    ):
        if value is not None:
            plain[name] = value
    return plain
