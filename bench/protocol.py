"""What is sent to an OpenAI-compatible server, and what its stream of events means.

It knows the dialects in which servers are told to generate a fixed number of tokens, and when an
answer is whole. It knows nothing of workloads, and does not touch the network.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

DIALECTS = ("ramet", "vllm", "sglang", "llama.cpp", "openvino", "transformers", "openai")
ENDPOINTS = ("completions", "chat")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One request of a workload.

    Attributes:
        text: the prompt; for the chat endpoint the content of one user message.
        max_tokens: tokens that each sample should have, exactly where the dialect can say so.
        num_samples: samples of one request (`n`).
        temperature: 0 is greedy.
        seed: given to the server if not None.
        due: `time.perf_counter()` at which it should have been sent; latencies count from there, so
            that a client that falls behind does not hide it. None: when it is sent.
    """

    text: str
    max_tokens: int
    num_samples: int = 1
    temperature: float = 0.0
    seed: int | None = None
    due: float | None = None


@dataclass(slots=True, kw_only=True)
class Result:
    """What became of one request. Times are seconds since it was due.

    Attributes:
        error: why it failed, in a few words; None if it succeeded.
        ttft: until the first text of any sample, or the end of one that has no text.
        latency: until the answer was complete.
        gaps: seconds between successive pieces of text of one sample.
        time_per_token: seconds per token after the first, mean over samples; None for one token.
        texts: the text of each sample.
        num_output_tokens: over all samples, as the server counted them, else one per piece.
        counted_by_server: whether the server reported usage.
        num_cached_tokens: prompt tokens found in the server's cache; None if it does not say.
    """

    error: str | None = None
    ttft: float = 0.0
    latency: float = 0.0
    gaps: list[float] = field(default_factory=list)
    time_per_token: float | None = None
    texts: list[str] = field(default_factory=list)
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    counted_by_server: bool = False
    num_cached_tokens: int | None = None
    num_expected_tokens: int = 0


class ServerError(Exception):
    """The server answered with an error, or with something that is no answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The server under test.

    Attributes:
        url: its root, without /v1.
        model: the model's name in requests.
        endpoint: completions or chat.
        dialect: how it is told to generate exactly max_tokens.
        extra_body: fields added to every request.
    """

    url: str
    model: str
    endpoint: str = "completions"
    dialect: str = "ramet"
    extra_body: Mapping[str, Any] = field(default_factory=dict)

    def body(self, prompt: Prompt) -> dict[str, Any]:
        """The JSON body of a streaming request."""
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": prompt.max_tokens,
            "temperature": prompt.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.endpoint == "chat":
            body["messages"] = [{"role": "user", "content": prompt.text}]
        else:
            body["prompt"] = prompt.text
        if prompt.num_samples > 1:
            body["n"] = prompt.num_samples
        if prompt.seed is not None:
            body["seed"] = prompt.seed
        self._fix_length(body, prompt)
        return body | dict(self.extra_body)

    def _fix_length(self, body: dict[str, Any], prompt: Prompt) -> None:
        if self.dialect in ("ramet", "vllm", "sglang"):
            body |= {"ignore_eos": True, "min_tokens": prompt.max_tokens}
        elif self.dialect == "llama.cpp":
            body |= {"ignore_eos": True, "cache_prompt": True}
        elif self.dialect == "openvino":
            body |= {"ignore_eos": True, "min_new_tokens": prompt.max_tokens}
        elif self.dialect == "transformers":
            del body["stream_options"]  # it refuses fields that it does not know
            options = {
                "eos_token_id": -1,
                "max_new_tokens": prompt.max_tokens,
                "do_sample": prompt.temperature > 0,
            }
            body["generation_config"] = json.dumps(options)


class AnswerStream:
    """One answer as it arrives: server-sent events in, a `Result` out."""

    def __init__(self, prompt: Prompt) -> None:
        self._prompt = prompt
        self._start = time.perf_counter() if prompt.due is None else prompt.due
        self._arrivals: dict[int, list[float]] = {}
        self._texts: dict[int, list[str]] = {}
        self._finished: set[int] = set()
        self._usage: Mapping[str, Any] = {}
        self._cached: int | None = None
        self._end: float | None = None

    def feed(self, line: bytes, now: float) -> bool:
        """Take one line; False once the stream is complete."""
        if not line.startswith(b"data:"):
            return True
        data = line[5:].strip()
        if data == b"[DONE]":
            self._end = now
            return False
        event = json.loads(data)
        if event.get("error"):
            raise ServerError(f"in the stream: {error_message(data.decode(errors='replace'))}")
        for choice in event.get("choices") or ():
            self._take(choice, now)
        self._take_usage(event)
        return True

    def result(self) -> Result:
        """The answer, if it was a whole one.

        Raises:
            ServerError: the stream ended early.
        """
        if self._end is None:
            raise ServerError("the stream ended without [DONE]")
        if len(self._finished) < self._prompt.num_samples:
            raise ServerError(
                f"{len(self._finished)} of {self._prompt.num_samples} samples finished"
            )
        pieces = sum(len(times) for times in self._arrivals.values())
        num_tokens = self._usage.get("completion_tokens")
        result = self._base()
        result.ttft = min(times[0] for times in self._arrivals.values()) - self._start
        result.latency = self._end - self._start
        result.gaps = [b - a for times in self._arrivals.values() for a, b in pairwise(times)]
        result.counted_by_server = num_tokens is not None
        result.num_output_tokens = pieces if num_tokens is None else int(num_tokens)
        result.num_prompt_tokens = int(self._usage.get("prompt_tokens") or 0)
        result.num_cached_tokens = self._cached
        result.time_per_token = self._time_per_token(result.num_output_tokens)
        return result

    def failed(self, reason: str) -> Result:
        """The same, as a failure."""
        result = self._base()
        result.error = reason
        result.latency = time.perf_counter() - self._start
        return result

    def _base(self) -> Result:
        expected = self._prompt.max_tokens * self._prompt.num_samples
        texts = ["".join(self._texts[index]) for index in sorted(self._texts)]
        return Result(texts=texts, num_expected_tokens=expected)

    def _take(self, choice: Mapping[str, Any], now: float) -> None:
        index = int(choice.get("index") or 0)
        text = choice.get("text")
        if text is None:
            text = (choice.get("delta") or {}).get("content") or ""
        if text:
            self._arrivals.setdefault(index, []).append(now)
            self._texts.setdefault(index, []).append(text)
        if choice.get("finish_reason"):
            self._finished.add(index)
            if index not in self._arrivals:  # all its tokens are invisible ones
                self._arrivals[index], self._texts[index] = [now], [""]

    def _take_usage(self, event: Mapping[str, Any]) -> None:
        usage = event.get("usage")
        if usage:
            self._usage = usage
            details = usage.get("prompt_tokens_details") or {}
            if details.get("cached_tokens") is not None:
                self._cached = int(details["cached_tokens"])
        timings = event.get("timings") or {}  # llama.cpp's own
        if timings.get("cache_n") is not None:
            self._cached = int(timings["cache_n"])

    def _time_per_token(self, num_tokens: int) -> float | None:
        num_after_first = num_tokens / len(self._arrivals) - 1
        if num_after_first <= 0:
            return None
        spans = [times[-1] - times[0] for times in self._arrivals.values()]
        return sum(spans) / len(spans) / num_after_first


def error_message(text: str) -> str:
    try:
        error = json.loads(text)["error"]
        message = error["message"] if isinstance(error, dict) else error
    except (ValueError, LookupError, TypeError):
        message = text
    return " ".join(str(message).split())[:200]
