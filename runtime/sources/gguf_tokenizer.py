"""Builds a tokenizer from the `tokenizer.ggml.*` metadata of a GGUF file.

Two kinds: byte-level BPE ("gpt2"), whose way of splitting text before BPE the file names, and
SentencePiece BPE ("llama"), whose merges follow from the scores of its pieces. It reads metadata only.

Source: the regular expressions are those of the tokenizers' own tokenizer.json files; which name means
which is listed in llama.cpp's src/llama-vocab.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gguf.constants import TokenType
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from ..errors import ConfigError
from .base import TokenizerFiles
from .gguf_reader import GgufReader

SPACE = "\u2581"

# Tokens that end a turn, whatever the file says the end token is: chat models end on these, while
# `eos_token_id` may be that of the base model.
END_OF_TURN = frozenset(
    {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>"}
)

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class Splitter:
    """How text is cut before byte-level BPE.

    Attributes:
        regex: each match is a piece; None means GPT-2's own expression.
        digits: every digit is a piece of its own first.
        nfc: text is brought to Unicode normal form C first.
        ignore_merges: a piece that is a token is that token, whatever the merges say.
        add_bos: whether a begin token is put in front unless the file says otherwise.
    """

    regex: str | None = None
    digits: bool = False
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """The same as an object of the tokenizers library."""
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.regex is None)
        steps: list[pre_tokenizers.PreTokenizer] = [byte_level]
        if self.regex is not None:
            steps.insert(0, pre_tokenizers.Split(Regex(self.regex), "isolated"))
        if self.digits:
            steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
        return pre_tokenizers.Sequence(steps) if len(steps) > 1 else byte_level


_GPT2_SPLIT = Splitter()
_LLAMA3_SPLIT = Splitter(regex=_LLAMA3, ignore_merges=True, add_bos=True)
_QWEN2_SPLIT = Splitter(regex=_QWEN2, nfc=True)

SPLITTERS = {
    "gpt-2": _GPT2_SPLIT,
    "smollm": Splitter(digits=True),
    "llama-bpe": _LLAMA3_SPLIT,
    "llama3": _LLAMA3_SPLIT,
    "llama-v3": _LLAMA3_SPLIT,
    "smaug-bpe": Splitter(regex=_LLAMA3),
    "qwen2": _QWEN2_SPLIT,
    "deepseek-r1-qwen": _QWEN2_SPLIT,
    "tekken": Splitter(regex=_TEKKEN, ignore_merges=True, add_bos=True),
}


class GgufVocabulary:
    """The tokens of a GGUF file and what it says about them.

    Args:
        reader: the file.

    Raises:
        ConfigError: it has no tokens, or its lists disagree in length.
    """

    def __init__(self, reader: GgufReader) -> None:
        self.reader = reader
        self.tokens: list[str] = self.need("tokens")
        self.types: list[int] = self.get("token_type", [TokenType.NORMAL] * len(self.tokens))
        if len(self.types) != len(self.tokens):
            raise ConfigError(f"{reader.path} is damaged: it does not give every token its type.")

    def get(self, key: str, default: Any = None) -> Any:
        """`metadata[tokenizer.ggml.key]`, or the default."""
        return self.reader.metadata.get(f"tokenizer.ggml.{key}", default)

    def need(self, key: str) -> Any:
        """`metadata[tokenizer.ggml.key]`.

        Raises:
            ConfigError: the file does not have it.
        """
        value = self.get(key)
        if value is None:
            raise ConfigError(f"{self.reader.path} has no tokenizer (tokenizer.ggml.{key}).")
        return value

    def special_ids(self) -> frozenset[int]:
        """Ids of the tokens that are markers, not text."""
        kinds = (TokenType.CONTROL, TokenType.UNKNOWN)
        return frozenset(index for index, kind in enumerate(self.types) if kind in kinds)

    def token_of(self, role: str) -> str | None:
        """The text of the bos, eos, unknown, padding, … token, if there is one."""
        index = self.get(f"{role}_token_id")
        return self.tokens[index] if index is not None and 0 <= index < len(self.tokens) else None

    def end_ids(self) -> tuple[int, ...]:
        """Ids that end a generation: the file's end tokens first, then known ends of a turn."""
        named = [self.get(f"{role}_token_id") for role in ("eos", "eot", "eom")]
        ids = [index for index in named if index is not None]
        ids += [index for index in sorted(self.special_ids()) if self.tokens[index] in END_OF_TURN]
        return tuple(dict.fromkeys(ids))


def build_tokenizer(reader: GgufReader) -> TokenizerFiles:
    """The tokenizer of a GGUF file.

    Raises:
        ConfigError: there is none, or it is of a kind that is not known; the error lists those that are.
    """
    vocabulary = GgufVocabulary(reader)
    kind = vocabulary.need("model")
    if kind == "gpt2":
        splitter = _splitter(vocabulary)
        fast, add_bos = _byte_level(vocabulary, splitter), splitter.add_bos
    elif kind == "llama":
        fast, add_bos = _sentencepiece(vocabulary), True
    else:
        raise ConfigError(
            f"{reader.path} has a tokenizer of kind {kind!r}, which is not supported.",
            hint="Supported in GGUF files: gpt2 (byte-level BPE) and llama (SentencePiece BPE).",
        )
    _add_tokens(fast, vocabulary)
    config = _tokenizer_config(vocabulary, add_bos)
    _add_ends(fast, config)
    return TokenizerFiles(
        fast=fast,
        config=config,
        chat_template=reader.metadata.get("tokenizer.chat_template"),
        special_ids=vocabulary.special_ids(),
    )


