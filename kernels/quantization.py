"""Weights of 8 or 4 bits in groups of 32 columns: what they hold, and how they come from floats and back.

    w[o, k] = scales[o, g] * values[o, k] + minimums[o, g]        g = k // 32

This holds the GGUF formats Q4_0, Q4_1 and Q8_0 exactly. It owns the arithmetic of single weights; who
multiplies by them, and how they lie in memory then, is each implementation's own business.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

GROUP_SIZE = 32
BITS = (8, 4)

# Rows worked on at once, in elements: what is computed in between then stays in a processor's cache.
_CHUNK_ELEMENTS = 1 << 18
# Widths of the 15 steps of a 4-bit group that are tried, against the distance of its extremes.
_WIDTHS = (1.0, 0.95, 0.9, 0.83)


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedWeight:
    """A matrix `[out_features, in_features]` of 8 or 4 bits an element.

    Attributes:
        values: `[out_features, in_features]` uint8, below `2 ** bits`, one a byte.
        scales: `[out_features, num_groups]` float16; the last group may be short.
        minimums: the same for what value 0 stands for; None: `-(2 ** (bits - 1)) * scales`.
        bits: 8 or 4.
        dtype: float32, bfloat16 or float16, of the matrix that it stands for: products take inputs
            and embeddings give rows of that dtype.

    Raises:
        ValueError: a shape or dtype is not as above, or a 4-bit value is above 15.
    """

    values: torch.Tensor
    scales: torch.Tensor
    minimums: torch.Tensor | None
    bits: int
    dtype: torch.dtype = torch.bfloat16

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise ValueError(f"bits must be 8 or 4, not {self.bits}")
        if self.values.dim() != 2 or self.values.dtype != torch.uint8:
            raise ValueError(
                f"values must be a matrix of uint8, not {self.values.dtype} "
                f"{list(self.values.shape)}"
            )
        if not self.dtype.is_floating_point:
            raise ValueError(f"dtype must be a float's, not {self.dtype}")
        expected = [self.values.shape[0], num_groups(self.values.shape[1])]
        for name, tensor in (("scales", self.scales), ("minimums", self.minimums)):
            if tensor is None:
                continue
            if tensor.dtype != torch.float16 or list(tensor.shape) != expected:
                raise ValueError(
                    f"{name} must be float16 {expected} for values {list(self.values.shape)}, not "
                    f"{tensor.dtype} {list(tensor.shape)}"
                )
        if self.bits == 4 and self.values.numel() and int(self.values.max()) > 15:
            raise ValueError(f"4-bit values go to 15, not to {int(self.values.max())}")

    @property
    def shape(self) -> torch.Size:
        """Of the matrix."""
        return self.values.shape

    def to(self, dtype: torch.dtype) -> QuantizedWeight:
        """The same weight standing for a matrix of another dtype."""
        return replace(self, dtype=dtype)


def num_groups(in_features: int) -> int:
    """Groups of that many columns."""
    return -(-in_features // GROUP_SIZE)


def quantize(weight: torch.Tensor, bits: int) -> QuantizedWeight:
    """The nearest weight of so many bits; `weight: [out_features, in_features]` of a float dtype.

    8 bits: without minimums, the largest of a group at 127. 4 bits: with minimums; of some widths of
    the steps, each with its least-squares fit, the one of the least squared error.

    Raises:
        ValueError: not a matrix of floats with columns, not finite, a group that float16 scales do not
            reach, or bits is not 8 or 4.
    """
    if bits not in BITS:
        raise ValueError(f"bits must be 8 or 4, not {bits}")
    if weight.dim() != 2 or not weight.dtype.is_floating_point:
        raise ValueError(
            f"a weight must be a matrix of floats, not {weight.dtype} {list(weight.shape)}"
        )
    if not weight.shape[1]:
        raise ValueError(f"a weight must have columns, not the shape {list(weight.shape)}")
    shape = (weight.shape[0], num_groups(weight.shape[1]))
    values = torch.empty(weight.shape, dtype=torch.uint8, device=weight.device)
    scales = torch.empty(shape, dtype=torch.float16, device=weight.device)
    minimums = None if bits == 8 else torch.empty_like(scales)
    for rows in _chunks(weight.shape):
        groups = _grouped(weight[rows].detach().float())
        if minimums is None:
            chunk, scales[rows] = _symmetric(groups)
        else:
            chunk, scales[rows], minimums[rows] = _with_minimums(groups)
        values[rows] = chunk.flatten(1)[:, : weight.shape[1]]
    for name, tensor in (("scales", scales), ("minimums", minimums)):
        if tensor is not None and not bool(tensor.isfinite().all()):
            raise ValueError(f"the weight is not finite, or too large for {name} in float16")
    return QuantizedWeight(values, scales, minimums, bits, weight.dtype)


def dequantize(weight: QuantizedWeight, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The matrix `[out_features, in_features]`, computed in float32 and rounded to dtype.

    `dtype` None is that of the weight.
    """
    num_columns = weight.shape[1]
    matrix = torch.empty(
        weight.shape, dtype=weight.dtype if dtype is None else dtype, device=weight.values.device
    )
    missing = -num_columns % GROUP_SIZE
    for rows in _chunks(weight.shape):
        # A short last group is filled up: whole groups are one pass over memory.
        values = F.pad(weight.values[rows], (0, missing)) if missing else weight.values[rows]
        groups = values.reshape(values.shape[0], -1, GROUP_SIZE).float()
        scales, minimums = weight.scales[rows].float(), _minimums(weight, rows)
        groups.mul_(scales.unsqueeze(-1)).add_(minimums.unsqueeze(-1))
        matrix[rows] = groups.flatten(1)[:, :num_columns]
    return matrix


