"""Answers that may call functions: what is said and what is called, as messages and as their pieces."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from ..request import FinishReason, TokenLogprobs
from ..tools.parser import Argued, Called, Event, Said, ToolCallParser
from .generation import Delta
from .tools import ToolUse


class ToolAnswer:
    """One sample's answer, as it grows. Whole and streamed answers are made of the same pieces."""

    def __init__(self, use: ToolUse) -> None:
        self._form = use.form
        self._parser = ToolCallParser(
            use.form, use.names, is_held=use.is_held, is_only_calls=use.is_only_calls
        )
        self._content: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []

    def take(self, delta: Delta) -> list[dict[str, Any]]:
        """Take what is new; returns the `delta` of each chunk that shows it."""
        self._token_ids += delta.token_ids
        self._logprobs += delta.logprobs
        events = self._parser.push(delta.text)
        if delta.finish_reason is not None:
            events += self._parser.finish()
        return [self._shown(event) for event in events]

    def release_tokens(self) -> tuple[list[int], list[TokenLogprobs]]:
        """The tokens taken since the last time, which a chunk is to carry."""
        released = self._token_ids, self._logprobs
        self._token_ids, self._logprobs = [], []
        return released

    def finish_reason(self, reason: FinishReason | None) -> str | None:
        """Why the answer ended, if the engine says that it ended for `reason`."""
        has_called = self._calls and not self._parser.is_inside
        return "tool_calls" if reason is FinishReason.STOP and has_called else reason

    def message(self) -> dict[str, Any]:
        """The fields of the whole message that depend on what was written."""
        content = "".join(self._content)
        if not self._calls:
            return {"content": content}
        return {"content": content or None, "tool_calls": self._calls}

    def _shown(self, event: Event) -> dict[str, Any]:
        match event:
            case Said(text):
                self._content.append(text)
                return {"content": text}
            case Called(index, name):
                call = {"id": self._new_id(), "type": "function"}
                self._calls.append({**call, "function": {"name": name, "arguments": ""}})
                piece = {"index": index, **call, "function": {"name": name, "arguments": ""}}
                return {"tool_calls": [piece]}
            case Argued(index, text):
                self._calls[index]["function"]["arguments"] += text
                return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}

    def _new_id(self) -> str:
        return self._form.id_prefix + uuid4().hex[: self._form.num_id_characters]
