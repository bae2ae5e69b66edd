"""GGUF's blocks of few bits as the `QuantizedWeight` of the same values: split, not expanded.

Every block of 32 elements has a float16 scale, or one that is a product of two (Q4_K), and maybe a
minimum; that is what a group of `QuantizedWeight` has. What does not fit it (Q6_K's groups of 16, tables
of values) is expanded by the reader.

Source: the block layouts of https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from .gguf_tensors import unpermute

if TYPE_CHECKING:
    from ramet.kernels.quantization import QuantizedWeight

GROUP = 32
_Q = GGMLQuantizationType
STORED_BITS = {_Q.Q4_0: 4, _Q.Q4_1: 4, _Q.Q4_K: 4, _Q.Q5_0: 8, _Q.Q5_1: 8, _Q.Q8_0: 8}
"""The storage types that `to_quantized` knows, and in how many bits they come."""
WITH_MINIMUMS = frozenset({_Q.Q4_1, _Q.Q4_K, _Q.Q5_1})
"""Those whose groups have minimums; of the others a minimum follows from the scale."""
EXACT = frozenset(STORED_BITS) - {_Q.Q4_K}
"""Those of which it changes no value. Q4_K's scales and minimums are products, rounded to float16 here."""

Values = NDArray[np.uint8]
Scales = NDArray[np.float16]


def to_quantized(
    raw: NDArray[np.uint8], qtype: GGMLQuantizationType, num_heads: int | None = None
) -> QuantizedWeight:
    """A matrix as it lies in the file, as a `QuantizedWeight`.

    Args:
        raw: `[out_features, bytes of one row]`.
        qtype: one of `STORED_BITS`.
        num_heads: if its rows are interleaved, the heads that they are divided into.
    """
    import torch

    from ramet.kernels.quantization import QuantizedWeight

    num_rows = raw.shape[0]
    blocks = raw.reshape(num_rows, -1, GGML_QUANT_SIZES[qtype][1])
    values, scales, minimums = _split(blocks, qtype)
    parts: list[torch.Tensor | None] = []
    for part in (values, scales, minimums):
        if part is not None:
            rows = part.reshape(num_rows, -1)
            part = np.ascontiguousarray(rows if num_heads is None else unpermute(rows, num_heads))
        parts.append(None if part is None else torch.from_numpy(part))
    assert parts[0] is not None and parts[1] is not None
    return QuantizedWeight(parts[0], parts[1], parts[2], bits=STORED_BITS[qtype])


def _split(
    blocks: NDArray[np.uint8], qtype: GGMLQuantizationType
) -> tuple[Values, Scales, Scales | None]:
    """Values, scales and minimums of `[rows, blocks of a row, bytes of a block]`; rows stay apart."""
    if qtype == _Q.Q4_K:
        return _split_super_blocks(blocks)
    scales = _float16(blocks, 0)
    if qtype == _Q.Q8_0:
        # From two's complement to an offset of 128.
        return blocks[..., 2:] ^ np.uint8(128), scales, None
    if qtype == _Q.Q4_0:
        return _nibbles(blocks[..., 2:]), scales, None
    if qtype == _Q.Q5_0:
        return _fifth_bits(blocks[..., 2:]), scales, scales * np.float16(-16)
    minimums, rest = _float16(blocks, 2), blocks[..., 4:]
    return _nibbles(rest) if qtype == _Q.Q4_1 else _fifth_bits(rest), scales, minimums


def _split_super_blocks(blocks: NDArray[np.uint8]) -> tuple[Values, Scales, Scales]:
    """Q4_K: eight groups with 6-bit scales and minimums, in units of one float16 each."""
    scale_unit, minimum_unit = (_float16(blocks, at).astype(np.float32) for at in (0, 2))
    first, second, high = (blocks[..., at : at + 4] for at in (4, 8, 12))
    scale_steps = np.concatenate(
        [first & 63, (high & 15) | ((first >> 2) & 48)], axis=-1, dtype=np.float32
    )
    minimum_steps = np.concatenate(
        [second & 63, (high >> 4) | ((second >> 2) & 48)], axis=-1, dtype=np.float32
    )
    pairs = blocks[..., 16:].reshape(*blocks.shape[:-1], 4, GROUP)
    return (
        np.stack([pairs & 15, pairs >> 4], axis=-2),
        (scale_unit * scale_steps).astype(np.float16),
        (-minimum_unit * minimum_steps).astype(np.float16),
    )


def _nibbles(packed: NDArray[np.uint8]) -> Values:
    """Low halves are a block's first sixteen values, high halves the others."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _fifth_bits(packed: NDArray[np.uint8]) -> Values:
    """Four bytes of highest bits, the first value's lowest, and sixteen of nibbles."""
    high = np.unpackbits(packed[..., :4], axis=-1, bitorder="little")
    return _nibbles(packed[..., 4:]) | (high << np.uint8(4))


def _float16(blocks: NDArray[np.uint8], at: int) -> Scales:
    return np.ascontiguousarray(blocks[..., at : at + 2]).view(np.float16)
