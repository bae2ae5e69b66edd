"""A vocabulary of the 256 bytes, for what does not depend on a model's tokens."""

from __future__ import annotations

from llguidance import LLTokenizer, TokenizerWrapper


class _Bytes:
    """What llguidance asks of a tokenizer: single bytes, and an end token."""

    eos_token_id = 256
    bos_token_id = None
    tokens = [*(bytes([byte]) for byte in range(256)), b"<end>"]
    special_token_ids = [256]

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


def byte_tokenizer() -> LLTokenizer:
    """The engine's tokenizer over single bytes; takes 2 ms."""
    return LLTokenizer(TokenizerWrapper(_Bytes()), eos_token=[_Bytes.eos_token_id])
