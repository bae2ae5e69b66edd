"""Turns the metadata of a GGUF file into what config.json would say.

It reads metadata, the names and shapes of tensors, and the tiny rope tables; never a weight. What GGUF
does not record because llama.cpp has it in its source (Gemma's attention scale, SmolLM3's layers
without rope) is filled in here.

Source: the model classes of llama.cpp's convert_hf_to_gguf.py and the loaders in its src/models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray

from ..errors import ConfigError
from .gguf_reader import GgufReader

ROPE_FREQS = "rope_freqs.weight"
ROPE_LONG = "rope_factors_long.weight"
ROPE_SHORT = "rope_factors_short.weight"

# What the converter uses when a Llama config does not say otherwise; no released model does.
_LLAMA3_LOW, _LLAMA3_HIGH, _LLAMA3_CONTEXT = 1.0, 4.0, 8192

_DTYPES = {
    GGMLQuantizationType.F32: "float32",
    GGMLQuantizationType.F16: "float16",
    GGMLQuantizationType.BF16: "bfloat16",
}


@dataclass(frozen=True, slots=True)
class GgufArchitecture:
    """How one `general.architecture` is told in the Hugging Face dialect.

    Attributes:
        model_type: config.json's model_type.
        class_name: config.json's architectures entry.
        permuted: rows of attn_q and attn_k are stored pairwise interleaved within each head.
        norm_offset: what the converter added to every norm weight.
        sandwich_norms: norms stand after attention and feed-forward too (Gemma).
        fused: attn_qkv and ffn_up hold what Hugging Face calls qkv_proj and gate_up_proj.
        details: adds the keys that only this architecture has.
    """

    model_type: str
    class_name: str
    permuted: bool = False
    norm_offset: float = 0.0
    sandwich_norms: bool = False
    fused: bool = False
    details: Callable[[Facts], dict[str, Any]] = lambda facts: {}


@dataclass(frozen=True, slots=True)
class Facts:
    """Metadata of one file, looked up under its architecture's prefix."""

    reader: GgufReader
    prefix: str

    def get(self, key: str, default: Any = None) -> Any:
        """`metadata[prefix.key]`, or the default."""
        return self.reader.metadata.get(f"{self.prefix}.{key}", default)

    def need(self, key: str) -> Any:
        """`metadata[prefix.key]`.

        Raises:
            ConfigError: the file does not have it.
        """
        value = self.get(key)
        if value is None:
            raise ConfigError(f"{self.reader.path} has no {self.prefix}.{key}.")
        return value

    def one(self, key: str) -> int:
        """A count that the file may give per layer; all layers must agree.

        Raises:
            ConfigError: it is missing, or the layers differ.
        """
        value = self.need(key)
        values = set(value) if isinstance(value, list) else {value}
        if len(values) != 1:
            raise ConfigError(
                f"{self.reader.path}: {self.prefix}.{key} differs between layers, "
                "which is not supported."
            )
        return int(values.pop())

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return int(self.need("block_count"))

    @property
    def num_heads(self) -> int:
        """Query heads."""
        return self.one("attention.head_count")

    @property
    def num_kv_heads(self) -> int:
        """Key and value heads."""
        if self.get("attention.head_count_kv") is None:
            return self.num_heads
        return self.one("attention.head_count_kv")

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""
        return int(self.need("embedding_length"))

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return int(self.get("attention.key_length", self.hidden_size // self.num_heads))


def architecture_of(reader: GgufReader) -> GgufArchitecture:
    """The row of ARCHITECTURES for this file.

    Raises:
        ConfigError: it is not among them (the error lists them), the file is one part of a split model,
            or it holds experts.
    """
    name = reader.metadata.get("general.architecture")
    if name not in ARCHITECTURES:
        raise ConfigError(
            f"{reader.path} holds a model of architecture {name!r}, which is not supported.",
            hint=f"Supported in GGUF files: {', '.join(sorted(ARCHITECTURES))}.",
        )
    if reader.metadata.get("split.count", 1) > 1:
        raise ConfigError(
            f"{reader.path} is one part of a model split into {reader.metadata['split.count']} files.",
            hint="Join them first: llama-gguf-split --merge.",
        )
    if reader.metadata.get(f"{name}.expert_count", 0):
        raise ConfigError(f"{reader.path} is a mixture of experts, which is not supported.")
    return ARCHITECTURES[name]


def build_config(reader: GgufReader) -> dict[str, Any]:
    """What config.json would say about the model in this file.

    Raises:
        ConfigError: as `architecture_of`, or a needed key is missing, or its rope scaling has no
            counterpart.
    """
    architecture = architecture_of(reader)
    facts = Facts(reader, reader.metadata["general.architecture"])
    embedding = reader.tensors.get("token_embd.weight")
    if embedding is None:
        raise ConfigError(
            f"{reader.path} has no tensor token_embd.weight: it is not a whole model."
        )
    config: dict[str, Any] = {
        "architectures": [architecture.class_name],
        "model_type": architecture.model_type,
        "vocab_size": embedding.shape[0],
        "hidden_size": facts.hidden_size,
        "intermediate_size": facts.one("feed_forward_length"),
        "num_hidden_layers": facts.num_layers,
        "num_attention_heads": facts.num_heads,
        "num_key_value_heads": facts.num_kv_heads,
        "head_dim": facts.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": int(facts.need("context_length")),
        # Stored as float32: 1e-5 comes back as 9.999999747e-06.
        "rms_norm_eps": _shortest(facts.need("attention.layer_norm_rms_epsilon")),
        "rope_theta": _shortest(facts.get("rope.freq_base", 10000.0)),
        "tie_word_embeddings": "output.weight" not in reader.tensors,
        "attention_bias": "blk.0.attn_q.bias" in reader.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in reader.tensors,
    }
    config.update(_stored_dtype(reader))
    config.update(_token_ids(reader))
    config.update(_partial_rotary(facts))
    config.update(_rope_scaling(facts))
    config.update(architecture.details(facts))
    return config


def _stored_dtype(reader: GgufReader) -> dict[str, Any]:
    types = {tensor.qtype for tensor in reader.tensors.values() if len(tensor.shape) > 1}
    if len(types) == 1 and types <= _DTYPES.keys():
        return {"torch_dtype": _DTYPES[types.pop()]}
    return {}


def _token_ids(reader: GgufReader) -> dict[str, Any]:
    keys = {"bos": "bos_token_id", "eos": "eos_token_id", "padding": "pad_token_id"}
    values = {
        name: reader.metadata.get(f"tokenizer.ggml.{key}_token_id") for key, name in keys.items()
    }
    return {name: value for name, value in values.items() if value is not None}


def _partial_rotary(facts: Facts) -> dict[str, Any]:
    rotary_dim = facts.get("rope.dimension_count", facts.head_dim)
    return (
        {}
        if rotary_dim == facts.head_dim
        else {"partial_rotary_factor": rotary_dim / facts.head_dim}
    )


def _rope_scaling(facts: Facts) -> dict[str, Any]:
    tensors = facts.reader.tensors
    if ROPE_LONG in tensors:
        return _longrope(facts)
    if ROPE_FREQS in tensors:
        factors = facts.reader.dequantize(tensors[ROPE_FREQS])
        return {"rope_scaling": _llama3_scaling(facts, factors)}
    kind = facts.get("rope.scaling.type", "none")
    if kind == "none":
        return {}
    scaling: dict[str, Any] = {
        "rope_type": kind,
        "factor": float(facts.need("rope.scaling.factor")),
    }
    if _shortest(facts.get("rope.scaling.attn_factor", 1.0)) != 1.0:
        raise ConfigError(f"{facts.reader.path}: a rope attn_factor with {kind} is not supported.")
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = int(
            facts.need("rope.scaling.original_context_length")
        )
        for key in ("beta_fast", "beta_slow"):
            if (value := facts.get(f"rope.scaling.yarn_{key}")) is not None:
                scaling[key] = _shortest(value)
    elif kind != "linear":
        raise ConfigError(f"{facts.reader.path}: rope scaling {kind!r} is not supported.")
    return {"rope_scaling": scaling}


def _longrope(facts: Facts) -> dict[str, Any]:
    reader = facts.reader
    factors = {
        key: [_shortest(value) for value in reader.dequantize(reader.tensors[name]).tolist()]
        for key, name in (("long_factor", ROPE_LONG), ("short_factor", ROPE_SHORT))
    }
    original = int(facts.need("rope.scaling.original_context_length"))
    scaling: dict[str, Any] = {"rope_type": "longrope", "type": "longrope", **factors}
    if (attention_factor := facts.get("rope.scaling.attn_factor")) is not None:
        scaling["attention_factor"] = _shortest(attention_factor)
    return {"rope_scaling": scaling, "original_max_position_embeddings": original}


def _llama3_scaling(facts: Facts, factors: NDArray[np.float32]) -> dict[str, Any]:
    """The parameters behind a table of per-frequency divisors, checked by computing it again."""
    factor = float(f"{factors.max():.6g}")  # the table is float32
    expected = llama3_factors(
        head_dim=2 * factors.size, theta=float(facts.get("rope.freq_base", 10000.0)), factor=factor
    )
    if not np.allclose(factors, expected, rtol=1e-3):
        raise ConfigError(
            f"{facts.reader.path}: its rope table ({ROPE_FREQS}) is not that of Llama 3, "
            "which is not supported."
        )
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": _LLAMA3_LOW,
        "high_freq_factor": _LLAMA3_HIGH,
        "original_max_position_embeddings": _LLAMA3_CONTEXT,
    }


def llama3_factors(*, head_dim: int, theta: float, factor: float) -> NDArray[np.float64]:
    """By how much Llama 3 divides each rope frequency: `[head_dim / 2]`.

    Long wavelengths are divided by `factor`, short ones by 1, those between by something between.

    Source: `apply_scaling` in Meta's llama-models, models/llama3/model.py.
    """
    wavelengths = 2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = (_LLAMA3_CONTEXT / wavelengths - _LLAMA3_LOW) / (_LLAMA3_HIGH - _LLAMA3_LOW)
    factors: NDArray[np.float64] = 1 / ((1 - smooth.clip(0, 1)) / factor + smooth.clip(0, 1))
    return factors


def _shortest(value: float) -> float:
    """The float whose decimal form is the shortest that rounds to this float32."""
    return float(str(np.float32(value)))


def _mistral_window(facts: Facts) -> dict[str, Any]:
    window = facts.get("attention.sliding_window")
    if not window:
        return {}
    return {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "sliding_window": int(window),
    }


def _qwen2(facts: Facts) -> dict[str, Any]:
    # The biases of q, k and v are part of the architecture; config.json does not name them.
    return {"use_sliding_window": False}


def _smollm3(facts: Facts) -> dict[str, Any]:
    interval = 4
    return {
        "no_rope_layer_interval": interval,
        "no_rope_layers": [int((layer + 1) % interval != 0) for layer in range(facts.num_layers)],
        "use_sliding_window": False,
    }


def _phi3(facts: Facts) -> dict[str, Any]:
    window = facts.get("attention.sliding_window")
    return {"sliding_window": int(window) if window else None}


def _gemma(facts: Facts, *, num_layers_27b: int, sliding_period: int) -> dict[str, Any]:
    # The 27B models scale attention by the width per head and not by head_dim, which GGUF omits.
    is_27b = facts.num_layers == num_layers_27b
    scale = facts.hidden_size // facts.num_heads if is_27b else facts.head_dim
    return {
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": scale,
        "sliding_window": int(facts.need("attention.sliding_window")),
        "layer_types": [
            "sliding_attention" if (layer + 1) % sliding_period else "full_attention"
            for layer in range(facts.num_layers)
        ],
    }


def _gemma2(facts: Facts) -> dict[str, Any]:
    return {
        **_gemma(facts, num_layers_27b=46, sliding_period=2),
        "attn_logit_softcapping": _shortest(facts.get("attn_logit_softcapping", 50.0)),
        "final_logit_softcapping": _shortest(facts.get("final_logit_softcapping", 30.0)),
    }


def _gemma3(facts: Facts) -> dict[str, Any]:
    softcap = facts.get("final_logit_softcapping")
    return {
        **_gemma(facts, num_layers_27b=62, sliding_period=6),
        "rope_local_base_freq": _shortest(facts.get("rope.freq_base_swa", 10000.0)),
        "rope_theta": _shortest(facts.get("rope.freq_base", 1000000.0)),
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None if softcap is None else _shortest(softcap),
    }


ARCHITECTURES = {
    "llama": GgufArchitecture("llama", "LlamaForCausalLM", permuted=True, details=_mistral_window),
    "qwen2": GgufArchitecture("qwen2", "Qwen2ForCausalLM", details=_qwen2),
    "qwen3": GgufArchitecture("qwen3", "Qwen3ForCausalLM", details=_qwen2),
    "smollm3": GgufArchitecture("smollm3", "SmolLM3ForCausalLM", permuted=True, details=_smollm3),
    "gemma2": GgufArchitecture(
        "gemma2", "Gemma2ForCausalLM", norm_offset=1.0, sandwich_norms=True, details=_gemma2
    ),
    "gemma3": GgufArchitecture(
        "gemma3_text", "Gemma3ForCausalLM", norm_offset=1.0, sandwich_norms=True, details=_gemma3
    ),
    "phi3": GgufArchitecture("phi3", "Phi3ForCausalLM", fused=True, details=_phi3),
}
