"""What a decoder is, read from a config.json: sizes, and what each layer does.

It knows Hugging Face's keys, in the spellings of transformers 4 and 5; it does not know tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError
from .families import FAMILIES, FULL, SLIDING, Family
from .hf_keys import HfKeys
from .rope import RopeConfig

_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}
_DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """What one layer does differently from its neighbours.

    Attributes:
        window: positions that a query sees, its own included; None means all before it.
        rope: its rotation; None means it has no positions at all.
    """

    window: int | None
    rope: RopeConfig | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Everything about a decoder but its weights.

    Attributes:
        family: the architecture's row.
        vocab_size, hidden_size, intermediate_size: widths.
        num_layers, num_heads, num_kv_heads, head_dim: attention.
        max_position_embeddings: the context length to serve unless told otherwise.
        longest_context: the longest that may be asked for.
        dtype: precision of the checkpoint ("float32", "bfloat16", "float16"), or None if unsaid.
        tie_word_embeddings: the output head is the embedding.
        rms_norm_eps: added to the mean square in every norm.
        activation: one of `ramet.kernels.ops.ACTIVATIONS`.
        attention_scale: multiplies scores.
        attention_softcap, logit_softcap: bounds of scores and logits, or None.
        qkv_bias, output_bias, mlp_bias: whether these products have a bias.
        layers: one per layer.
    """

    family: Family
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    longest_context: int
    dtype: str | None
    tie_word_embeddings: bool
    rms_norm_eps: float
    activation: str
    attention_scale: float
    attention_softcap: float | None
    logit_softcap: float | None
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    layers: tuple[LayerConfig, ...]

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> ModelConfig:
        """Read the content of a config.json.

        Raises:
            ConfigError: the architecture is not supported (the message lists those that are), a key
                is missing or out of range, or it asks for something that is not supported: a
                quantized checkpoint, an activation, a rope type, bidirectional attention.
        """
        family = _find_family(config)
        hf = HfKeys({**family.defaults, **config})
        _refuse(hf)
        num_heads = hf.count("num_attention_heads")
        hidden_size = hf.count("hidden_size")
        num_kv_heads = hf.count("num_key_value_heads", num_heads)
        head_dim = hf.count("head_dim", hidden_size // num_heads)
        if num_heads % num_kv_heads:
            raise ConfigError(
                f"num_key_value_heads ({num_kv_heads}) must divide num_attention_heads "
                f"({num_heads}).",
                param="num_key_value_heads",
            )
        layers = _layers(family, hf, head_dim)
        ropes = [layer.rope for layer in layers if layer.rope is not None]
        stretched = [rope for rope in ropes if rope.kind != "default"]
        max_positions = hf.count("max_position_embeddings")
        # Gemma 3's max_position_embeddings includes the stretch of its full layers already.
        by_rope = stretched[0] if stretched and family.local_rope_key is None else None
        return cls(
            family=family,
            vocab_size=hf.count("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=hf.count("intermediate_size"),
            num_layers=len(layers),
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            max_position_embeddings=by_rope.default_context if by_rope else max_positions,
            longest_context=by_rope.longest_context if by_rope else max_positions,
            dtype=_dtype(hf),
            tie_word_embeddings=hf.flag("tie_word_embeddings"),
            rms_norm_eps=hf.positive("rms_norm_eps") or 1e-6,
            activation=_activation(family, hf),
            attention_scale=(family.scale_key and hf.positive(family.scale_key) or head_dim)
            ** -0.5,
            attention_softcap=hf.positive(family.softcap_key) if family.softcap_key else None,
            logit_softcap=hf.positive("final_logit_softcapping"),
            qkv_bias=_bias(hf, family.qkv_bias),
            output_bias=_bias(hf, family.output_bias),
            mlp_bias=_bias(hf, family.mlp_bias),
            layers=layers,
        )

    def kv_bytes_per_token(self, row_bytes: int) -> int:
        """Bytes of KV that one token takes, over all layers.

        Args:
            row_bytes: what one head of one token takes, of keys or of values.
        """
        return 2 * self.num_layers * self.num_kv_heads * row_bytes


def _find_family(config: Mapping[str, Any]) -> Family:
    names = config.get("architectures") or []
    model_type = config.get("model_type")
    for family in FAMILIES:
        if family.architecture in names or (not names and family.model_type == model_type):
            return family
    asked = ", ".join(names) or f"model_type {model_type!r}"
    supported = ", ".join(family.architecture for family in FAMILIES)
    raise ConfigError(
        f"The architecture {asked} is not supported; supported are {supported}.",
        param="architectures",
    )


def _refuse(hf: HfKeys) -> None:
    quantization = hf.mapping("quantization_config")
    if quantization:
        raise ConfigError(
            f"Checkpoints quantized with {quantization.get('quant_method')} are not supported.",
            param="quantization_config",
            hint="Use the unquantized checkpoint, or a GGUF file.",
        )
    if hf.flag("use_bidirectional_attention"):
        raise ConfigError(
            "Models with bidirectional attention cannot generate text.",
            param="use_bidirectional_attention",
        )


def _bias(hf: HfKeys, bias: bool | str) -> bool:
    return hf.flag(bias) if isinstance(bias, str) else bias


def _activation(family: Family, hf: HfKeys) -> str:
    name = hf.values.get(family.activation_key) or family.defaults.get(
        family.activation_key, "silu"
    )
    if name not in _ACTIVATIONS:
        raise ConfigError(
            f"{family.activation_key} {name!r} is not supported; supported are "
            f"{', '.join(_ACTIVATIONS)}.",
            param=family.activation_key,
        )
    return _ACTIVATIONS[name]


def _dtype(hf: HfKeys) -> str | None:
    name = hf.values.get("dtype") or hf.values.get("torch_dtype")
    if name is None or name == "auto":
        return None
    name = str(name).removeprefix("torch.")
    if name not in _DTYPES:
        raise ConfigError(
            f"dtype {name!r} is not supported; supported are {', '.join(_DTYPES)}.", param="dtype"
        )
    return name


def _layers(family: Family, hf: HfKeys, head_dim: int) -> tuple[LayerConfig, ...]:
    num_layers = hf.count("num_hidden_layers")
    listed = hf.items("layer_types") if family.listed_layer_types else None
    types = list(listed) if listed is not None else family.layer_types(hf)
    rotated = family.rope_layers(hf)
    if len(types) != num_layers or len(rotated) < num_layers:
        raise ConfigError(
            f"layer_types ({len(types)}) and no_rope_layers ({len(rotated)}) must cover the "
            f"{num_layers} layers.",
            param="layer_types",
        )
    unknown = [kind for kind in types if kind not in (FULL, SLIDING)]
    if unknown:
        raise ConfigError(
            f"layer type {unknown[0]!r} is not supported; supported are {FULL}, {SLIDING}.",
            param="layer_types",
        )
    windowed = family.window_switch is None or hf.flag(family.window_switch)
    has_window = windowed and hf.values.get("sliding_window") is not None
    window = hf.count("sliding_window") if has_window and SLIDING in types else None
    ropes = {
        kind: RopeConfig.from_hf(
            _rope_parameters(family, hf, kind),
            head_dim=head_dim,
            max_positions=hf.count("max_position_embeddings"),
        )
        for kind in set(types)
    }
    return tuple(
        LayerConfig(window if kind == SLIDING else None, ropes[kind] if has_rope else None)
        for kind, has_rope in zip(types, rotated, strict=False)
    )


def _rope_parameters(family: Family, hf: HfKeys, layer_type: str) -> dict[str, Any]:
    """The parameters for layers of that type, with everything that older configs kept beside them."""
    given = hf.mapping("rope_scaling") or hf.mapping("rope_parameters")
    local = family.local_rope_key if layer_type == SLIDING else None
    theta = hf.positive(local or "rope_theta") or 10_000.0
    if layer_type in given:
        given = HfKeys(given).mapping(layer_type)
    elif local is not None:
        given = {}
    parameters = {
        "rope_theta": theta,
        "partial_rotary_factor": hf.positive("partial_rotary_factor"),
        **{key: value for key, value in given.items() if value is not None},
    }
    original = hf.values.get("original_max_position_embeddings")
    if original is not None:
        parameters["original_max_position_embeddings"] = original
    if family.fused and parameters.get("rope_type", parameters.get("type")) == "yarn":
        # Early Phi-3 checkpoints call their longrope yarn.
        parameters["rope_type"] = "longrope"
    return parameters
