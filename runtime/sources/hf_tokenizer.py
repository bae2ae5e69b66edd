"""Reads the tokenizer of a Hugging Face folder.

The fast tokenizer (tokenizer.json) is taken as it is. A folder that only has a SentencePiece or tiktoken
model is converted by transformers, which is imported for that alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from ..errors import ConfigError
from .base import TokenizerFiles
from .json_files import read_json, read_json_if_there

FAST = "tokenizer.json"
SLOW = ("tokenizer.model", "spiece.model", "vocab.json", "tekken.json")
ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def read_tokenizer(folder: Path) -> TokenizerFiles:
    """The tokenizer of a model folder.

    Raises:
        ConfigError: there is none, it cannot be read or converted, or its files contradict each other.
    """
    config = read_tokenizer_config(folder)
    fast = _fast(folder)
    fast.no_truncation()
    fast.no_padding()
    _add_tokens(fast, config, folder)
    special = {index for index, token in fast.get_added_tokens_decoder().items() if token.special}
    return TokenizerFiles(
        fast=fast,
        config=config,
        chat_template=_chat_template(folder, config),
        special_ids=frozenset(special),
    )


def read_tokenizer_config(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json, with special tokens as plain strings.

    Older folders keep those in special_tokens_map.json; they fill what is absent.

    Raises:
        ConfigError: a file is not valid; names it.
    """
    config = read_json_if_there(folder / "tokenizer_config.json")
    older = read_json_if_there(folder / "special_tokens_map.json")
    for role in ROLES:
        token = config.get(role)
        if token is None:
            token = older.get(role)
        if isinstance(token, dict):
            token = token.get("content")
        if token is not None:
            config[role] = token
    return config


def _fast(folder: Path) -> Tokenizer:
    path = folder / FAST
    if path.is_file():
        try:
            return Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower
            raise ConfigError(f"{path} cannot be read: {error}.") from error
    if not any((folder / name).is_file() for name in SLOW):
        raise ConfigError(
            f"{folder} has no tokenizer: neither {FAST} nor one of {', '.join(SLOW)}."
        )
    return _converted(folder)


def _converted(folder: Path) -> Tokenizer:
    from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
        backend = loaded.backend_tokenizer
    except Exception as error:  # whatever a converter raises, the folder is what cannot work
        raise ConfigError(
            f"{folder} has no {FAST}, and its tokenizer cannot be converted: {error}",
            hint="Installing sentencepiece, protobuf or tiktoken may help.",
        ) from error
    if not isinstance(backend, Tokenizer):
        raise ConfigError(f"{folder} has no {FAST}, and its tokenizer cannot be converted.")
    return backend


def _add_tokens(fast: Tokenizer, config: dict[str, Any], folder: Path) -> None:
    """Add what tokenizer_config.json declares beyond tokenizer.json, as transformers does."""
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    try:
        declared = [
            (int(key), AddedToken(entry["content"], **{f: entry[f] for f in flags if f in entry}))
            for key, entry in config.get("added_tokens_decoder", {}).items()
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{folder}: added_tokens_decoder is not a map of tokens.") from error
    for wanted, token in sorted(declared, key=lambda item: item[0]):
        if token.special:
            fast.add_special_tokens([token])
        else:
            fast.add_tokens([token])
        index = fast.token_to_id(token.content)
        if index != wanted:
            raise ConfigError(
                f"{folder}: token {token.content!r} has id {wanted} in tokenizer_config.json "
                f"and {index} in {FAST}."
            )


def _chat_template(folder: Path, config: dict[str, Any]) -> str | None:
    """The default template; where several are named and none is the default, there is none."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text("utf-8")
    older = folder / "chat_template.json"
    template = (read_json(older) if older.is_file() else config).get("chat_template")
    if isinstance(template, list):
        try:
            named = {entry["name"]: entry["template"] for entry in template}
        except (KeyError, TypeError) as error:
            raise ConfigError(f"{folder}: chat_template lists something without a name.") from error
        template = next(iter(named.values())) if len(named) == 1 else named.get("default")
    if template is not None and not isinstance(template, str):
        raise ConfigError(f"{folder}: chat_template is neither text nor a list of named texts.")
    return template
