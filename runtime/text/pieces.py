"""How token ids become text: one token at a time, in bytes. Knows nothing of requests or stop strings.

A tokenizer's decoder is described by its own JSON. Three kinds are understood:

    byte-level    every character of a token stands for one byte (GPT-2 and its heirs)
    fused         "▁" is a space, "<0xE2>" a raw byte, leading spaces are stripped once (SentencePiece)
    neighbour     anything else whose text for a token depends on the token before it at most

`TokenPieces` is the table of one tokenizer; `PieceReader` walks one sequence. Bytes are handed on
whether or not they are a whole character yet; making text of them is the reader's caller's business.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import ConfigError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as FastTokenizer

_MAX_ID = 2**32 - 1
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class PieceReader(Protocol):
    """Reads the tokens of one sequence in order."""

    def read(self, token_id: int) -> bytes:
        """What this token adds to the bytes of the text; empty for an id that is no token."""


class TokenPieces(Protocol):
    """What the tokens of one tokenizer stand for."""

    def token_bytes(self, token_id: int) -> bytes:
        """The token's bytes wherever it stands inside a text; empty for an id that is no token."""

    def reader(self, *, continues: bool) -> PieceReader:
        """A reader at the start of a new text, or inside one that other tokens began."""


def token_pieces(fast: FastTokenizer) -> TokenPieces:
    """The table that fits the tokenizer's decoder.

    Raises:
        ConfigError: the decoder mixes byte tokens with steps that are not understood.
    """
    steps = _decoder_steps(fast)
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return BytePieces(fast)
    rule = _fused_rule(steps)
    if rule is not None:
        return FusedPieces(fast, rule)
    if "ByteLevel" in kinds or "ByteFallback" in kinds:
        raise ConfigError(f"The tokenizer's decoder is not supported: {' + '.join(kinds)}.")
    return NeighbourPieces(fast)


def _token(fast: FastTokenizer, token_id: int) -> str | None:
    """The vocabulary's entry; None for an id that is no token, however far out of range."""
    return fast.id_to_token(token_id) if 0 <= token_id <= _MAX_ID else None


def _decoder_steps(fast: FastTokenizer) -> list[dict[str, Any]]:
    if fast.decoder is None:
        return []
    state: dict[str, Any] = json.loads(fast.decoder.__getstate__())
    return list(state["decoders"]) if state["type"] == "Sequence" else [state]


def _byte_alphabet() -> dict[str, int]:
    """Character -> byte of the byte-level alphabet. Source: Radford et al. 2019, GPT-2's encoder.

    Printable bytes of Latin-1 stand for themselves; the others are U+0100 and up, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + index): byte for index, byte in enumerate(others)}


class BytePieces:
    """Byte-level tokens. A token with a character outside the alphabet (an added one) is its own text."""

    def __init__(self, fast: FastTokenizer) -> None:
        self._fast = fast
        self._alphabet = _byte_alphabet()
        self._known: dict[int, bytes] = {}

    def token_bytes(self, token_id: int) -> bytes:
        """The token's bytes wherever it stands inside a text; empty for an id that is no token."""
        known = self._known.get(token_id)
        if known is None:
            token = _token(self._fast, token_id) or ""
            try:
                known = bytes([self._alphabet[character] for character in token])
            except KeyError:
                known = token.encode()
            self._known[token_id] = known
        return known

    def read(self, token_id: int) -> bytes:
        """The same as `token_bytes`: these pieces do not depend on their place."""
        return self.token_bytes(token_id)

    def reader(self, *, continues: bool) -> PieceReader:
        """Itself, as these pieces are the same at the start of a text and inside it."""
        return self


@dataclass(frozen=True, slots=True)
class FusedRule:
    """How tokens of the SentencePiece kind are read.

    Attributes:
        replacements: (from, to) pairs applied to each token.
        byte_fallback: "<0x41>" stands for the byte 0x41.
        strip: character removed from the start of the text, at most `num_stripped` times.
        dropped: character left out of the first token altogether (the Metaspace decoder).
    """

    replacements: tuple[tuple[str, str], ...]
    byte_fallback: bool = False
    strip: str = " "
    num_stripped: int = 0
    dropped: str = ""


