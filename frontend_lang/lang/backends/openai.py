"""Any OpenAI-compatible server. Text travels, not tokens; roles are messages, rendered over there.

A state with roles goes to chat completions, one without to completions. What OpenAI's API cannot do is
refused before anything is sent.
"""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..errors import BackendError, Unsupported, UsageError
from ..params import Params
from ..pieces import pieces_behind
from ..waiting import LANGUAGE_LOOP
from .base import Generated, GenRequest, Message, Prompt, Sample, Scored, ScoreRequest
from .http import Http

_OPENAI_URL = "https://api.openai.com/v1"

_MOST_TRIES = 4
"""Messages that are written from their start until one begins as the program has begun it."""

_KNOWN = (
    *("max_tokens", "stop", "temperature", "top_p", "frequency_penalty", "presence_penalty"),
    *("logit_bias", "seed"),
)


@dataclass(slots=True)
class TokenUsage:
    """Tokens that a backend's requests have cost so far."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    def reset(self) -> None:
        """Count from 0 again."""
        self.prompt_tokens = self.completion_tokens = 0


class OpenAI:
    """An OpenAI-compatible server as a backend.

    Args:
        model: name of the model there.
        base_url: up to and including `/v1`. None takes OPENAI_BASE_URL from the environment, or OpenAI's own.
        api_key: sent as a bearer token. Only without a `base_url` is OPENAI_API_KEY taken from the
            environment, so that no other server is sent that key.
        model_name: the same as `model`, under SGLang's name.
        continues_messages: the server can go on with an assistant's message that is begun
            (`continue_final_message`), as ramet and vLLM can and OpenAI itself cannot.
        extra: further fields of every request, for what a server offers beyond OpenAI's API. A gen may
            give those of them that are sampling parameters, such as `ignore_eos`, values of its own.

    Attributes:
        token_usage: of all requests since it was made, or reset.

    Raises:
        UsageError: there is no model, or it is given twice.
    """

    frames = None
    retains = False

    def __init__(
        self,
        model: str | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        model_name: str | None = None,
        continues_messages: bool = False,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        if (model is None) == (model_name is None):
            raise UsageError("OpenAI needs the name of a model: model, or model_name.")
        if base_url is None:
            base_url = os.environ.get("OPENAI_BASE_URL") or _OPENAI_URL
            api_key = api_key or os.environ.get("OPENAI_API_KEY")
        self.token_usage = TokenUsage()
        self._model = model or model_name
        self._http = Http(base_url.rstrip("/"), api_key)
        self.restarts = not continues_messages
        self._extra = dict(extra or {})

    def check(self, params: Params) -> None:
        """Pass if OpenAI's API has the parameters.

        Raises:
            Unsupported: it has not.
        """
        for name in (*params.sampling(), *([params.constraint[0]] if params.constraint else [])):
            if name not in (*_KNOWN, "logprobs", "json_schema") and name not in self._extra:
                raise Unsupported(f"{name} cannot be asked of an OpenAI-compatible server.")
        if params.scored_from is not None:
            raise Unsupported("logprob_start_len cannot be asked of an OpenAI-compatible server.")
        if params.priority is not None:
            raise Unsupported("priority cannot be asked of an OpenAI-compatible server.")

    async def generate(self, request: GenRequest) -> Generated:
        """Sample; see `Backend`."""
        prompt = request.prompt
        if not (request.may_restart and prompt.is_open and prompt.messages and self.restarts):
            return await self._generate(request)
        *before, last = prompt.messages
        blank = replace(request, prompt=replace(prompt, messages=(*before, Message(last.role, ""))))
        num_tries = _MOST_TRIES if request.params.temperature != 0 else 1
        for number in range(num_tries):
            generated = await self._generate(self._varied(blank, number))
            (sample,) = generated.samples
            if sample.text.startswith(last.content):
                rest = sample.text[len(last.content) :]
                pieces = sample.pieces and pieces_behind(sample.pieces, len(last.content))
                return replace(generated, samples=[replace(sample, text=rest, pieces=pieces)])
        raise BackendError(
            f"The model did not begin its message with {last.content!r} in {num_tries} tries; the last "
            f"began with {sample.text[: len(last.content)]!r}."
        )

    def _varied(self, request: GenRequest, number: int) -> GenRequest:
        """The request's further try: a seed would give the same answer again, so each has its own."""
        seed = request.params.seed
        seed = self._extra.get("seed") if seed is None else seed
        if seed is None or number == 0:
            return request
        return replace(request, params=replace(request.params, seed=seed + number))

    async def _generate(self, request: GenRequest) -> Generated:
        params, prompt = request.params, request.prompt
        chat = bool(prompt.messages)
        path = "/chat/completions" if chat else "/completions"
        body: dict[str, Any] = {"model": self._model, **self._prompt(prompt), **self._extra}
        body |= {name: value for name in _KNOWN if (value := getattr(params, name)) is not None}
        body |= {name: value for name, value in params.sampling().items() if name in self._extra}
        body["n"] = params.n or 1
        if params.logprobs is not None:
            body |= (
                {"logprobs": True, "top_logprobs": params.logprobs}
                if chat
                else {"logprobs": params.logprobs}
            )
        if params.json_schema is not None:
            schema = {"name": "answer", "schema": json.loads(params.json_schema), "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        if request.on_text is not None:
            return await self._follow(path, body, request, chat)
        answer = await self._http.post(path, body)
        samples = [_sample(choice, chat) for choice in answer["choices"]]
        return self._generated(samples, answer.get("usage") or {})

    async def retain(self, session: str, ids: tuple[int, ...], seconds: float | None) -> None:
        """Refuse: OpenAI's API has nothing like it."""
        raise Unsupported("An OpenAI-compatible server cannot be asked to retain anything.")

    def release(self, session: str) -> None:
        """Nothing is retained."""

    async def score(self, request: ScoreRequest) -> Scored:
        """Refuse: OpenAI's API does not score prompts.

        Raises:
            Unsupported: always.
        """
        raise Unsupported("select needs log-probabilities of prompts, which OpenAI's API has not.")

    def close(self) -> None:
        """Close the connections. Safe to call twice."""
        LANGUAGE_LOOP.call(self._http.close()).result()

    def __enter__(self) -> OpenAI:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _follow(
        self, path: str, body: dict[str, Any], request: GenRequest, chat: bool
    ) -> Generated:
        assert request.on_text is not None
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        text: list[str] = []
        entries: list[dict[str, Any]] = []
        num_shown = 0
        finish_reason = None
        usage: dict[str, Any] = {}
        async for event in self._http.events(path, body):
            if "error" in event:
                raise BackendError(str(event["error"].get("message")))
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                piece = (choice["delta"].get("content") if chat else choice["text"]) or ""
                finish_reason = choice.get("finish_reason") or finish_reason
                entries += _logprobs(choice, chat) or ()
                if piece:
                    text.append(piece)
                    request.on_text(piece, entries[num_shown:])
                    num_shown = len(entries)
        asked = request.params.logprobs is not None
        sample = Sample(
            text="".join(text),
            num_tokens=usage.get("completion_tokens", 0),
            finish_reason=finish_reason or "stop",
            logprobs=tuple(entries) if asked else None,
        )
        return self._generated([sample], usage)

    def _generated(self, samples: list[Sample], usage: dict[str, Any]) -> Generated:
        # The usage counts all samples together; the first stands for them.
        num_prompt, num_written = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
        self.token_usage.prompt_tokens += num_prompt
        self.token_usage.completion_tokens += num_written
        if samples:
            samples[0] = replace(samples[0], num_tokens=num_written)
        details = usage.get("prompt_tokens_details") or {}
        return Generated(
            samples=samples,
            prompt_ids=None,
            num_prompt_tokens=num_prompt,
            num_cached_tokens=details.get("cached_tokens"),
        )

    def _prompt(self, prompt: Prompt) -> dict[str, Any]:
        if not prompt.messages:
            return {"prompt": prompt.whole}
        if prompt.loose:
            raise UsageError("A conversation's text must be in roles to be sent as messages.")
        messages = [message.as_dict() for message in prompt.messages]
        if not prompt.is_open:
            return {"messages": messages}
        if messages[-1]["role"] != "assistant":
            raise Unsupported(
                f"An OpenAI-compatible server cannot write in a {messages[-1]['role']} message."
            )
        if not messages[-1]["content"]:
            return {"messages": messages[:-1]}
        if self.restarts:
            raise Unsupported(
                "An assistant's message that is begun cannot be gone on with by OpenAI's API; pass "
                "continues_messages=True if this server can. With function(num_api_spec_tokens=…) the "
                "message is written from its start, for gens of one text: without n, a schema, or logprobs."
            )
        return {
            "messages": messages,
            "continue_final_message": True,
            "add_generation_prompt": False,
        }


def _sample(choice: dict[str, Any], chat: bool) -> Sample:
    entries = _logprobs(choice, chat)
    return Sample(
        text=(choice["message"].get("content") if chat else choice["text"]) or "",
        finish_reason=choice.get("finish_reason") or "stop",
        stop_reason=choice.get("stop_reason"),
        logprobs=entries,
        pieces=_pieces(choice) if chat else None,
    )


def _pieces(choice: dict[str, Any]) -> tuple[str, ...] | None:
    """A chat message by tokens; None if the server does not list them, or they are not its text."""
    entries = (choice.get("logprobs") or {}).get("content") or ()
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    raw = [entry.get("bytes") for entry in entries]
    pieces = tuple(
        entry["token"] if data is None else decoder.decode(bytes(data))
        for entry, data in zip(entries, raw, strict=True)
    )
    return pieces if entries and "".join(pieces) == choice["message"].get("content") else None


def _logprobs(choice: dict[str, Any], chat: bool) -> tuple[dict[str, Any], ...] | None:
    found = choice.get("logprobs")
    if not found:
        return None
    if chat:
        return tuple(
            _entry(
                entry["token"],
                entry["logprob"],
                {top["token"]: top["logprob"] for top in entry.get("top_logprobs") or ()},
            )
            for entry in found["content"]
        )
    tops = found.get("top_logprobs") or [None] * len(found["tokens"])
    return tuple(
        _entry(token, logprob, top or {})
        for token, logprob, top in zip(found["tokens"], found["token_logprobs"], tops, strict=True)
    )


def _entry(token: str, logprob: float, top: Mapping[str, float]) -> dict[str, Any]:
    return {
        "token": token,
        "logprob": logprob,
        "top_tokens": tuple(top),
        "top_logprobs": tuple(top.values()),
    }
