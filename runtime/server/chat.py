"""/v1/chat/completions: conversations in, one message per sample out."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from fastapi import Request, Response

from ..request import TokenLogprobs
from .answer import answer_head, choice_end
from .body import convert, read_object
from .generation import Delta, Generation, Job, Prompt, Sample
from .intake import ServerContext, prepare_job
from .logprobs import TokenNames, chat_logprobs, prompt_logprobs
from .protocol import ChatMessage, ChatRequest, check_chat, sampling_params
from .refusals import CHAT, refuse
from .stream import ChunkSkeleton, respond

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
        answer = ChatAnswer(context, body, job)
        context.lifecycle.check_accepting()
        generation = Generation(job, context.client, context.model.tokenizer, context.metrics)
        return await respond(request, generation, answer, stream=bool(body.stream))


class ChatAnswer:
    """The JSON of one answer, as a whole or in chunks."""

    def __init__(self, context: ServerContext, body: ChatRequest, job: Job) -> None:
        self._body = body
        self._job = job
        self._names = TokenNames(
            context.model.tokenizer, as_ids=bool(body.return_tokens_as_token_ids)
        )
        self._head = answer_head(context, body, job, prefix="chatcmpl", kind="chat.completion")

    async def whole(self, generation: Generation) -> bytes:
        """Wait for all samples, and return the answer."""
        texts: list[list[str]] = [[] for _ in generation.samples]
        token_ids: list[list[int]] = [[] for _ in generation.samples]
        logprobs: list[list[TokenLogprobs]] = [[] for _ in generation.samples]
        async with aclosing(generation.deltas()) as deltas:
            async for sample, delta in deltas:
                if delta is not None:
                    texts[sample.index].append(delta.text)
                    token_ids[sample.index] += delta.token_ids
                    logprobs[sample.index] += delta.logprobs
        choices = []
        for sample in generation.samples:
            index = sample.index
            choice: dict[str, Any] = {
                "index": index,
                "message": {
                    "role": "assistant",
                    "content": "".join(texts[index]),
                    "refusal": None,
                    "annotations": [],
                },
                "logprobs": self._logprobs(logprobs[index]),
                "finish_reason": sample.finish_reason,
                "stop_reason": sample.stop_reason,
            }
            if self._body.return_token_ids:
                choice["token_ids"] = token_ids[index]
            choices.append(choice)
        answer = {**self._head, "choices": choices, "usage": generation.usage.as_dict()}
        if self._body.metadata is not None:
            answer["metadata"] = self._body.metadata
        if self._body.return_token_ids:
            answer["prompt_token_ids"] = self._job.prompts[0].ids
        if self._body.prompt_logprobs is not None:
            scored = generation.samples[0].prompt_logprobs
            answer["prompt_logprobs"] = prompt_logprobs(self._names, scored)
        return _encode(answer)

    async def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """Yield the answer's events; all choices open, in order, with the first token of any."""
        head = {**self._head, "object": "chat.completion.chunk"}
        skeleton = ChunkSkeleton(head, self._body.continuous_usage)
        prefixes = [
            b'{"index":%d,"delta":{"content":' % sample.index for sample in generation.samples
        ]
        opened = False
        async with aclosing(generation.deltas()) as deltas:
            async for sample, delta in deltas:
                if not opened:
                    opened = True
                    for other in generation.samples:
                        yield skeleton.chunk(*self._opening(other, generation))
                if delta is not None:
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

    def _logprobs(self, tokens: Any) -> dict[str, Any] | None:
        return chat_logprobs(self._names, tokens) if self._body.logprobs else None


def encode_chat(context: ServerContext, body: ChatRequest) -> Prompt:
    """The prompt of a conversation, as tokens.

    Raises:
        InvalidRequest: the model's template cannot render it; names the field.
    """
    text = context.model.chat_template.render(
        [template_message(message) for message in body.messages],
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