def _fused_rule(steps: list[dict[str, Any]]) -> FusedRule | None:
    if [step["type"] for step in steps] == ["Metaspace"]:
        mark, never = steps[0]["replacement"], steps[0].get("prepend_scheme") == "never"
        return FusedRule(((mark, " "),), dropped="" if never else mark)
    rest, replacements = list(steps), []
    while rest and rest[0]["type"] == "Replace" and "String" in rest[0]["pattern"]:
        step = rest.pop(0)
        replacements.append((step["pattern"]["String"], step["content"]))
    byte_fallback = bool(rest) and rest[0]["type"] == "ByteFallback"
    rest = rest[1:] if byte_fallback else rest
    kinds = [step["type"] for step in rest]
    if kinds == ["Fuse"]:
        return FusedRule(tuple(replacements), byte_fallback)
    if kinds == ["Fuse", "Strip"] and rest[1]["stop"] == 0:
        return FusedRule(tuple(replacements), byte_fallback, rest[1]["content"], rest[1]["start"])
    return None


class FusedPieces:
    """Tokens of the SentencePiece kind: a text is their pieces joined, its start stripped."""

    def __init__(self, fast: FastTokenizer, rule: FusedRule) -> None:
        self._fast = fast
        self._rule = rule
        self._known: dict[int, bytes] = {}

    def token_bytes(self, token_id: int) -> bytes:
        """The token's bytes wherever it stands inside a text; empty for an id that is no token."""
        known = self._known.get(token_id)
        if known is None:
            known = self._piece(_token(self._fast, token_id) or "")
            self._known[token_id] = known
        return known

    def first_bytes(self, token_id: int) -> bytes | None:
        """The token's bytes when it is the first of a text, before stripping; None if it is none."""
        token = _token(self._fast, token_id)
        if token is None:
            return None
        return self._piece(token.replace(self._rule.dropped, "") if self._rule.dropped else token)

    def _piece(self, token: str) -> bytes:
        for old, new in self._rule.replacements:
            token = token.replace(old, new)
        match = _BYTE_TOKEN.fullmatch(token) if self._rule.byte_fallback else None
        return token.encode() if match is None else bytes([int(match[1], 16)])

    def reader(self, *, continues: bool) -> PieceReader:
        """A reader that strips the start of a new text, but not of one that other tokens began."""
        num_stripped = 0 if continues else self._rule.num_stripped
        return _FusedReader(self, self._rule.strip.encode(), num_stripped, at_start=not continues)


class _FusedReader:
    def __init__(
        self, pieces: FusedPieces, strip: bytes, num_stripped: int, *, at_start: bool
    ) -> None:
        self._pieces = pieces
        self._strip = strip
        self._num_left = num_stripped
        self._at_start = at_start

    def read(self, token_id: int) -> bytes:
        """What this token adds to the bytes of the text."""
        first = self._pieces.first_bytes(token_id) if self._at_start else None
        self._at_start = self._at_start and first is None
        piece = self._pieces.token_bytes(token_id) if first is None else first
        while self._num_left and piece:
            if not piece.startswith(self._strip):
                self._num_left = 0
                break
            piece = piece[len(self._strip) :]
            self._num_left -= 1
        return piece


class NeighbourPieces:
    """Tokens whose text depends on the token before them: word pieces, or no decoder at all."""

    def __init__(self, fast: FastTokenizer) -> None:
        self._fast = fast

    def decode(self, *token_ids: int) -> str:
        """The decoder's own text of a few tokens."""
        return self._fast.decode(list(token_ids), skip_special_tokens=False)

    def has(self, token_id: int) -> bool:
        """Whether the id is a token's."""
        return _token(self._fast, token_id) is not None

    def token_bytes(self, token_id: int) -> bytes:
        """The text of the token alone; empty for an id that is no token."""
        return self.decode(token_id).encode() if self.has(token_id) else b""

    def reader(self, *, continues: bool) -> PieceReader:
        """A reader; inside a text its first token is read as if it followed another like itself."""
        return _NeighbourReader(self, continues)


class _NeighbourReader:
    def __init__(self, pieces: NeighbourPieces, continues: bool) -> None:
        self._pieces = pieces
        self._continues = continues
        self._previous: int | None = None

    def read(self, token_id: int) -> bytes:
        """What this token adds to the bytes of the text."""
        if not self._pieces.has(token_id):
            return b""
        previous, self._previous = self._previous, token_id
        if previous is None and self._continues:
            previous = token_id
        if previous is None:
            return self._pieces.decode(token_id).encode()
        before = self._pieces.decode(previous)
        return self._pieces.decode(previous, token_id)[len(before) :].encode()