def _splitter(vocabulary: GgufVocabulary) -> Splitter:
    name = vocabulary.get("pre")
    if name not in SPLITTERS:
        # Guessing would yield a model that runs and answers a little worse for no visible reason.
        raise ConfigError(
            f"{vocabulary.reader.path} splits text in a way that is not known "
            f"(tokenizer.ggml.pre is {name!r}).",
            hint=f"Supported: {', '.join(sorted(SPLITTERS))}.",
        )
    return SPLITTERS[name]


def _byte_level(vocabulary: GgufVocabulary, splitter: Splitter) -> Tokenizer:
    pairs = [_pair(merge) for merge in vocabulary.need("merges")]
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    merges = [pair for pair in pairs if "".join(pair) in ids and pair[0] in ids and pair[1] in ids]
    if len(merges) != len(pairs):
        raise ConfigError(f"{vocabulary.reader.path} is damaged: a merge of unknown tokens.")
    fast = Tokenizer(models.BPE(ids, merges, ignore_merges=splitter.ignore_merges))
    if splitter.nfc:
        fast.normalizer = normalizers.NFC()
    fast.pre_tokenizer = splitter.pre_tokenizer()
    fast.post_processor = processors.ByteLevel(trim_offsets=False)
    fast.decoder = decoders.ByteLevel()
    return fast


def _pair(merge: str) -> tuple[str, str]:
    # The separator is the first space after the first character, which may be one itself.
    middle = merge.find(" ", 1)
    return merge[:middle], merge[middle + 1 :]


def _sentencepiece(vocabulary: GgufVocabulary) -> Tokenizer:
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    fast = Tokenizer(
        models.BPE(
            ids,
            merges_from_scores(vocabulary.tokens, vocabulary.types, vocabulary.need("scores")),
            unk_token=vocabulary.token_of("unknown"),
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    replace = normalizers.Replace(" ", SPACE)
    steps: list[decoders.Decoder] = [
        decoders.Replace(SPACE, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    if vocabulary.get("add_space_prefix", True):
        fast.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), replace])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        fast.normalizer = replace
    fast.decoder = decoders.Sequence(steps)
    return fast


def merges_from_scores(
    tokens: list[str], types: list[int], scores: list[float]
) -> list[tuple[str, str]]:
    """The merges, best first, that join pieces as SentencePiece's BPE does by score.

    SentencePiece joins the neighbours whose union has the highest score. So every way of cutting a piece
    into two pieces is a merge, ranked by the score of the whole.

    Args:
        tokens: every token's text.
        types: its `TokenType`; only NORMAL ones are joined.
        scores: its score, higher is earlier.
    """
    normal = {
        token: index
        for index, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind == TokenType.NORMAL
    }
    merges = []
    for piece in sorted(normal, key=lambda token: (-scores[normal[token]], normal[token])):
        cuts = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
        known = [(left, right) for left, right in cuts if left in normal and right in normal]
        merges += sorted(known, key=lambda pair: (normal[pair[0]], normal[pair[1]]))
    return merges


def _add_tokens(fast: Tokenizer, vocabulary: GgufVocabulary) -> None:
    special = vocabulary.special_ids()
    markers, phrases = [], []
    for index, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True)):
        if index in special:
            markers.append(AddedToken(token, special=True, normalized=False))
        elif kind == TokenType.USER_DEFINED:
            phrases.append(AddedToken(token, special=False, normalized=False))
    fast.add_special_tokens(markers)
    fast.add_tokens(phrases)


def _tokenizer_config(vocabulary: GgufVocabulary, add_bos: bool) -> dict[str, Any]:
    roles = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    config: dict[str, Any] = {
        key: token
        for role, key in roles.items()
        if (token := vocabulary.token_of(role)) is not None
    }
    config["add_bos_token"] = bool(vocabulary.get("add_bos_token", add_bos))
    config["add_eos_token"] = bool(vocabulary.get("add_eos_token", False))
    config["clean_up_tokenization_spaces"] = False
    return config


def _add_ends(fast: Tokenizer, config: dict[str, Any]) -> None:
    """Make `encode` put the begin and end tokens that the file asks for around a text."""
    parts, special = ["$A"], []
    for key, place in (("bos_token", 0), ("eos_token", len(parts) + 1)):
        token = config.get(key)
        if config[f"add_{key}"] and token is not None:
            parts.insert(place, token)
            special.append((token, fast.token_to_id(token)))
    if special:
        fast.post_processor = processors.TemplateProcessing(
            single=" ".join(parts), special_tokens=list(dict.fromkeys(special))
        )
