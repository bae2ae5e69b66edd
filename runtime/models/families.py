"""The supported architectures, as rows of configuration.

A row says how an architecture differs from Llama: which config keys it reads, what it assumes for keys
that are absent, which of its layers have a window or no rope, and how its checkpoint names things. It
owns no arithmetic: the one decoder (decoder.py) reads the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from .hf_keys import HfKeys

FULL, SLIDING = "full_attention", "sliding_attention"


def _layers(hf: HfKeys) -> range:
    return range(hf.count("num_hidden_layers"))


def _no_sliding(hf: HfKeys) -> list[str]:
    return [FULL for _ in _layers(hf)]


def _all_sliding(hf: HfKeys) -> list[str]:
    return [SLIDING for _ in _layers(hf)]


def _late_sliding(hf: HfKeys) -> list[str]:
    first = hf.count("max_window_layers", minimum=0)
    return [SLIDING if i >= first else FULL for i in _layers(hf)]


def _mostly_sliding(hf: HfKeys) -> list[str]:
    period = hf.count("sliding_window_pattern")
    return [SLIDING if (i + 1) % period else FULL for i in _layers(hf)]


def _unrotated_sliding(hf: HfKeys) -> list[str]:
    return [FULL if rotated else SLIDING for rotated in _interval_rope(hf)]


def _all_rope(hf: HfKeys) -> list[bool]:
    return [True for _ in _layers(hf)]


def _interval_rope(hf: HfKeys) -> list[bool]:
    listed = hf.items("no_rope_layers")
    if listed is not None:
        # The key's name notwithstanding, a 1 in this list means that the layer has rope.
        return [bool(rotated) for rotated in listed]
    interval = hf.count("no_rope_layer_interval")
    return [(i + 1) % interval != 0 for i in _layers(hf)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How one architecture differs from Llama.

    Attributes:
        architecture: the name in `architectures` of config.json.
        model_type: its `model_type`, looked up where `architectures` is absent.
        defaults: values of keys that config.json may leave out.
        qkv_bias, output_bias, mlp_bias: whether these products have a bias, or the key that says so.
        qk_norm: queries and keys are normalised per head before rope.
        sandwich_norms: the outputs of attention and MLP are normalised too, before they are added.
        unit_offset_norms: norm weights are stored less one.
        scaled_embedding: embeddings are multiplied by the square root of hidden_size.
        activation_key: the key that names the activation.
        scale_key: the key whose value to the power -1/2 scales scores; None: head_dim's.
        softcap_key: the key of the scores' soft cap, if the architecture has one.
        window_switch: the key that must be true for `sliding_window` to count, if there is one.
        layer_types: FULL or SLIDING per layer, where config.json has no `layer_types`.
        listed_layer_types: whether `layer_types` of config.json counts.
        rope_layers: which layers have rope.
        local_rope_key: the key of the sliding layers' own theta; such models rotate full layers apart.
        fused: the checkpoint holds qkv_proj and gate_up_proj instead of their parts.
    """

    architecture: str
    model_type: str
    defaults: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    qkv_bias: bool | str = False
    output_bias: bool | str = False
    mlp_bias: bool | str = False
    qk_norm: bool = False
    sandwich_norms: bool = False
    unit_offset_norms: bool = False
    scaled_embedding: bool = False
    activation_key: str = "hidden_act"
    scale_key: str | None = None
    softcap_key: str | None = None
    window_switch: str | None = None
    layer_types: Callable[[HfKeys], list[str]] = _no_sliding
    listed_layer_types: bool = False
    rope_layers: Callable[[HfKeys], list[bool]] = _all_rope
    local_rope_key: str | None = None
    fused: bool = False


_GEMMA: dict[str, Any] = {
    "output_bias": "attention_bias",
    "qkv_bias": "attention_bias",
    "sandwich_norms": True,
    "unit_offset_norms": True,
    "scaled_embedding": True,
    "activation_key": "hidden_activation",
    "scale_key": "query_pre_attn_scalar",
    "layer_types": _mostly_sliding,
    "listed_layer_types": True,
}
_GEMMA_DEFAULTS = {
    "tie_word_embeddings": True,
    "hidden_activation": "gelu_pytorch_tanh",
    "head_dim": 256,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
_QWEN: dict[str, Any] = {
    "window_switch": "use_sliding_window",
    "layer_types": _late_sliding,
    "listed_layer_types": True,
}
_QWEN_DEFAULTS = {"sliding_window": 4096, "max_window_layers": 28, "num_key_value_heads": 32}

FAMILIES = (
    Family(
        architecture="LlamaForCausalLM",
        model_type="llama",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        mlp_bias="mlp_bias",
    ),
    Family(
        architecture="MistralForCausalLM",
        model_type="mistral",
        defaults={"sliding_window": 4096, "num_key_value_heads": 8},
        layer_types=_all_sliding,
    ),
    Family(
        architecture="Qwen2ForCausalLM",
        model_type="qwen2",
        defaults=_QWEN_DEFAULTS,
        qkv_bias=True,
        **_QWEN,
    ),
    Family(
        architecture="Qwen3ForCausalLM",
        model_type="qwen3",
        defaults={**_QWEN_DEFAULTS, "head_dim": 128},
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        qk_norm=True,
        **_QWEN,
    ),
    Family(
        architecture="SmolLM3ForCausalLM",
        model_type="smollm3",
        defaults={
            "tie_word_embeddings": True,
            "rope_theta": 2_000_000.0,
            "no_rope_layer_interval": 4,
            "num_key_value_heads": 4,
        },
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        mlp_bias="mlp_bias",
        window_switch="use_sliding_window",
        layer_types=_unrotated_sliding,
        listed_layer_types=True,
        rope_layers=_interval_rope,
    ),
    Family(
        architecture="Gemma2ForCausalLM",
        model_type="gemma2",
        defaults={
            **_GEMMA_DEFAULTS,
            "sliding_window_pattern": 2,
            "final_logit_softcapping": 30.0,
            "attn_logit_softcapping": 50.0,
        },
        softcap_key="attn_logit_softcapping",
        **_GEMMA,
    ),
    Family(
        architecture="Gemma3ForCausalLM",
        model_type="gemma3_text",
        defaults={
            **_GEMMA_DEFAULTS,
            "sliding_window_pattern": 6,
            "rope_theta": 1_000_000.0,
            "rope_local_base_freq": 10_000.0,
        },
        qk_norm=True,
        local_rope_key="rope_local_base_freq",
        **_GEMMA,
    ),
    Family(
        architecture="Phi3ForCausalLM",
        model_type="phi3",
        defaults={"rms_norm_eps": 1e-5},
        layer_types=_all_sliding,
        fused=True,
    ),
)
