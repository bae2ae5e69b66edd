"""From the tensors of a checkpoint to the packed weights of a decoder.

Tensors come one at a time, in any order. A product whose parts lie apart in the checkpoint (queries, keys
and values; gate and up) is put together as they come and packed when complete, so that memory peaks at
the weights plus one tensor. It knows names and shapes (parameters.py); it does not know file formats.
"""

from __future__ import annotations

import torch

from ramet.kernels.ops import Kernels
from ramet.kernels.quantization import QuantizedWeight

from ..errors import ConfigError
from ..sources.base import ModelSource
from .config import ModelConfig
from .decoder import Decoder, DecoderWeights, LayerWeights
from .parameters import LayerParameters, Linear, Parameters
from .precision import Precision

# Buffers of old checkpoints that are computed here.
_IGNORED_SUFFIXES = ("rotary_emb.inv_freq",)
_MAX_NAMED = 3


def weight_bytes(source: ModelSource, config: ModelConfig, precision: Precision) -> int:
    """Bytes that all weights will take, from the headers alone; padding of packed ones is not counted.

    Raises:
        ConfigError: a weight file cannot be used; names it.
    """
    return Parameters(config, precision, source.stored()).num_bytes


def load_decoder(
    source: ModelSource,
    config: ModelConfig,
    *,
    precision: Precision,
    device: torch.device,
    kernels: Kernels,
    max_positions: int | None = None,
) -> Decoder:
    """Load a model.

    Args:
        source: whose tensors are read, once.
        config: of the same model.
        precision: of its weights; norms stay float32.
        device: where the weights go.
        kernels: who packs them and computes.
        max_positions: longest sequence to be served; None means `config.max_position_embeddings`.

    Raises:
        ConfigError: a tensor is missing, not expected, given twice or of the wrong shape; names it.
    """
    builder = _Builder(source, config, precision, kernels, device)
    for name, tensor in source.tensors(quantized=precision.quantization is not None):
        builder.put(name, tensor)
        # Let go before the source makes the next one.
        del tensor
    return Decoder(
        config,
        builder.finish(),
        kernels=kernels,
        dtype=precision.dtype,
        device=device,
        max_positions=max_positions or config.max_position_embeddings,
    )


class _Builder:
    """Fills the parameters of a decoder."""

    def __init__(
        self,
        source: ModelSource,
        config: ModelConfig,
        precision: Precision,
        kernels: Kernels,
        device: torch.device,
    ) -> None:
        self._config, self._kernels, self._device = config, kernels, device
        self._parameters = Parameters(config, precision, source.stored())
        self._waiting = dict(self._parameters.by_tensor)
        self._seen: set[str] = set()

    def put(self, name: str, tensor: torch.Tensor | QuantizedWeight) -> None:
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
        expected = parameter.shapes[name]
        if tensor.shape != expected:
            raise ConfigError(
                f"The tensor {name} is {list(tensor.shape)}, but config.json makes it "
                f"{list(expected)}."
            )
        self._seen.add(name)
        parameter.put(name, tensor, self._device)
        if isinstance(parameter, Linear) and parameter.is_whole:
            parameter.pack(self._kernels)

    def finish(self) -> DecoderWeights:
        """The weights; raises ConfigError if some have not come."""
        if self._waiting:
            names = list(self._waiting)
            more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
            raise ConfigError(
                f"The checkpoint lacks the tensor {', '.join(names[:_MAX_NAMED])}{more}."
            )
        parameters = self._parameters
        return DecoderWeights(
            embedding=parameters.embedding.value,
            layers=tuple(_filled(layer) for layer in parameters.layers),
            final_norm=parameters.final_norm.value,
            head=parameters.head.value,
        )


def _filled(parts: LayerParameters) -> LayerWeights:
    return LayerWeights(
        attention_norm=parts.attention_norm.value,
        qkv=parts.qkv.value,
        q_norm=parts.q_norm.value if parts.q_norm else None,
        k_norm=parts.k_norm.value if parts.k_norm else None,
        output=parts.output.value,
        post_attention_norm=(
            parts.post_attention_norm.value if parts.post_attention_norm else None
        ),
        mlp_norm=parts.mlp_norm.value,
        gate_up=parts.gate_up.value,
        down=parts.down.value,
        post_mlp_norm=parts.post_mlp_norm.value if parts.post_mlp_norm else None,
    )
