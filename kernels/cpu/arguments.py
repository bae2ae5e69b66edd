"""Tensors as the native module takes them: checked, dense where they must be, as addresses and codes."""

from __future__ import annotations

import torch

from ..kv_rows import row_size
from ..ops import ACTIVATIONS
from . import _native

DTYPES = (torch.float32, torch.bfloat16)
_CODES = {dtype: code for code, dtype in enumerate(DTYPES)}
_CACHE_CODES = {**_CODES, torch.int8: len(_CODES)}
_CACHE_PARTS = {"": 0, "keys": 1, "values": 2}
_ACTIVATION_CODES = {name: code for code, name in enumerate(ACTIVATIONS, start=1)}


class Rotation:
    """Positions and the table of cosines and sines, checked and contiguous."""

    def __init__(self, positions: torch.Tensor, cos_sin: torch.Tensor, x: torch.Tensor) -> None:
        self.positions = int64(positions, "positions")
        if self.positions.shape[0] != x.shape[0]:
            raise ValueError(f"{self.positions.shape[0]} positions for {x.shape[0]} tokens")
        if cos_sin.dtype != torch.float32 or cos_sin.shape[1] % 2 or cos_sin.shape[1] > x.shape[2]:
            raise ValueError(
                f"cos_sin must be float32 [max_positions, rotary_dim <= {x.shape[2]}], not "
                f"{cos_sin.dtype} {list(cos_sin.shape)}"
            )
        self.cos_sin = cos_sin.contiguous()


def heads_job(
    x: torch.Tensor,
    out: torch.Tensor,
    *,
    rotation: Rotation | None = None,
    slots: torch.Tensor | None = None,
    part: str = "",
) -> _native.HeadsJob:
    """A `HeadsJob` from x to out; where there are slots, a cache of that part: "keys" or "values"."""
    return _native.HeadsJob(
        code_of(x),
        code_of(out) if slots is None else cache_code_of(out),
        x.data_ptr(),
        x.stride(0),
        x.stride(1),
        x.shape[1],
        x.shape[2],
        0 if rotation is None else rotation.cos_sin.shape[1],
        0 if rotation is None else rotation.positions.data_ptr(),
        0 if rotation is None else rotation.cos_sin.shape[0],
        0 if rotation is None else rotation.cos_sin.data_ptr(),
        address(slots),
        0 if slots is None else out.shape[0] * out.shape[1],
        _CACHE_PARTS[part],
        0 if slots is None else out.shape[1],
        out.data_ptr(),
    )


def dtype_code(dtype: torch.dtype) -> int:
    """The native code of a dtype.

    Raises:
        ValueError: there is none.
    """
    code = _CODES.get(dtype)
    if code is None:
        raise ValueError(f"cpu kernels compute float32 and bfloat16, not {dtype}")
    return code


def code_of(tensor: torch.Tensor) -> int:
    """The native code of its dtype.

    Raises:
        ValueError: another dtype, or not on the CPU.
    """
    _check_device(tensor)
    return dtype_code(tensor.dtype)


def cache_code_of(cache: torch.Tensor) -> int:
    """The native code of a cache's dtype.

    Raises:
        ValueError: another dtype, or not on the CPU.
    """
    _check_device(cache)
    code = _CACHE_CODES.get(cache.dtype)
    if code is None:
        raise ValueError(f"caches of cpu kernels are float32, bfloat16 or int8, not {cache.dtype}")
    return code


def _check_device(tensor: torch.Tensor) -> None:
    if tensor.device.type != "cpu":
        raise ValueError(f"cpu kernels take tensors on cpu, not on {tensor.device}")


def activation_code(name: str) -> int:
    """The native code of an activation.

    Raises:
        ValueError: unknown.
    """
    code = _ACTIVATION_CODES.get(name)
    if code is None:
        raise ValueError(f"unknown activation {name!r}; known are {', '.join(ACTIVATIONS)}")
    return code


def address(tensor: torch.Tensor | None) -> int:
    """Where its elements are; 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()


def int64(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Contiguous `[num_tokens]` int64.

    Raises:
        ValueError: another dtype or number of dimensions.
    """
    if tensor.dtype != torch.int64 or tensor.dim() != 1:
        raise ValueError(
            f"{name} must be int64 [num_tokens], not {tensor.dtype} {list(tensor.shape)}"
        )
    return tensor.contiguous()


def unit_stride(x: torch.Tensor) -> torch.Tensor:
    """x itself if its last dimension is dense, else a copy."""
    return x if x.stride(-1) == 1 else x.contiguous()


def slots_of(slot_mapping: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """The slots of k's tokens.

    Raises:
        ValueError: not int64, or not one for each token.
    """
    slots = int64(slot_mapping, "slot_mapping")
    if slots.shape[0] != k.shape[0]:
        raise ValueError(f"{slots.shape[0]} slots for {k.shape[0]} tokens")
    return slots


def check_alike(k: torch.Tensor, v: torch.Tensor) -> None:
    """See that keys and values to be stored are of one shape.

    Raises:
        ValueError: they are not.
    """
    if k.shape != v.shape:
        raise ValueError(f"v must be {tuple(k.shape)} like k, not {tuple(v.shape)}")


def check_caches(
    k_cache: torch.Tensor, v_cache: torch.Tensor, heads: tuple[int, ...] | torch.Size
) -> None:
    """See that both are contiguous, of one shape and dtype, with rows for `heads` in every slot.

    Args:
        heads: (num_kv_heads, head_dim).

    Raises:
        ValueError: they are not.
    """
    for cache in (k_cache, v_cache):
        rows = (heads[0], row_size(heads[1], cache.dtype))
        if cache.dim() != 4 or cache.shape[2:] != rows or not cache.is_contiguous():
            raise ValueError(
                f"a cache of {cache.dtype} must be contiguous [num_blocks, block_size, {rows[0]}, "
                f"{rows[1]}], not {list(cache.shape)}"
            )
    if k_cache.dtype != v_cache.dtype or k_cache.shape != v_cache.shape:
        raise ValueError("the caches of keys and values must have one shape and dtype")
