"""The forms in which models write that they call a function, and which of them a model uses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One way to write calls.

    A call is a JSON object with a name and arguments, or the name, `names_end` and the arguments.

    Attributes:
        name: as `--tool-call-parser` has it.
        opening: stands before calls; text that holds it whole is no ordinary text.
        closing: stands behind them; models may leave it out at the end.
        is_bare: a call may also be the beginning of the whole text, without `opening`.
        arguments_key: the arguments' name in a call's object.
        names_end: separates name and arguments; "" for calls that are objects.
        head, separator, tail: what a grammar puts before, between and behind calls.
        join: separates calls that share one opening.
        id_prefix, num_id_characters: of the ids that answers give to calls.
        special_ids: which of the markers are special tokens of the model: text -> id.
    """

    name: str
    opening: str
    closing: str = ""
    is_bare: bool = False
    arguments_key: str = "arguments"
    names_end: str = ""
    head: str
    separator: str
    tail: str = ""
    join: str = ""
    id_prefix: str = "call_"
    num_id_characters: int = 24
    special_ids: Mapping[str, int] = field(default_factory=dict)

    @property
    def shown_ids(self) -> frozenset[int]:
        """Special tokens that the parser has to see."""
        return frozenset(self.special_ids.values())

    def around(self, name: str) -> tuple[str, str]:
        """What a call of a function has before and behind its arguments."""
        if self.names_end:
            return name + self.names_end, ""
        return f'{{"name": "{name}", "{self.arguments_key}": ', "}"

    def pieces(self, text: str) -> list[str | int]:
        """The text, with its special tokens as ids."""
        if not self.special_ids:
            return [text] if text else []
        marker = "|".join(map(re.escape, sorted(self.special_ids, key=len, reverse=True)))
        parts = re.split(f"({marker})", text)
        return [self.special_ids.get(part, part) for part in parts if part]


HERMES = Form(
    name="hermes",
    opening="<tool_call>",
    closing="</tool_call>",
    head="<tool_call>\n",
    separator="\n</tool_call>\n<tool_call>\n",
    tail="\n</tool_call>",
)
"""Of Hermes, Qwen and many others, and of models that have none of their own."""

LLAMA3_JSON = Form(
    name="llama3_json",
    opening="<|python_tag|>",
    is_bare=True,
    arguments_key="parameters",
    head="",
    separator="; ",
    join=";",
)
"""Of Llama 3.1 and later."""

MISTRAL_LIST = Form(
    name="mistral",
    opening="[TOOL_CALLS]",
    head="[TOOL_CALLS][",
    separator=", ",
    tail="]",
    id_prefix="",
    num_id_characters=9,
)
"""Of Mistral's models, as one list. Their templates refuse ids that are not nine characters."""

MISTRAL_NAMED = replace(
    MISTRAL_LIST,
    names_end="[ARGS]",
    head="[TOOL_CALLS]",
    separator="[TOOL_CALLS]",
    tail="",
)
"""Of Mistral's newer models, call by call."""


def form_of(tokenizer: Tokenizer, parser: str) -> Form:
    """The form of a model's calls.

    Args:
        parser: one of `TOOL_CALL_PARSERS`; "auto" goes by the model's chat template, and takes Hermes's
            form if that shows none.
    """
    template = tokenizer.chat_template or ""
    form = _named(parser, template)
    found = {text: tokenizer.special_id(text) for text in _markers(form)}
    return replace(form, special_ids={t: id_ for t, id_ in found.items() if id_ is not None})


def _named(parser: str, template: str) -> Form:
    if parser == "auto":
        parser = _shown_by(template)
    if parser == MISTRAL_LIST.name and MISTRAL_NAMED.names_end in template:
        return MISTRAL_NAMED
    return {form.name: form for form in (HERMES, LLAMA3_JSON, MISTRAL_LIST)}[parser]


def _shown_by(template: str) -> str:
    if HERMES.opening in template:
        return HERMES.name
    if MISTRAL_LIST.opening in template:
        return MISTRAL_LIST.name
    if LLAMA3_JSON.opening in template or '"parameters": dictionary of' in template:
        return LLAMA3_JSON.name
    return HERMES.name


def _markers(form: Form) -> list[str]:
    # "[CALL_ID]" stands between a name and "[ARGS]" where a model gives ids to its own calls.
    named = [form.names_end, "[CALL_ID]"] if form.names_end else []
    return [text for text in (form.opening, form.closing, *named) if text]
