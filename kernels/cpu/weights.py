"""Weights in and out of the native layout: packed once, checked wherever an op uses them."""

from __future__ import annotations

import torch

from ..ops import PackedLinear
from ..quantization import QuantizedWeight
from . import _native
from .arguments import address, code_of, dtype_code


def pack(
    engine: _native.Engine,
    weight: torch.Tensor | QuantizedWeight,
    bias: torch.Tensor | None,
    *,
    gated: bool,
) -> _native.PackedLinear:
    """The weight in panels.

    Raises:
        ValueError: see `Kernels.pack_linear` and `Kernels.pack_gated_linear`.
    """
    if len(weight.shape) != 2:
        raise ValueError(f"a weight must be a matrix, not {list(weight.shape)}")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(
            f"a bias of {list(bias.shape)} does not fit a weight of {list(weight.shape)}"
        )
    if isinstance(weight, QuantizedWeight):
        return _pack_quantized(engine, weight, bias, gated)
    weight = weight.detach().contiguous()
    bias = None if bias is None else bias.detach().to(weight.dtype).contiguous()
    return engine.pack(
        code_of(weight),
        weight.data_ptr(),
        address(bias),
        weight.shape[0],
        weight.shape[1],
        gated,
    )


def _pack_quantized(
    engine: _native.Engine, weight: QuantizedWeight, bias: torch.Tensor | None, gated: bool
) -> _native.PackedLinear:
    if weight.values.device.type != "cpu":
        raise ValueError(f"cpu kernels take tensors on cpu, not on {weight.values.device}")
    values, scales = weight.values.contiguous(), weight.scales.contiguous()
    minimums = None if weight.minimums is None else weight.minimums.contiguous()
    bias = None if bias is None else bias.detach().to(weight.dtype).contiguous()
    return engine.pack_quantized(
        dtype_code(weight.dtype),
        weight.bits,
        values.data_ptr(),
        scales.data_ptr(),
        address(minimums),
        address(bias),
        weight.shape[0],
        weight.shape[1],
        gated,
    )


def packed(weight: PackedLinear) -> _native.PackedLinear:
    """The native weight behind the protocol."""
    assert isinstance(weight, _native.PackedLinear)
    return weight


def plain(weight: PackedLinear) -> _native.PackedLinear:
    """The same, which must not be a gated one.

    Raises:
        ValueError: it is.
    """
    native = packed(weight)
    if native.gated:
        raise ValueError("a weight from pack_gated_linear is for gated_linear only")
    return native


def checked_input(x: torch.Tensor, weight: _native.PackedLinear) -> torch.Tensor:
    """x with dense rows.

    Raises:
        ValueError: not `[num_tokens, in_features]` of the weight's dtype.
    """
    if x.dim() != 2 or x.shape[1] != weight.in_features:
        raise ValueError(f"x {list(x.shape)} does not fit a weight of {weight.in_features} columns")
    if code_of(x) != weight.dtype:
        raise ValueError(f"x is {x.dtype}, the weight is not")
    return x if x.stride(1) == 1 else x.contiguous()
