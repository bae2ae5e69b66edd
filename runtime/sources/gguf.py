"""A model in one GGUF file.

It puts together what the modules beside it read: the container (gguf_reader), the configuration
(gguf_config), names and row order (gguf_tensors), weights that stay quantized (gguf_quantized) and the
tokenizer (gguf_tokenizer).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .base import StoredTensor, TokenizerFiles
from .gguf_config import Facts, architecture_of, build_config
from .gguf_quantized import EXACT, STORED_BITS, WITH_MINIMUMS, to_quantized
from .gguf_reader import GgufReader
from .gguf_tensors import CONFIG_TENSORS, hf_name, is_norm, is_rotated, unpermute
from .gguf_tokenizer import GgufVocabulary, build_tokenizer

if TYPE_CHECKING:
    import torch

    from ramet.kernels.quantization import QuantizedWeight


class GgufFile:
    """A `ModelSource` over one GGUF file; tensors are expanded to float32 unless asked for as stored.

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

    def stored(self) -> dict[str, StoredTensor]:
        """The shape of every tensor, and the bits of those that need not be expanded.

        Raises:
            ConfigError: a tensor has no counterpart.
        """
        found = {}
        for name, renamed in self._hf_names().items():
            tensor = self.reader.tensors[name]
            bits = STORED_BITS.get(tensor.qtype) if len(tensor.shape) == 2 else None
            has_minimums = bits is not None and tensor.qtype in WITH_MINIMUMS
            found[renamed] = StoredTensor(tensor.shape, bits, has_minimums)
        return found

    def tensors(
        self, *, quantized: bool = False
    ) -> Iterator[tuple[str, torch.Tensor | QuantizedWeight]]:
        """Every tensor under its Hugging Face name, one at a time, in Hugging Face's row order.

        Args:
            quantized: yield those of `gguf_quantized.STORED_BITS` as they are; the others are float32.

        Raises:
            ConfigError: a tensor has no counterpart, or its storage type cannot be expanded; before the
                first is yielded.
        """
        names, table = self._hf_names(), self.stored()
        self.reader.check_types()
        facts = Facts(self.reader, self.reader.metadata["general.architecture"])
        for name, renamed in names.items():
            num_heads = None
            if self._architecture.permuted and is_rotated(name):
                num_heads = facts.num_heads if ".attn_q." in name else facts.num_kv_heads
            if quantized and table[renamed].bits is not None:
                yield renamed, self._quantized(name, num_heads)
            else:
                yield renamed, self._expanded(name, num_heads)

    def _quantized(self, name: str, num_heads: int | None) -> QuantizedWeight:
        tensor = self.reader.tensors[name]
        return to_quantized(self.reader.raw(tensor), tensor.qtype, num_heads)

    def _expanded(self, name: str, num_heads: int | None) -> torch.Tensor:
        import torch

        tensor = self.reader.tensors[name]
        if tensor.qtype in EXACT and len(tensor.shape) == 2:
            # The same values in half the time.
            from ramet.kernels.quantization import dequantize

            return dequantize(self._quantized(name, num_heads), torch.float32)
        values = self.reader.dequantize(tensor)
        if num_heads is not None:
            values = unpermute(values, num_heads)
        if self._architecture.norm_offset and is_norm(name):
            values -= self._architecture.norm_offset
        return torch.from_numpy(values)

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
