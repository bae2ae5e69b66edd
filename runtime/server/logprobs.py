"""Log-probabilities in the three layouts that clients read.

    chat_logprobs       chat: a list of objects with the tokens' own bytes
    CompletionLogprobs  completions: four parallel lists, continued from chunk to chunk
    prompt_logprobs     both: one map per prompt token

A value is passed on as the engine gave it, so that a sampled token and the same token among the
likeliest carry the identical number.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Any

from ..request import TokenLogprobs
from ..text.tokenizer import Tokenizer


class TokenNames:
    """How tokens are shown: their text, or `token_id:N` if the request wants ids.

    Args:
        tokenizer: knows text and bytes of every token.
        as_ids: show ids instead of text.
    """

    def __init__(self, tokenizer: Tokenizer, *, as_ids: bool = False) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids

    def name(self, token_id: int) -> str:
        """The token's text, U+FFFD where it is part of a character, markers by their name."""
        return f"token_id:{token_id}" if self._as_ids else self._tokenizer.token_text(token_id)

    def in_text(self, *, continues: bool) -> Callable[[int, bool], str]:
        """Names the tokens of one text in order, so that the names join to the text.

        A token that leaves a character unfinished adds nothing, and the one that finishes it adds all
        of it. Markers have their name, which the text may lack. The function takes a token's id, and
        whether it is the last one, whose unfinished character is U+FFFD.

        Args:
            continues: the text goes on from other tokens, as in `Tokenizer.decode`.
        """
        reader = self._tokenizer.reader(continues=continues)
        utf8 = codecs.getincrementaldecoder("utf-8")("replace")

        def name(token_id: int, is_last: bool) -> str:
            if self._as_ids or token_id in self._tokenizer.special_ids:
                return self.name(token_id)
            return utf8.decode(reader.read(token_id), is_last)

        return name

    def entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        """The token as chat shows it."""
        data = self._tokenizer.token_bytes(token_id)
        return {"token": self.name(token_id), "logprob": logprob, "bytes": list(data)}


def chat_logprobs(names: TokenNames, tokens: Sequence[TokenLogprobs]) -> dict[str, Any]:
    """The `logprobs` of a chat choice or chunk."""
    content = []
    for token in tokens:
        entry = names.entry(token.token_id, token.logprob)
        entry["top_logprobs"] = [
            names.entry(*top) for top in zip(token.top_ids, token.top_logprobs, strict=True)
        ]
        content.append(entry)
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """The `logprobs` of one completion choice, built piece by piece.

    The tokens join to the choice's text, markers aside; `text_offset` counts their characters from
    the start of it.

    Args:
        names: how tokens are shown.
        echo: whether the text begins with the prompt, so that `echo` is called first.
    """

    def __init__(self, names: TokenNames, *, echo: bool = False) -> None:
        self._names = names
        self._name_in_text = names.in_text(continues=not echo)
        self._offset = 0

    def echo(self, prompt_ids: Sequence[int], tokens: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """Lists for an echoed prompt; nothing predicts its first token, so that has null values."""
        return self._lists(tokens, first=prompt_ids[0])

    def extend(self, tokens: Sequence[TokenLogprobs], *, ends: bool = False) -> dict[str, Any]:
        """Lists for newly generated tokens; `ends` says that no others follow."""
        return self._lists(tokens, ends=ends)

    def _lists(
        self, tokens: Sequence[TokenLogprobs], *, first: int | None = None, ends: bool = False
    ) -> dict[str, Any]:
        shown: list[str] = []
        values: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        offsets: list[int] = []
        if first is not None:
            self._append(shown, offsets, first)
            values.append(None)
            tops.append(None)
        for place, token in enumerate(tokens, start=1):
            is_last = ends and place == len(tokens)
            name = self._append(shown, offsets, token.token_id, is_last)
            values.append(token.logprob)
            tops.append(self._top(token, name))
        return {
            "tokens": shown,
            "token_logprobs": values,
            "top_logprobs": tops,
            "text_offset": offsets,
        }

    def _append(
        self, shown: list[str], offsets: list[int], token_id: int, is_last: bool = False
    ) -> str:
        name = self._name_in_text(token_id, is_last)
        shown.append(name)
        offsets.append(self._offset)
        self._offset += len(name)
        return name

    def _top(self, token: TokenLogprobs, name: str) -> dict[str, float]:
        top: dict[str, float] = {}
        for token_id, logprob in zip(token.top_ids, token.top_logprobs, strict=True):
            # Fragments of characters can share a name: the likelier one keeps it.
            top.setdefault(
                name if token_id == token.token_id else self._names.name(token_id), logprob
            )
        top[name] = token.logprob
        return top


def prompt_logprobs(
    names: TokenNames, tokens: Sequence[TokenLogprobs]
) -> list[dict[str, Any] | None]:
    """One map from token id to its log-probability and rank per prompt token; the first is null."""
    rows: list[dict[str, Any] | None] = [None]
    for token in tokens:
        row = {str(token.token_id): _ranked(names, token.token_id, token.logprob, token.rank)}
        ranked = enumerate(zip(token.top_ids, token.top_logprobs, strict=True), start=1)
        for rank, (token_id, logprob) in ranked:
            row.setdefault(str(token_id), _ranked(names, token_id, logprob, rank))
        rows.append(row)
    return rows


def _ranked(names: TokenNames, token_id: int, logprob: float, rank: int) -> dict[str, Any]:
    return {"logprob": logprob, "rank": rank, "decoded_token": names.name(token_id)}


def joined(pieces: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Pieces of one choice's log-probabilities, of either layout, as one."""
    keys = pieces[0].keys()
    return {
        key: None if pieces[0][key] is None else [item for piece in pieces for item in piece[key]]
        for key in keys
    }
