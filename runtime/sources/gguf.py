"""A model in one GGUF file.

It puts together what the modules beside it read: the container (gguf_reader), the configuration
(gguf_config), names and row order (gguf_tensors) and the tokenizer (gguf_tokenizer).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .base import TokenizerFiles
from .gguf_config import Facts, architecture_of, build_config
from .gguf_reader import GgufReader
from .gguf_tensors import CONFIG_TENSORS, hf_name, is_norm, is_rotated, unpermute
from .gguf_tokenizer import GgufVocabulary, build_tokenizer

if TYPE_CHECKING:
    import torch


class GgufFile:
    """A `ModelSource` over one GGUF file; tensors are expanded to float32.

    Args:
        path: the file.
        name: what the model is called; by default the file's name without its suffix.

    Raises:
        ConfigError: it is not a GGUF file, is cut short, or holds a model of an architecture that is not
            supported.
    """

    def __init__(self, path: Path, name: str | None = None) -> None:
        self.path = path
        self._name = path.stem if name is None else name
        # The quantized data stays reachable: `reader.raw(tensor)` with `tensor.qtype`.
        self.reader = GgufReader(path)
        self._architecture = architecture_of(self.reader)

    @property
    def name(self) -> str:
        """A short name for messages and for /v1/models."""
        return self._name

    def config(self) -> dict[str, Any]:
        """What config.json would say.

        Raises:
            ConfigError: the file lacks a fact, or has one with no counterpart; names it.
        """
        return build_config(self.reader)

    def eos_token_ids(self) -> tuple[int, ...]:
        """Ids that end a generation: the file's end tokens and the known ends of a chat turn.

        Raises:
            ConfigError: the file has no tokenizer.
        """
        return GgufVocabulary(self.reader).end_ids()

    def weight_bytes(self, bytes_per_element: int) -> int:
        """Bytes that all weights take at that precision, once expanded."""
        tensors = self.reader.tensors.values()
        return bytes_per_element * sum(
            prod(tensor.shape) for tensor in tensors if tensor.name not in CONFIG_TENSORS
        )

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every tensor under its Hugging Face name, one at a time, float32, in Hugging Face's row order.

        Raises:
            ConfigError: a tensor has no counterpart, or its storage type cannot be expanded; before the
                first is yielded.
        """
        import torch

        names = self._hf_names()
        self.reader.check_types()
        facts = Facts(self.reader, self.reader.metadata["general.architecture"])
        for name, renamed in names.items():
            values = self.reader.dequantize(self.reader.tensors[name])
            if self._architecture.permuted and is_rotated(name):
                is_query = ".attn_q." in name
                values = unpermute(values, facts.num_heads if is_query else facts.num_kv_heads)
            if self._architecture.norm_offset and is_norm(name):
                values -= self._architecture.norm_offset
            yield renamed, torch.from_numpy(values)

    def _hf_names(self) -> dict[str, str]:
        names = {}
        for name in self.reader.tensors:
            if name in CONFIG_TENSORS:
                continue
            renamed = hf_name(name, self._architecture)
            if renamed is None:
                raise ConfigError(f"{self.path}: tensor {name!r} is not known.")
            names[name] = renamed
        return names

    def tokenizer(self) -> TokenizerFiles:
        """The tokenizer.

        Raises:
            ConfigError: the file has none, or one of a kind that is not known.
        """
        return build_tokenizer(self.reader)
