"""From the tensors of a checkpoint to the packed weights of a decoder.

Tensors come one at a time, in any order. A product whose parts lie apart in the checkpoint (queries, keys
and values; gate and up) is put together as they come and packed when complete, so that memory peaks at
the weights plus one tensor. It knows names and shapes; it does not know file formats.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ramet.kernels.ops import Kernels, PackedLinear

from ..errors import ConfigError
from ..sources.base import ModelSource
from .config import ModelConfig
from .decoder import Decoder, DecoderWeights, LayerWeights

# Buffers of old checkpoints that are computed here.
_IGNORED_SUFFIXES = ("rotary_emb.inv_freq",)
_MAX_NAMED = 3


def load_decoder(
    source: ModelSource,
    config: ModelConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
    kernels: Kernels,
    max_positions: int | None = None,
) -> Decoder:
    """Load a model.

    Args:
        source: whose tensors are read, once.
        config: of the same model.
        dtype: float32, bfloat16 or float16; norms stay float32.
        device: where the weights go.
        kernels: who packs them and computes.
        max_positions: longest sequence to be served; None means `config.max_position_embeddings`.

    Raises:
        ConfigError: a tensor is missing, not expected, given twice or of the wrong shape; names it.
    """
    builder = _Builder(config, kernels, dtype, device)
    for name, tensor in source.tensors():
        builder.put(name, tensor)
        # Let go before the source makes the next one.
        del tensor
    return Decoder(
        config,
        builder.finish(),
        kernels=kernels,
        dtype=dtype,
        device=device,
        max_positions=max_positions or config.max_position_embeddings,
    )


class _Norm:
    """A norm's weight: float32, with the family's offset added."""

    def __init__(self, name: str, size: int, offset: float) -> None:
        self.names = {f"{name}.weight": torch.Size([size])}
        self._offset = offset
        self.value: torch.Tensor | None = None

    def put(self, name: str, tensor: torch.Tensor, device: torch.device) -> None:
        self.value = tensor.to(device, torch.float32) + self._offset


class _Linear:
    """A product put together from rows of several tensors, and packed when the last one has come."""

    def __init__(
        self,
        parts: dict[str, int],
        in_features: int,
        bias: bool,
        kernels: Kernels,
        dtype: torch.dtype,
        gated: bool,
    ) -> None:
        self.names: dict[str, torch.Size] = {}
        self._rows: dict[str, slice] = {}
        self._pack = kernels.pack_gated_linear if gated else kernels.pack_linear
        self._dtype = dtype
        self._buffers: dict[str, torch.Tensor] = {}
        self._num_rows = 0
        for part, num_rows in parts.items():
            rows = slice(self._num_rows, self._num_rows + num_rows)
            self._num_rows = rows.stop
            self.names[f"{part}.weight"] = torch.Size([num_rows, in_features])
            self._rows[f"{part}.weight"] = rows
            if bias:
                self.names[f"{part}.bias"] = torch.Size([num_rows])
                self._rows[f"{part}.bias"] = rows
        self.value: PackedLinear | None = None

    def put(self, name: str, tensor: torch.Tensor, device: torch.device) -> None:
        kind = name.rpartition(".")[2]
        if kind not in self._buffers:
            shape = (self._num_rows, *tensor.shape[1:])
            self._buffers[kind] = torch.empty(shape, dtype=self._dtype, device=device)
        self._buffers[kind][self._rows.pop(name)].copy_(tensor.detach())
        if not self._rows:
            self.value = self._pack(self._buffers.pop("weight"), self._buffers.pop("bias", None))


@dataclass(frozen=True, slots=True, kw_only=True)
class _LayerParts:
    """The parameters of `LayerWeights`, not yet filled."""

    attention_norm: _Norm
    qkv: _Linear
    q_norm: _Norm | None
    k_norm: _Norm | None
    output: _Linear
    post_attention_norm: _Norm | None
    mlp_norm: _Norm
    gate_up: _Linear
    down: _Linear
    post_mlp_norm: _Norm | None


class _Builder:
    """Every parameter of a decoder, and which tensor goes where."""

    def __init__(
        self, config: ModelConfig, kernels: Kernels, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._config, self._kernels, self._dtype, self._device = config, kernels, dtype, device
        self._waiting: dict[str, _Norm | _Linear] = {}
        self._seen: set[str] = set()
        self._embedding = self._linear(
            {"model.embed_tokens": config.vocab_size}, config.hidden_size
        )
        self._layers = [self._layer(i) for i in range(config.num_layers)]
        self._final_norm = self._norm("model.norm", config.hidden_size)
        self._head = (
            self._embedding
            if config.tie_word_embeddings
            else self._linear({"lm_head": config.vocab_size}, config.hidden_size)
        )

    def put(self, name: str, tensor: torch.Tensor) -> None:
        """Copy a tensor to where it belongs."""
        if name.endswith(_IGNORED_SUFFIXES):
            return
        if name == "lm_head.weight" and self._config.tie_word_embeddings:
            return
        if name in self._seen:
            raise ConfigError(f"The checkpoint has the tensor {name} twice.")
        parameter = self._waiting.pop(name, None)
        if parameter is None:
            raise ConfigError(
                f"The checkpoint has a tensor {name}, which {self._config.family.architecture} "
                "with this config.json does not have."
            )
        expected = parameter.names[name]
        if tensor.shape != expected:
            raise ConfigError(
                f"The tensor {name} is {list(tensor.shape)}, but config.json makes it "
                f"{list(expected)}."
            )
        self._seen.add(name)
        parameter.put(name, tensor, self._device)

    def finish(self) -> DecoderWeights:
        """The weights; raises ConfigError if some have not come."""
        if self._waiting:
            names = list(self._waiting)
            more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
            raise ConfigError(
                f"The checkpoint lacks the tensor {', '.join(names[:_MAX_NAMED])}{more}."
            )
        return DecoderWeights(
            embedding=_packed(self._embedding),
            layers=tuple(_filled(layer) for layer in self._layers),
            final_norm=_vector(self._final_norm),
            head=_packed(self._head),
        )

    def _norm(self, name: str, size: int) -> _Norm:
        norm = _Norm(name, size, 1.0 if self._config.family.unit_offset_norms else 0.0)
        self._waiting.update(dict.fromkeys(norm.names, norm))
        return norm

    def _linear(
        self, parts: dict[str, int], in_features: int, bias: bool = False, *, gated: bool = False
    ) -> _Linear:
        linear = _Linear(parts, in_features, bias, self._kernels, self._dtype, gated)
        self._waiting.update(dict.fromkeys(linear.names, linear))
        return linear

    def _layer(self, i: int) -> _LayerParts:
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

        def layer_norm(name: str) -> _Norm:
            return self._norm(f"{prefix}.{name}_layernorm", hidden)

        return _LayerParts(
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


def _filled(parts: _LayerParts) -> LayerWeights:
    return LayerWeights(
        attention_norm=_vector(parts.attention_norm),
        qkv=_packed(parts.qkv),
        q_norm=_vector(parts.q_norm) if parts.q_norm else None,
        k_norm=_vector(parts.k_norm) if parts.k_norm else None,
        output=_packed(parts.output),
        post_attention_norm=(
            _vector(parts.post_attention_norm) if parts.post_attention_norm else None
        ),
        mlp_norm=_vector(parts.mlp_norm),
        gate_up=_packed(parts.gate_up),
        down=_packed(parts.down),
        post_mlp_norm=_vector(parts.post_mlp_norm) if parts.post_mlp_norm else None,
    )


def _vector(norm: _Norm) -> torch.Tensor:
    assert norm.value is not None
    return norm.value


def _packed(linear: _Linear) -> PackedLinear:
    assert linear.value is not None
    return linear.value
