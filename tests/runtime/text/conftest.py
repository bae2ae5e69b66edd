"""Small tokenizers of the kinds that models have, made on the spot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as FastTokenizer

from ramet.runtime.sources.base import TokenizerFiles
from ramet.runtime.text.tokenizer import Tokenizer

CORPUS = [
    "The capital of France is Paris, and the capital of Italy is Rome.",
    "hello world, hello wörld — naïve café; 삼겹살 주세요",
    "def add(a, b):\n    return a + b  # 12345",
    "an emoji has many bytes: 👍 👍",
]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CONFIG = {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}}


def byte_level() -> FastTokenizer:
    """Byte-level BPE with special tokens and two added ones that are text."""
    fast = FastTokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    fast.train_from_iterator(CORPUS, trainer)
    fast.add_tokens([AddedToken("<tool call>"), AddedToken("日本")])
    return fast


def byte_fallback(*, strip: bool = True) -> FastTokenizer:
    """SentencePiece's kind: "▁" for spaces, raw bytes for what the vocabulary lacks."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words = ["▁", "a", "b", "é", "살", "▁the", "▁a", "he", "th", "▁▁", "lo", "<0xZZ>", "\n"]
    alphabet = [chr(code) for code in range(ord("c"), ord("z") + 1)]
    vocab = {piece: id_ for id_, piece in enumerate([*pieces, *words, *alphabet])}
    merges = [("h", "e"), ("t", "h"), ("l", "o"), ("▁", "a"), ("▁", "▁")]
    fast = FastTokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True)
    )
    fast.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        if strip
        else [normalizers.Replace(" ", "▁")]
    )
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    fast.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)
    fast.add_special_tokens(["<s>", "</s>"])
    return fast


def unigram(prepend_scheme: str) -> FastTokenizer:
    """The Metaspace kind."""
    pieces = [
        ("<unk>", 0.0),
        *((piece, -2.0) for piece in ("▁", "▁the", "a", "b", "th", "e", "▁▁")),
    ]
    fast = FastTokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    fast.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend_scheme)
    fast.decoder = decoders.Metaspace(prepend_scheme=prepend_scheme)
    return fast


def word_piece() -> FastTokenizer:
    """A decoder whose text for a token depends on the token before it."""
    words = ["[UNK]", "hello", "wor", "##ld", "##s", ",", "!", "it", "'s", "don", "'", "t", "."]
    vocab = {word: id_ for id_, word in enumerate(words)}
    fast = FastTokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    fast.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    fast.decoder = decoders.WordPiece()
    return fast


def plain_words() -> FastTokenizer:
    """No decoder at all: tokens are joined by spaces."""
    return FastTokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "bc": 2}, unk_token="[UNK]"))


def wrap(fast: FastTokenizer, config: dict[str, Any] | None = None) -> Tokenizer:
    """A Tokenizer without a chat template."""
    return Tokenizer(TokenizerFiles(fast, config or {}, None, frozenset()))


KINDS = {
    "byte-level": byte_level,
    "byte-fallback": byte_fallback,
    "byte-fallback-unstripped": lambda: byte_fallback(strip=False),
    "metaspace-always": lambda: unigram("always"),
    "metaspace-never": lambda: unigram("never"),
    "word-piece": word_piece,
    "no-decoder": plain_words,
}


@pytest.fixture(scope="session", params=sorted(KINDS))
def fast(request: pytest.FixtureRequest) -> FastTokenizer:
    """Each kind in turn, as the library's object."""
    made: FastTokenizer = KINDS[request.param]()
    return made


@pytest.fixture(scope="session")
def any_tokenizer(fast: FastTokenizer) -> Tokenizer:
    """Each kind in turn."""
    return wrap(fast)


@pytest.fixture(scope="session")
def byte_level_tokenizer() -> Tokenizer:
    """Byte-level, with the special tokens of ChatML."""
    return wrap(byte_level(), CONFIG)


@pytest.fixture(scope="session", params=["byte-level", "byte-fallback", "byte-fallback-unstripped"])
def byte_tokenizer(request: pytest.FixtureRequest) -> Iterator[Tokenizer]:
    """Each kind that can spell any text."""
    yield wrap(KINDS[request.param]())
