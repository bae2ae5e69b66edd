"""In how many bits each weight is held, by a rule that both loading and `ramet plan` follow.

`--quantization int8` is 8 bits at most, `int4` 4 at most:

- A product of a layer whose tensors the file stores in that many bits or fewer is taken as it is stored,
  exactly. Any other is quantized to that many.
- The embedding and the head are held in 8 bits under either, or in 4 if the file has them so. Of an
  embedding, errors go through all layers, and of a head right into the choice of a token; both are a
  small part of all but the smallest models.
- Tensors of one product (queries, keys and values) come in the finest form that one of them has.
- Norms and biases are not quantized.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ramet.kernels.quantization import GROUP_SIZE, QuantizedWeight, dequantize, num_groups, quantize

from ..sources.base import StoredTensor

BITS = {"int8": 8, "int4": 4}
_TABLE_BITS = 8
_SCALE_BYTES = 2


@dataclass(frozen=True, slots=True)
class Width:
    """In how many bits a weight is held, and whether its groups have minimums beside their scales."""

    bits: int
    has_minimums: bool


@dataclass(frozen=True, slots=True)
class Precision:
    """How weights are held.

    Attributes:
        dtype: of activations, biases, and all products if `quantization` is None.
        quantization: None, "int8" or "int4".
    """

    dtype: torch.dtype
    quantization: str | None = None

    @property
    def dtype_name(self) -> str:
        """As the flag has it, `bfloat16`."""
        return dtype_name(self.dtype)

    def width_of(self, stored: Iterable[StoredTensor], *, is_table: bool) -> Width | None:
        """The width of a weight that is put together from those tensors; None if it is not quantized.

        Args:
            stored: what the file has of it.
            is_table: whether it is the embedding or the head.
        """
        if self.quantization is None:
            return None
        most = _TABLE_BITS if is_table else BITS[self.quantization]
        parts = [_part_width(part, most) for part in stored] or [_quantized_width(most)]
        bits = max(part.bits for part in parts)
        # As `quantization.cat` has it: what some part implies is written down where another differs.
        is_implied = all(part.bits == bits and not part.has_minimums for part in parts)
        return Width(bits, not is_implied)

    def num_bytes(self, num_rows: int, num_columns: int, width: Width | None) -> int:
        """What a weight takes once packed, padding apart."""
        if width is None:
            return num_rows * num_columns * self.dtype.itemsize
        num_scales = 2 if width.has_minimums else 1
        group_bytes = GROUP_SIZE * width.bits // 8 + num_scales * _SCALE_BYTES
        return num_rows * num_groups(num_columns) * group_bytes


def _part_width(part: StoredTensor, most: int) -> Width:
    if part.bits is None or part.bits > most:
        return _quantized_width(most)
    return Width(part.bits, part.has_minimums)


def _quantized_width(bits: int) -> Width:
    """That of what `quantize` makes."""
    return Width(bits, has_minimums=bits == 4)


def dtype_name(dtype: torch.dtype) -> str:
    """As flags have it, `bfloat16`."""
    return str(dtype).removeprefix("torch.")


def with_bits(weight: torch.Tensor | QuantizedWeight, bits: int) -> QuantizedWeight:
    """A matrix in that many bits at most: as it is if it already is, else quantized."""
    if isinstance(weight, QuantizedWeight):
        if weight.bits <= bits:
            return weight
        weight = dequantize(weight, torch.float32)
    return quantize(weight, bits)
