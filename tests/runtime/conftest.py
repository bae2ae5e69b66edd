"""A whole model small enough for any test: a random two-layer llama over a byte vocabulary."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from ramet.runtime.sources.base import StoredTensor, TokenizerFiles

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokenizer() -> TokenizerFiles:
    """Ids 0 to 2 are special tokens, id 3 + b is byte b."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    by_byte = {i: c for i, c in enumerate(_byte_characters(alphabet))}
    vocab = {text: i for i, text in enumerate(SPECIAL)}
    vocab.update({character: 3 + byte for byte, character in by_byte.items()})
    fast = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    config = {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
    }
    return TokenizerFiles(fast, config, TEMPLATE, frozenset({0, 1, 2}))


def _byte_characters(alphabet: list[str]) -> list[str]:
    """The character that stands for each byte in the GPT-2 alphabet, by byte value."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    characters = {byte: chr(byte) for byte in printable}
    shifted = iter(range(256, 512))
    for byte in range(256):
        if byte not in characters:
            characters[byte] = chr(next(shifted))
    assert sorted(characters.values()) == alphabet
    return [characters[byte] for byte in range(256)]


@dataclass(frozen=True)
class TinySource:
    """A `ModelSource` whose weights come from a seed."""

    settings: dict[str, Any]
    name: str = "tiny"

    def config(self) -> dict[str, Any]:
        return dict(self.settings)

    def eos_token_ids(self) -> tuple[int, ...]:
        return (2,)

    def stored(self) -> dict[str, StoredTensor]:
        return {name: StoredTensor(tuple(tensor.shape)) for name, tensor in self.tensors()}

    def tensors(self, *, quantized: bool = False) -> Iterator[tuple[str, torch.Tensor]]:
        generator = torch.Generator().manual_seed(0)

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator) * 0.35

        yield "model.embed_tokens.weight", random(259, 32) * 3
        for layer in range(2):
            prefix = f"model.layers.{layer}."
            for name, rows in (("q", 32), ("k", 16), ("v", 16), ("o", 32)):
                yield f"{prefix}self_attn.{name}_proj.weight", random(rows, 32)
            yield f"{prefix}mlp.gate_proj.weight", random(48, 32)
            yield f"{prefix}mlp.up_proj.weight", random(48, 32)
            yield f"{prefix}mlp.down_proj.weight", random(32, 48)
            yield f"{prefix}input_layernorm.weight", torch.ones(32)
            yield f"{prefix}post_attention_layernorm.weight", torch.ones(32)
        yield "model.norm.weight", torch.ones(32)
        yield "lm_head.weight", random(259, 32)

    def tokenizer(self) -> TokenizerFiles:
        return byte_tokenizer()


@pytest.fixture(scope="session")
def tiny_source(tiny_llama: Callable[..., dict[str, Any]]) -> TinySource:
    return TinySource(tiny_llama(vocab_size=259, num_hidden_layers=2, max_position_embeddings=512))


@pytest.fixture(scope="session")
def tiny_folder(tiny_source: TinySource, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model as a Hugging Face folder."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    folder.mkdir()
    files = tiny_source.tokenizer()
    files.fast.save(str(folder / "tokenizer.json"))
    tokenizer_config = {**files.config, "chat_template": files.chat_template}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config), "utf-8")
    (folder / "config.json").write_text(json.dumps(tiny_source.config()), "utf-8")
    save_file(dict(tiny_source.tensors()), folder / "model.safetensors")
    return folder
