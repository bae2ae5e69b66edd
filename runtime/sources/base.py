"""What a loadable model offers, whatever file format it lies in.

Two formats implement it: `HfDirectory` (config.json, tokenizer, safetensors) and `GgufFile`. Both speak
the Hugging Face dialect outward (config keys, tensor names, row order), so that nothing above this
folder knows which one it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer as FastTokenizer

    from ramet.kernels.quantization import QuantizedWeight


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """A tokenizer as its parts.

    Attributes:
        fast: the `tokenizers` object; truncation and padding are off.
        config: content of tokenizer_config.json (`bos_token`, `eos_token`, `add_bos_token`, …).
        chat_template: Jinja text, or None if the model has none.
        special_ids: ids of the tokens that are markers, not text.
    """

    fast: FastTokenizer
    config: dict[str, Any]
    chat_template: str | None
    special_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """What a file's header says of one tensor.

    Attributes:
        shape: outermost dimension first.
        bits: 4 or 8 where `ModelSource.tensors` can yield it still quantized, else None.
        has_minimums: whether its groups have minimums then.
    """

    shape: tuple[int, ...]
    bits: int | None = None
    has_minimums: bool = False


class ModelSource(Protocol):
    """One model on disk."""

    @property
    def name(self) -> str:
        """A short name for messages and for /v1/models."""

    def config(self) -> dict[str, Any]:
        """The content of config.json, read without loading any weight.

        Raises:
            ConfigError: there is none, or it is not valid; names the file.
        """

    def eos_token_ids(self) -> tuple[int, ...]:
        """Ids that end a generation: of generation_config.json, else config.json, else the tokenizer."""

    def stored(self) -> dict[str, StoredTensor]:
        """Every tensor that `tensors` will yield, by name, from the headers alone.

        Raises:
            ConfigError: as `tensors`.
        """

    def tensors(
        self, *, quantized: bool = False
    ) -> Iterator[tuple[str, torch.Tensor | QuantizedWeight]]:
        """Every tensor under its Hugging Face name, one at a time; GGUF ones dequantized to float32.

        Args:
            quantized: yield those that have `StoredTensor.bits` as a `QuantizedWeight` of the same values.

        Raises:
            ConfigError: a shard is missing or cut short; names the file.
        """

    def tokenizer(self) -> TokenizerFiles:
        """The tokenizer.

        Raises:
            ConfigError: there is none, or it cannot be read; names the file.
        """
