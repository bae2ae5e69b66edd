"""One model's tokenizer: text to ids and ids to text. Knows nothing of requests or chat roles.

Encoding is the `tokenizers` library's. Decoding is our own over the bytes of each token, so that a
text decoded whole and the same text decoded token by token are one computation. On bytes that are
valid UTF-8 both equal the library's decoder.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import InvalidRequest
from .pieces import PieceReader, token_pieces

if TYPE_CHECKING:
    from ..sources.base import TokenizerFiles

_SPECIAL_NAMES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


class Tokenizer:
    """Encodes and decodes for one model. Safe to use from several threads.

    Attributes:
        chat_template: the model's Jinja text, or None.
        special_ids: ids of tokens that are markers, not text.
        special_tokens: name -> text of the tokens that the model's configuration names, as chat
            templates know them (`bos_token`, `eos_token`, …).
        bos_token_id, eos_token_id: ids of two of them, or None.
        vocab_size: one more than the highest id of a token; the model may have more rows than this.
    """

    def __init__(self, files: TokenizerFiles) -> None:
        """Take over the tokenizer.

        Raises:
            ConfigError: the tokenizer's decoder is not supported.
        """
        self._fast = files.fast
        self._pieces = token_pieces(files.fast)
        added = files.fast.get_added_tokens_decoder()
        self.chat_template = files.chat_template
        self.special_ids = files.special_ids | {
            id_ for id_, token in added.items() if token.special
        }
        self.vocab_size = max([files.fast.get_vocab_size(with_added_tokens=False) - 1, *added]) + 1
        self.special_tokens = _special_tokens(files.config)
        self.bos_token_id = self._named_id("bos_token")
        self.eos_token_id = self._named_id("eos_token")
        self._prefix, self._suffix = self._frame(files.config)

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Ids of the text. Special tokens that are spelled out in it become their ids.

        Args:
            text: what to encode.
            add_special_tokens: put the tokens around it that the model expects around a plain text
                (for most models a BOS or nothing). Never for a rendered chat: that has its own.

        Raises:
            InvalidRequest: the text holds half a surrogate pair, so it is not Unicode.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"The text has an unpaired surrogate at character {error.start}."
            ) from None
        ids = self._fast.encode(text, add_special_tokens=False).ids
        return [*self._prefix, *ids, *self._suffix] if add_special_tokens else ids

    def decode(
        self, token_ids: Sequence[int], skip_special_tokens: bool, *, continues: bool = False
    ) -> str:
        """The text of the ids. Bytes that are no UTF-8 become U+FFFD; ids that are no token, nothing.

        Args:
            token_ids: any ids.
            skip_special_tokens: leave out the tokens of `special_ids`.
            continues: the text goes on from other tokens, so the space that some tokenizers put at
                the start of every text is not one of those, and stays.
        """
        reader = self.reader(continues=continues)
        skipped = self.special_ids if skip_special_tokens else frozenset[int]()
        data = b"".join(
            [reader.read(token_id) for token_id in token_ids if token_id not in skipped]
        )
        return codecs.decode(data, "utf-8", "replace")

    def reader(self, *, continues: bool) -> PieceReader:
        """Reads one sequence token by token, as bytes; what `decode` is made of."""
        return self._pieces.reader(continues=continues)

    def token_bytes(self, token_id: int) -> bytes:
        """The token's own bytes inside a text, which may be part of a character.

        A special token's are those of its written form, so that log-probabilities can show it. An
        id that is no token (models pad their vocabulary) has none: b"".
        """
        return self._pieces.token_bytes(token_id)

    def token_text(self, token_id: int) -> str:
        """`token_bytes` as text, with U+FFFD where they are not whole characters."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def special_id(self, text: str) -> int | None:
        """Id of the special token that is written so; None if there is none."""
        token_id = self._fast.token_to_id(text)
        return token_id if token_id in self.special_ids else None

    def _named_id(self, name: str) -> int | None:
        text = self.special_tokens.get(name)
        return None if text is None else self._fast.token_to_id(text)

    def _frame(self, config: dict[str, Any]) -> tuple[list[int], list[int]]:
        """Ids that the model expects before and after a plain text.

        The tokenizer's own post-processor says; `add_bos_token` and `add_eos_token` overrule it.
        """
        bare = self._fast.encode("a", add_special_tokens=False).ids
        framed = self._fast.encode("a", add_special_tokens=True).ids
        num_added = len(framed) - len(bare)
        start = next((i for i in range(num_added + 1) if framed[i : i + len(bare)] == bare), 0)
        prefix, suffix = framed[:start], framed[start + len(bare) :]
        return (
            _with_token(prefix, self.bos_token_id, config.get("add_bos_token"), at_end=False),
            _with_token(suffix, self.eos_token_id, config.get("add_eos_token"), at_end=True),
        )


def _with_token(ids: list[int], token_id: int | None, wanted: Any, *, at_end: bool) -> list[int]:
    if token_id is None or wanted is None or (token_id in ids) == bool(wanted):
        return ids
    if not wanted:
        return [other for other in ids if other != token_id]
    return [*ids, token_id] if at_end else [token_id, *ids]


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """Named special tokens; each is text or, in older files, an object with its text as `content`."""
    named = {}
    for name in _SPECIAL_NAMES:
        value = config.get(f"{name}_token")
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            named[f"{name}_token"] = text
    return named
