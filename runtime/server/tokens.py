"""/tokenize and /detokenize: the served model's tokenizer, for clients that count or compare tokens."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from fastapi import Request, Response

from ..errors import InvalidRequest
from .body import convert, read_object
from .chat import encode_chat
from .intake import ServerContext
from .protocol import ChatRequest
from .refusals import CHAT, refuse

_encode = msgspec.json.encode


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of /tokenize: a `prompt`, or the fields of a chat request."""

    model: str | None = None
    prompt: str | list[str] | None = None
    messages: list[Any] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of /detokenize. Special tokens are kept unless `skip_special_tokens` is true."""

    tokens: list[int]
    model: str | None = None
    skip_special_tokens: bool | None = None


class TokenRoutes:
    """Answers about text and tokens; the engine computes nothing for it, but must be ready."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    async def tokenize(self, request: Request) -> Response:
        """Tokens of a text, of several texts, or of a conversation as chat would send it."""
        raw = await read_object(request)
        self._context.lifecycle.check_accepting()
        body = convert(raw, TokenizeRequest)
        model = self._context.model
        model.check_name(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise InvalidRequest(
                "Exactly one of prompt and messages must be given.", param="prompt"
            )
        if body.messages is not None:
            refuse(raw, CHAT)
            chat = convert(raw, ChatRequest)
            ids = (await asyncio.to_thread(encode_chat, self._context, chat)).ids
            return self._answer(len(ids), ids, self._names(ids) if body.return_token_strs else None)
        special = body.add_special_tokens is not False
        if isinstance(body.prompt, str):
            ids = await asyncio.to_thread(model.tokenizer.encode, body.prompt, special)
            return self._answer(len(ids), ids, self._names(ids) if body.return_token_strs else None)
        lists = [
            await asyncio.to_thread(model.tokenizer.encode, text, special)
            for text in body.prompt or ()
        ]
        names = [self._names(ids) for ids in lists] if body.return_token_strs else None
        return self._answer([len(ids) for ids in lists], lists, names)

    async def detokenize(self, request: Request) -> Response:
        """The text of tokens, under vLLM's name `prompt` and SGLang's `text`."""
        body = convert(await read_object(request), DetokenizeRequest)
        self._context.lifecycle.check_accepting()
        model = self._context.model
        model.check_name(body.model)
        vocab_size = self._context.client.info.vocab_size
        for token_id in body.tokens:
            if not 0 <= token_id < vocab_size:
                raise InvalidRequest(
                    f"tokens has token id {token_id}, outside the vocabulary of {vocab_size} "
                    "tokens.",
                    param="tokens",
                )
        text = model.tokenizer.decode(body.tokens, bool(body.skip_special_tokens))
        return _json({"prompt": text, "text": text})

    async def info(self, request: Request) -> Response:
        """The tokenizer's configuration, for clients that rebuild it."""
        model = self._context.model
        info = {
            **model.tokenizer_config,
            "bos_token": None,
            "eos_token": None,
            "pad_token": None,
            **model.tokenizer.special_tokens,
            "chat_template": model.tokenizer.chat_template,
        }
        return _json(info)

    def _names(self, ids: list[int]) -> list[str]:
        return [self._context.model.tokenizer.token_text(token_id) for token_id in ids]

    def _answer(self, count: Any, tokens: Any, names: Any) -> Response:
        return _json(
            {
                "count": count,
                "max_model_len": self._context.client.info.max_model_len,
                "tokens": tokens,
                "token_strs": names,
            }
        )


def _json(value: Any) -> Response:
    return Response(_encode(value), media_type="application/json")
