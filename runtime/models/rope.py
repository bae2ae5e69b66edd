"""Rotary position embeddings as tables of cosines and sines, for every scaling that checkpoints name.

It owns frequencies; it does not know models, and the rotation itself is in kernels/.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import ConfigError
from .hf_keys import HfKeys

ROPE_KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
_REQUIRED = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": (),
    "longrope": ("short_factor", "long_factor"),
}
_OPTIONAL = (
    "attention_factor",
    "low_freq_factor",
    "high_freq_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Which rotation a layer applies to its queries and keys.

    Attributes:
        kind: one of `ROPE_KINDS`.
        theta: base of the wavelengths.
        rotary_dim: leading dims of a head that are rotated.
        max_positions: the checkpoint's max_position_embeddings.
        original_max_positions: context length before it was stretched.
        factor: how far it was stretched.
        attention_factor: scales cosines and sines; None means the kind's own default.
        low_freq_factor, high_freq_factor: llama3's bounds of the band that is interpolated.
        beta_fast, beta_slow, truncate: yarn's bounds, in rotations, and whether to round them.
        mscale, mscale_all_dim: yarn's two terms of a default attention_factor.
        short_factor, long_factor: longrope's divisors, `rotary_dim / 2` each.
    """

    kind: str
    theta: float
    rotary_dim: int
    max_positions: int
    original_max_positions: int
    factor: float = 1.0
    attention_factor: float | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    mscale: float | None = None
    mscale_all_dim: float | None = None
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()

    @classmethod
    def from_hf(
        cls, parameters: Mapping[str, Any], *, head_dim: int, max_positions: int
    ) -> RopeConfig:
        """Read the `rope_parameters` of a config.json, with rope_theta among them.

        Raises:
            ConfigError: the rope type is not supported, or a parameter that it needs is missing,
                out of range or of the wrong length.
        """
        kind = parameters.get("rope_type") or parameters.get("type") or "default"
        if kind == "su":
            kind = "longrope"
        if kind not in ROPE_KINDS:
            raise ConfigError(
                f"rope type {kind!r} is not supported; supported are {', '.join(ROPE_KINDS)}.",
                param="rope_parameters",
            )
        hf = HfKeys(parameters)
        missing = [key for key in _REQUIRED[kind] if parameters.get(key) is None]
        if missing:
            raise ConfigError(
                f"rope type {kind!r} needs {', '.join(missing)}.", param="rope_parameters"
            )
        original = hf.count("original_max_position_embeddings", max_positions)
        optional = {key: hf.positive(key) for key in _OPTIONAL}
        rope = cls(
            kind=kind,
            theta=hf.positive("rope_theta") or 10_000.0,
            rotary_dim=int(head_dim * (hf.positive("partial_rotary_factor") or 1.0)),
            max_positions=max_positions,
            original_max_positions=original,
            factor=hf.positive("factor") or max_positions / original,
            truncate=parameters.get("truncate") is None or hf.flag("truncate"),
            short_factor=_divisors(hf, "short_factor"),
            long_factor=_divisors(hf, "long_factor"),
            **{key: value for key, value in optional.items() if value is not None},
        )
        rope._check()
        return rope

    def _check(self) -> None:
        # Dynamic scaling takes a root of order rotary_dim - 2.
        smallest = 4 if self.kind == "dynamic" else 2
        if self.rotary_dim < smallest or self.rotary_dim % 2:
            raise ConfigError(
                f"rope must rotate an even number of dims, at least {smallest}, "
                f"not {self.rotary_dim}.",
                param="partial_rotary_factor",
            )
        if self.kind == "longrope":
            for name, values in (("short", self.short_factor), ("long", self.long_factor)):
                if len(values) != self.rotary_dim // 2:
                    raise ConfigError(
                        f"{name}_factor must have {self.rotary_dim // 2} numbers, "
                        f"not {len(values)}.",
                        param="rope_parameters",
                    )

    @property
    def default_context(self) -> int:
        """Context length to serve unless told otherwise.

        Kinds whose short-context frequencies differ from their long-context ones default to the short
        context, where the model is at its best.
        """
        if self.kind == "longrope":
            return self.original_max_positions
        return self.max_positions if self.kind == "dynamic" else self.longest_context

    @property
    def longest_context(self) -> int:
        """Longest context that the frequencies are made for.

        `max_position_embeddings` of llama3 and longrope checkpoints includes the stretch already;
        yarn's is derived from the original length, since checkpoints disagree about it.
        """
        if self.kind in ("linear", "dynamic"):
            return int(self.max_positions * self.factor)
        if self.kind == "yarn":
            return int(self.original_max_positions * self.factor)
        return self.max_positions


