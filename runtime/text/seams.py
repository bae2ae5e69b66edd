"""Where text meets tokens that exist already: seams of a sequence that grows call by call.

A program's history is token ids (what the model has read and written) and text behind them that no
model has seen yet. Both functions keep the ids as they are and only decide about the text: which
sampled tokens lie wholly inside a text that a stop string cut, and how options that may follow a
prompt are tokenized so that their scores can be compared. Knows no request and no model.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

from .tokenizer import Tokenizer


def kept_tokens(
    tokenizer: Tokenizer, token_ids: Sequence[int], text: str, *, skip_special_tokens: bool = True
) -> tuple[int, str]:
    """How many leading tokens lie inside `text`, and the text behind them.

    Args:
        token_ids: what was sampled.
        text: the text of these tokens, or a beginning of it.
        skip_special_tokens: whether special tokens were left out of the text.

    Returns:
        The number of leading tokens whose text ends inside `text` at a whole character, and what
        follows them: part of the text of the next token, to be tokenized again.
    """
    reader = tokenizer.reader(continues=True)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    num_characters = num_kept = end = 0
    for index, token_id in enumerate(token_ids):
        skipped = skip_special_tokens and token_id in tokenizer.special_ids
        num_characters += len(decoder.decode(b"" if skipped else reader.read(token_id)))
        if num_characters > len(text) or end == len(text):
            break
        if not decoder.getstate()[0]:
            num_kept, end = index + 1, num_characters
    return num_kept, text[end:]


@dataclass(frozen=True, slots=True)
class OptionPrompts:
    """Prompts that end with one option each.

    Attributes:
        ids: per option, all token ids.
        start: the position from which every option's tokens are scored, the same for all.
    """

    ids: tuple[list[int], ...]
    start: int


def option_prompts(
    tokenizer: Tokenizer, ids: Sequence[int], text: str, options: Sequence[str]
) -> OptionPrompts:
    """Tokenize `text` together with each option, behind `ids`.

    An option may change the tokens at the end of the text (" " and "Yes" become " Yes"), as it would
    in a prompt written at once. All options are therefore scored from the first position at which
    any of them differs from the text alone, so that their scores speak of the same characters.

    Args:
        ids: tokens that stand already; without any, the text gets the model's usual start.
        text: what follows them and precedes the option.
        options: at least one.
    """
    special = not ids
    base = [*ids, *tokenizer.encode(text, special)]
    prompts = tuple([*ids, *tokenizer.encode(text + option, special)] for option in options)
    return OptionPrompts(prompts, min(_shared(base, prompt) for prompt in prompts))


def _shared(left: Sequence[int], right: Sequence[int]) -> int:
    size = min(len(left), len(right))
    return next((i for i in range(size) if left[i] != right[i]), size)
