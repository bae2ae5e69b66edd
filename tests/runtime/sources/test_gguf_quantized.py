"""Blocks of few bits, split into what `QuantizedWeight` holds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize as expand
from numpy.typing import NDArray

from ramet.kernels.quantization import dequantize
from ramet.runtime.sources.gguf_quantized import EXACT, STORED_BITS, to_quantized

NUM_ROWS, NUM_COLUMNS = 6, 512


def random_blocks(qtype: GGMLQuantizationType) -> NDArray[np.uint8]:
    """Any bytes are valid blocks, but for scales that are not finite: those get other exponents."""
    block_len, block_bytes = GGML_QUANT_SIZES[qtype]
    rng = np.random.default_rng(int(qtype))
    shape = (NUM_ROWS, NUM_COLUMNS // block_len, block_bytes)
    blocks = rng.integers(0, 256, shape, dtype=np.uint8)
    # The first two or four bytes are float16: exponents of numbers about 1e-3.
    blocks[..., 1] = blocks[..., 1] & 0x83 | 0x14
    if qtype.name in ("Q4_1", "Q5_1", "Q4_K"):
        blocks[..., 3] = blocks[..., 3] & 0x83 | 0x14
    return blocks.reshape(NUM_ROWS, -1)


@pytest.mark.parametrize("qtype", sorted(STORED_BITS), ids=lambda qtype: qtype.name)
def test_values_are_those_of_the_file(qtype: GGMLQuantizationType) -> None:
    raw = random_blocks(qtype)
    weight = to_quantized(raw, qtype)
    assert weight.bits == STORED_BITS[qtype]
    expected = torch.from_numpy(np.array(expand(raw, qtype)))
    found = dequantize(weight, torch.float32)
    if qtype not in EXACT:
        # Scales and minimums are products, each rounded to float16's 11 bits.
        largest = float(expected.abs().max())
        torch.testing.assert_close(found, expected, rtol=0, atol=2 * largest * 2**-11)
    else:
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("qtype", sorted(STORED_BITS), ids=lambda qtype: qtype.name)
def test_interleaved_rows_come_in_order(qtype: GGMLQuantizationType) -> None:
    raw = random_blocks(qtype)[:4]
    plain, sorted_rows = to_quantized(raw, qtype), to_quantized(raw, qtype, num_heads=1)
    order = torch.tensor([0, 2, 1, 3])
    assert torch.equal(dequantize(sorted_rows), dequantize(plain)[order])