def _divisors(hf: HfKeys, key: str) -> tuple[float, ...]:
    values = hf.items(key) or ()
    if not all(isinstance(value, int | float) and value > 0 for value in values):
        raise ConfigError(f"{key} must be numbers above 0.", param="rope_parameters")
    return tuple(float(value) for value in values)


def cos_sin_table(rope: RopeConfig, max_positions: int) -> torch.Tensor:
    """Cosines, then sines, of every position: `[max_positions, rotary_dim]` float32 on the CPU.

    A table has one set of frequencies: longrope's long factors and dynamic's larger base are used if
    `max_positions` passes the original context, for every sequence. So the KV of a token depends on its
    prefix alone, and never on how long its sequence has become.
    """
    inverse_frequencies, attention_factor = _frequencies(rope, max_positions)
    angles = torch.arange(max_positions, dtype=torch.float32)[:, None] * inverse_frequencies
    return torch.cat((angles.cos(), angles.sin()), dim=-1) * attention_factor


def _frequencies(rope: RopeConfig, max_positions: int) -> tuple[torch.Tensor, float]:
    if rope.kind == "linear":
        return _default(rope.theta, rope.rotary_dim) / rope.factor, 1.0
    if rope.kind == "dynamic":
        return _dynamic(rope, max_positions), 1.0
    if rope.kind == "llama3":
        return _llama3(rope), 1.0
    if rope.kind == "yarn":
        return _yarn(rope)
    if rope.kind == "longrope":
        return _longrope(rope, max_positions)
    return _default(rope.theta, rope.rotary_dim), 1.0


def _default(theta: float, rotary_dim: int) -> torch.Tensor:
    """Source: Su et al. 2021, section 3.2.2."""
    return 1.0 / theta ** (torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim)


def _dynamic(rope: RopeConfig, max_positions: int) -> torch.Tensor:
    """NTK-aware scaling: a larger base stretches low frequencies most. Source: Peng et al. 2023, 3.1."""
    stretch = max(max_positions, rope.max_positions) / rope.max_positions
    scale = rope.factor * stretch - (rope.factor - 1)
    theta = rope.theta * scale ** (rope.rotary_dim / (rope.rotary_dim - 2))
    return _default(theta, rope.rotary_dim)


def _llama3(rope: RopeConfig) -> torch.Tensor:
    """Low frequencies divided, high ones kept, a ramp between. Source: Llama 3.1's reference model."""
    frequencies = _default(rope.theta, rope.rotary_dim)
    turns = rope.original_max_positions * frequencies / (2 * math.pi)
    ramp = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    kept = ramp.clamp(0, 1)
    return (1 - kept) * frequencies / rope.factor + kept * frequencies


def _yarn(rope: RopeConfig) -> tuple[torch.Tensor, float]:
    """Source: Peng et al. 2023 (YaRN), sections 3.2 (by parts) and 3.4 (attention factor)."""

    def dim_of(num_rotations: float) -> float:
        wavelengths = rope.original_max_positions / (num_rotations * 2 * math.pi)
        return rope.rotary_dim * math.log(wavelengths) / (2 * math.log(rope.theta))

    low, high = dim_of(rope.beta_fast), dim_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.rotary_dim - 1)
    # The smallest ramp, where both bounds fall together, is a step.
    width = high - low or 0.001
    interpolated = ((torch.arange(rope.rotary_dim // 2).float() - low) / width).clamp(0, 1)
    frequencies = _default(rope.theta, rope.rotary_dim)
    mixed = frequencies / rope.factor * interpolated + frequencies * (1 - interpolated)
    if rope.attention_factor is not None:
        return mixed, rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return mixed, _yarn_mscale(rope.factor, rope.mscale) / _yarn_mscale(
            rope.factor, rope.mscale_all_dim
        )
    return mixed, _yarn_mscale(rope.factor, 1.0)


def _yarn_mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _longrope(rope: RopeConfig, max_positions: int) -> tuple[torch.Tensor, float]:
    """Source: Ding et al. 2024 (LongRoPE), section 3; the attention factor as in Phi-3's report."""
    long = max_positions > rope.original_max_positions
    divisors = torch.tensor(rope.long_factor if long else rope.short_factor, dtype=torch.float32)
    frequencies = _default(rope.theta, rope.rotary_dim) / divisors
    if rope.attention_factor is not None:
        return frequencies, rope.attention_factor
    if rope.factor <= 1.0:
        return frequencies, 1.0
    return frequencies, math.sqrt(1 + math.log(rope.factor) / math.log(rope.original_max_positions))
