"""A conversation as the text that the model was trained on. Knows messages, not tokens.

Templates are code that came with the model, so transformers' own sandboxed renderer runs them. It is
imported at the first rendering: that takes seconds, and the engine process never needs it.

Messages are OpenAI's. Before the template sees them they are made plain (`normalize_messages`):
content is always a string, arguments of tool calls are objects where they are valid JSON, and what
the template never reads although it matters (a developer's instruction, a past tool call) is put
where it will be read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InvalidRequest
from .tokenizer import Tokenizer

_MAX_REASON = 500  # characters; some of the renderer's messages quote the whole conversation
RESERVED_KWARGS = frozenset(
    {
        "messages",
        "conversation",
        "conversations",
        "tools",
        "add_generation_prompt",
        "continue_final_message",
        "chat_template",
        "tokenize",
        "return_dict",
        "return_tensors",
        "return_assistant_tokens_mask",
    }
)


class ChatTemplate:
    """Renders conversations for one model."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Take the template and the names of the special tokens from the model's tokenizer."""
        self._source = tokenizer.chat_template
        self._special_tokens = dict(tokenizer.special_tokens)

    @property
    def lists_tools(self) -> bool:
        """Whether the template tells the model of tools."""
        return self._source is not None and _mentions(self._source, "tools")

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text. Encode it without adding special tokens: the template wrote its own.

        Args:
            messages: OpenAI messages, at least one; not modified.
            tools: OpenAI tool definitions for the template to list; None or empty for none.
            add_generation_prompt: end with the opening of an assistant's turn. None means yes, unless
                `continue_final_message`.
            continue_final_message: leave the last message open, so that the model goes on with it.
            template_kwargs: further variables for the template.

        Raises:
            InvalidRequest: the model has no template, a message cannot be rendered by it, or
                `template_kwargs` names what the other arguments decide.
        """
        source = self._template()
        if not messages:
            raise InvalidRequest("messages must have at least one message.", param="messages")
        if continue_final_message and add_generation_prompt:
            raise InvalidRequest(
                "continue_final_message and add_generation_prompt exclude each other.",
                param="continue_final_message",
            )
        if tools and not self.lists_tools:
            raise InvalidRequest("This model's chat template does not take tools.", param="tools")
        kwargs = self._variables(template_kwargs or {})
        plain = normalize_messages(
            messages,
            reads_tool_calls=_mentions(source, "tool_calls"),
            reads_developer=_mentions(source, "developer"),
        )
        from transformers.utils.chat_template_utils import render_jinja_template

        opens_turn = not continue_final_message and add_generation_prompt is not False
        try:
            rendered: Any = render_jinja_template(
                conversations=[plain],
                tools=[dict(tool) for tool in tools] if tools else None,
                chat_template=source,
                continue_final_message=continue_final_message,
                add_generation_prompt=opens_turn,
                **kwargs,
            )
        except Exception as error:
            # The template is the model's code: whatever it raises is about what it was given.
            raise InvalidRequest(
                f"messages cannot be rendered by this model's chat template: "
                f"{str(error)[:_MAX_REASON]}",
                param="messages",
            ) from error
        texts, _ = rendered
        return str(texts[0])

    def _template(self) -> str:
        if self._source is None:
            raise InvalidRequest(
                "This model has no chat template.",
                param="messages",
                hint="Send a plain prompt to /v1/completions, or add a chat_template to the model.",
            )
        return self._source

    def _variables(self, template_kwargs: Mapping[str, Any]) -> dict[str, Any]:
        for name in template_kwargs:
            if name in RESERVED_KWARGS or name in self._special_tokens:
                raise InvalidRequest(
                    f"chat_template_kwargs must not set {name}.", param="chat_template_kwargs"
                )
        return {**self._special_tokens, **template_kwargs}


def normalize_messages(
    messages: Sequence[Mapping[str, Any]],
    *,
    reads_tool_calls: bool = True,
    reads_developer: bool = True,
) -> list[dict[str, Any]]:
    """OpenAI messages as plain ones that any template can add up; the given ones stay as they are.

    Content that is null or missing becomes "". A list of text parts becomes their texts joined with
    nothing between them, so it equals the plain string. Arguments of tool calls become the object
    that they spell; text that is not JSON is passed on as it is, and "" counts as {}. The roles
    `developer` and `function` are called `system` and `tool` for a template that does not know them.

    Args:
        messages: each a mapping with a role.
        reads_tool_calls: false writes past calls into the assistant's content, in Hermes's form
            `<tool_call>{"name": …, "arguments": …}</tool_call>`, as they would be lost otherwise.
        reads_developer: false makes `developer` into `system`.

    Raises:
        InvalidRequest: names the message (and the part) that is not of this form.
    """
    plain = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InvalidRequest(f"{where} must be an object with a role.", param=f"{where}.role")
        given = {key: value for key, value in message.items() if value is not None}
        given["content"] = _plain_content(given.get("content"), f"{where}.content")
        if given["role"] == "developer" and not reads_developer:
            given["role"] = "system"
        elif given["role"] == "function":
            given["role"] = "tool"
        calls = _plain_calls(given.pop("tool_calls", None), f"{where}.tool_calls")
        if calls and reads_tool_calls:
            given["tool_calls"] = calls
        elif calls:
            written = [_written_call(call["function"]) for call in calls]
            given["content"] = "\n".join([text for text in (given["content"], *written) if text])
        plain.append(given)
    return plain


def _plain_content(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise InvalidRequest(f"{where} must be a string, null or a list of parts.", param=where)
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        text = part.get("text") if isinstance(part, Mapping) and kind == "text" else None
        if not isinstance(text, str):
            raise InvalidRequest(
                f"{where}[{index}] must be a text part; {kind} is not supported by this model.",
                param=f"{where}[{index}]",
            )
        texts.append(text)
    return "".join(texts)


def _plain_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if calls is None:
        return []
    if not isinstance(calls, list | tuple):
        raise InvalidRequest(f"{where} must be a list.", param=where)
    plain = []
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise InvalidRequest(
                f"{where}[{index}] must have a function with a name.", param=f"{where}[{index}]"
            )
        arguments = _plain_arguments(function.get("arguments"))
        plain.append({"type": "function", **call, "function": {**function, "arguments": arguments}})
    return plain


def _plain_arguments(arguments: Any) -> Any:
    if arguments is None or arguments == "":
        return {}
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


def _written_call(function: Mapping[str, Any]) -> str:
    call = {"name": function["name"], "arguments": function["arguments"]}
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"


def _mentions(source: str, name: str) -> bool:
    return re.search(rf"\b{name}\b", source) is not None