def take(weight: QuantizedWeight, rows: torch.Tensor) -> QuantizedWeight:
    """The rows `[num_rows]` int64, in that order.

    Raises:
        IndexError: a row does not exist.
    """
    minimums = None if weight.minimums is None else weight.minimums[rows]
    return replace(
        weight, values=weight.values[rows], scales=weight.scales[rows], minimums=minimums
    )


def cat(weights: Sequence[QuantizedWeight]) -> QuantizedWeight:
    """The rows of all, one after another, each exactly as it was.

    Where the widths differ the result has 8 bits, and where one has minimums it has them.

    Raises:
        ValueError: there are none, their columns or dtypes differ, or an implied minimum that must be
            written down is beyond float16.
    """
    if not weights:
        raise ValueError("no weights to put together")
    kinds = {(weight.shape[1], weight.dtype) for weight in weights}
    if len(kinds) > 1:
        shapes = ", ".join(f"{list(weight.shape)} {weight.dtype}" for weight in weights)
        raise ValueError(f"weights of different columns or dtypes do not go together: {shapes}")
    if len(weights) == 1:
        return weights[0]
    bits = max(weight.bits for weight in weights)
    implied = all(weight.minimums is None and weight.bits == bits for weight in weights)
    minimums = None if implied else torch.cat([_minimums(weight).half() for weight in weights])
    if minimums is not None and not bool(minimums.isfinite().all()):
        raise ValueError("a scale is too large for its minimum to be written down in float16")
    return QuantizedWeight(
        torch.cat([weight.values for weight in weights]),
        torch.cat([weight.scales for weight in weights]),
        minimums,
        bits,
        weights[0].dtype,
    )


def _minimums(weight: QuantizedWeight, rows: slice = slice(None)) -> torch.Tensor:
    """`[num_rows, num_groups]` float32, whether implied or not."""
    if weight.minimums is not None:
        return weight.minimums[rows].float()
    return weight.scales[rows].float() * -(2.0 ** (weight.bits - 1))


def _chunks(shape: torch.Size) -> Iterator[slice]:
    """Rows that are worked on at once."""
    step = max(1, _CHUNK_ELEMENTS // max(1, shape[1]))
    for first in range(0, shape[0], step):
        yield slice(first, first + step)


def _grouped(rows: torch.Tensor) -> torch.Tensor:
    """`[num_rows, num_groups, 32]`; a short group repeats its last column, which changes no extreme."""
    missing = -rows.shape[1] % GROUP_SIZE
    if missing:
        rows = torch.cat((rows, rows[:, -1:].expand(-1, missing)), dim=1)
    return rows.reshape(rows.shape[0], -1, GROUP_SIZE)


def _symmetric(groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(values, scales) of 8 bits."""
    scales = (groups.abs().amax(-1) / 127).half()
    steps = groups * _inverse(scales.float()).unsqueeze(-1)
    return steps.round_().clamp_(-127, 127).add_(128).to(torch.uint8), scales


def _with_minimums(groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(values, scales, minimums) of 4 bits."""
    low, high = groups.amin(-1), groups.amax(-1)
    middle, width = (low + high) / 2, (high - low) / 15
    centred = groups - middle.unsqueeze(-1)
    mean = centred.mean(-1)
    best = slope = mean_value = torch.zeros_like(middle)
    for share in _WIDTHS:
        values = centred * _inverse(share * width).unsqueeze(-1)
        values.add_(7.5).round_().clamp_(0, 15)
        # The line of least squared error through (value, weight) takes off covariance^2 / variance.
        value = values.mean(-1)
        variance = values.square().mean(-1) - value.square()
        covariance = values.mul_(centred).mean(-1) - value * mean
        inverse = _inverse(variance)
        gain = covariance.square() * inverse
        better = gain > best
        best = torch.where(better, gain, best)
        slope = torch.where(better, covariance * inverse, slope)
        mean_value = torch.where(better, value, mean_value)
    scales = slope.half()
    minimums = (middle + mean - scales.float() * mean_value).half()
    values = _nearest(groups, scales.float(), minimums.float())
    return values.to(torch.uint8), scales, minimums


def _nearest(groups: torch.Tensor, scales: torch.Tensor, minimums: torch.Tensor) -> torch.Tensor:
    """Values 0 … 15 nearest to the weights, as floats."""
    steps = (groups - minimums.unsqueeze(-1)) * _inverse(scales).unsqueeze(-1)
    return steps.round_().clamp_(0, 15)


def _inverse(x: torch.Tensor) -> torch.Tensor:
    """1 / x, and 0 for 0."""
    return torch.where(x == 0, 0.0, 1 / x)
