"""The parameters of a decoder: which tensors each is put together from, and what it takes.

It is made from a configuration and the headers of a checkpoint, before any tensor is read; weights.py
fills it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ramet.kernels.ops import Kernels, PackedLinear
from ramet.kernels.quantization import QuantizedWeight, cat

from ..sources.base import StoredTensor
from .config import ModelConfig
from .precision import Precision, Width, with_bits

_NORM_DTYPE = torch.float32


class Norm:
    """A norm's weight: float32, with the family's offset added.

    Attributes:
        shapes: of the tensor that it comes from, by name.
    """

    def __init__(self, name: str, size: int, offset: float) -> None:
        self.shapes = {f"{name}.weight": torch.Size([size])}
        self._size, self._offset = size, offset
        self._value: torch.Tensor | None = None

    @property
    def num_bytes(self) -> int:
        """What it takes."""
        return self._size * _NORM_DTYPE.itemsize

    @property
    def value(self) -> torch.Tensor:
        """The weight, once it has come."""
        assert self._value is not None
        return self._value

    def put(self, name: str, tensor: torch.Tensor | QuantizedWeight, device: torch.device) -> None:
        """Take the tensor."""
        assert isinstance(tensor, torch.Tensor)
        self._value = tensor.to(device, _NORM_DTYPE) + self._offset


class Linear:
    """A product put together from rows of several tensors, and packed when the last one has come.

    Args:
        parts: how many rows each tensor has, by name without suffix, in order.
        in_features: columns.
        bias: whether every part has one.
        gated: whether it is packed for `gated_linear`.
        precision: of the model.
        width: of the weight, if it is quantized.
    """

    def __init__(
        self,
        parts: Mapping[str, int],
        in_features: int,
        *,
        bias: bool = False,
        gated: bool = False,
        precision: Precision,
        width: Width | None,
    ) -> None:
        self.shapes: dict[str, torch.Size] = {}
        self._rows: dict[str, slice] = {}
        self._in_features, self._bias, self._gated = in_features, bias, gated
        self._precision, self._width = precision, width
        self._buffers: dict[str, torch.Tensor] = {}
        self._quantized: dict[int, QuantizedWeight] = {}
        self._num_rows = 0
        for part, num_rows in parts.items():
            rows = slice(self._num_rows, self._num_rows + num_rows)
            self._num_rows = rows.stop
            self.shapes[f"{part}.weight"] = torch.Size([num_rows, in_features])
            self._rows[f"{part}.weight"] = rows
            if bias:
                self.shapes[f"{part}.bias"] = torch.Size([num_rows])
                self._rows[f"{part}.bias"] = rows
        self._value: PackedLinear | None = None

    @property
    def num_bytes(self) -> int:
        """What it takes once packed."""
        bias = self._num_rows * self._precision.dtype.itemsize if self._bias else 0
        return bias + self._precision.num_bytes(self._num_rows, self._in_features, self._width)

    @property
    def value(self) -> PackedLinear:
        """The packed weight, once all has come."""
        assert self._value is not None
        return self._value

    @property
    def is_whole(self) -> bool:
        """Whether every tensor has come."""
        return not self._rows

    def put(self, name: str, tensor: torch.Tensor | QuantizedWeight, device: torch.device) -> None:
        """Copy a tensor to its rows."""
        kind, rows = name.rpartition(".")[2], self._rows.pop(name)
        if kind == "weight" and self._width is not None:
            weight = with_bits(tensor, self._width.bits)
            self._quantized[rows.start] = weight.to(self._precision.dtype)
            return
        assert isinstance(tensor, torch.Tensor)
        if kind not in self._buffers:
            shape = (self._num_rows, *tensor.shape[1:])
            self._buffers[kind] = torch.empty(shape, dtype=self._precision.dtype, device=device)
        self._buffers[kind][rows].copy_(tensor.detach())

    def pack(self, kernels: Kernels) -> None:
        """Make the value, and let go of what it was put together from."""
        pack = kernels.pack_gated_linear if self._gated else kernels.pack_linear
        weight: torch.Tensor | QuantizedWeight
        if self._width is None:
            weight = self._buffers.pop("weight")
        else:
            weight = cat([self._quantized[start] for start in sorted(self._quantized)])
            self._quantized.clear()
        self._value = pack(weight, self._buffers.pop("bias", None))


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParameters:
    """The parameters of `LayerWeights`."""

    attention_norm: Norm
    qkv: Linear
    q_norm: Norm | None
    k_norm: Norm | None
    output: Linear
    post_attention_norm: Norm | None
    mlp_norm: Norm
    gate_up: Linear
    down: Linear
    post_mlp_norm: Norm | None


class Parameters:
    """Every parameter of a decoder.

    Args:
        config: what the model is.
        precision: how its weights are held.
        stored: what the checkpoint has; read only if `precision` quantizes.

    Attributes:
        by_tensor: which parameter each tensor of the checkpoint belongs to.
        head: `embedding` itself where they are tied.
    """

    def __init__(
        self, config: ModelConfig, precision: Precision, stored: Mapping[str, StoredTensor]
    ) -> None:
        self._config, self._precision, self._stored = config, precision, stored
        self.by_tensor: dict[str, Norm | Linear] = {}
        self.embedding = self._table("model.embed_tokens")
        self.layers = [self._layer(i) for i in range(config.num_layers)]
        self.final_norm = self._norm("model.norm", config.hidden_size)
        self.head = self.embedding if config.tie_word_embeddings else self._table("lm_head")

    @property
    def num_bytes(self) -> int:
        """What all of them take."""
        return sum(parameter.num_bytes for parameter in set(self.by_tensor.values()))

    def _norm(self, name: str, size: int) -> Norm:
        norm = Norm(name, size, 1.0 if self._config.family.unit_offset_norms else 0.0)
        self.by_tensor.update(dict.fromkeys(norm.shapes, norm))
        return norm

    def _table(self, name: str) -> Linear:
        config = self._config
        return self._linear({name: config.vocab_size}, config.hidden_size, is_table=True)

    def _linear(
        self,
        parts: dict[str, int],
        in_features: int,
        bias: bool = False,
        *,
        gated: bool = False,
        is_table: bool = False,
    ) -> Linear:
        found = [self._stored[name] for part in parts if (name := f"{part}.weight") in self._stored]
        linear = Linear(
            parts,
            in_features,
            bias=bias,
            gated=gated,
            precision=self._precision,
            width=self._precision.width_of(found, is_table=is_table),
        )
        self.by_tensor.update(dict.fromkeys(linear.shapes, linear))
        return linear

    def _layer(self, i: int) -> LayerParameters:
        config, family = self._config, self._config.family
        hidden, prefix = config.hidden_size, f"model.layers.{i}"
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        q_size, kv_size = (n * config.head_dim for n in (config.num_heads, config.num_kv_heads))
        qkv = {f"{attention}.q_proj": q_size}
        qkv |= {f"{attention}.k_proj": kv_size, f"{attention}.v_proj": kv_size}
        gate_up = {f"{mlp}.{part}_proj": config.intermediate_size for part in ("gate", "up")}
        if family.fused:
            qkv = {f"{attention}.qkv_proj": sum(qkv.values())}
            gate_up = {f"{mlp}.gate_up_proj": sum(gate_up.values())}
        sandwich = family.sandwich_norms

        def layer_norm(name: str) -> Norm:
            return self._norm(f"{prefix}.{name}_layernorm", hidden)

        return LayerParameters(
            attention_norm=layer_norm("input"),
            qkv=self._linear(qkv, hidden, config.qkv_bias),
            q_norm=self._norm(f"{attention}.q_norm", config.head_dim) if family.qk_norm else None,
            k_norm=self._norm(f"{attention}.k_norm", config.head_dim) if family.qk_norm else None,
            output=self._linear({f"{attention}.o_proj": hidden}, q_size, config.output_bias),
            post_attention_norm=layer_norm("post_attention") if sandwich else None,
            mlp_norm=layer_norm("pre_feedforward" if sandwich else "post_attention"),
            gate_up=self._linear(gate_up, hidden, config.mlp_bias, gated=True),
            down=self._linear(
                {f"{mlp}.down_proj": hidden}, config.intermediate_size, config.mlp_bias
            ),
            post_mlp_norm=layer_norm("post_feedforward") if sandwich else None,
        )
