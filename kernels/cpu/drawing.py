"""Drawing one token of each row of logits: the checks and the result's memory; the arithmetic is in src/."""

from __future__ import annotations

import torch

from . import _native
from .arguments import unit_stride


def draw_rows(
    engine: _native.Engine,
    logits: torch.Tensor,
    temperature: torch.Tensor,
    min_p: torch.Tensor,
    uniform: torch.Tensor,
) -> torch.Tensor:
    """Softmax of each row at its temperature, then the inverse of the cumulative sum, by id.

    A row of NaN draws some id in range.

    Args:
        engine: who computes.
        logits: `[n, vocab_size]` float32, vocab_size at least 1.
        temperature: `[n]` float32, above 0.
        min_p: `[n]` float32; what is less likely than this times the likeliest is never drawn.
        uniform: `[n]` float64 in [0, 1), the numbers that decide.

    Returns:
        `[n]` int64.

    Raises:
        ValueError: a shape or a dtype differs.
    """
    if logits.dim() != 2 or logits.dtype != torch.float32 or logits.shape[1] < 1:
        raise ValueError(
            f"logits must be float32 [n, vocab_size], not {logits.dtype} {list(logits.shape)}"
        )
    num_rows, vocab_size = logits.shape
    for name, column, dtype in (
        ("temperature", temperature, torch.float32),
        ("min_p", min_p, torch.float32),
        ("uniform", uniform, torch.float64),
    ):
        if column.shape != (num_rows,) or column.dtype != dtype:
            raise ValueError(
                f"{name} must be {dtype} [{num_rows}], not {column.dtype} {list(column.shape)}"
            )
    logits = unit_stride(logits)
    temperature, min_p, uniform = (c.contiguous() for c in (temperature, min_p, uniform))
    out = torch.empty(num_rows, dtype=torch.int64)
    engine.draw(
        logits.data_ptr(),
        logits.stride(0),
        num_rows,
        vocab_size,
        temperature.data_ptr(),
        min_p.data_ptr(),
        uniform.data_ptr(),
        out.data_ptr(),
    )
    return out
