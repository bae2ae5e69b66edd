"""Reading config.json: published models, both spellings, and everything that is refused."""

from __future__ import annotations

from typing import Any

import pytest

from ramet.runtime.errors import ConfigError
from ramet.runtime.models.config import ModelConfig
from ramet.runtime.models.families import FAMILIES

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
}


def read(architecture: str = "LlamaForCausalLM", **changes: Any) -> ModelConfig:
    config = {**LLAMA, "architectures": [architecture], **changes}
    return ModelConfig.from_hf({key: value for key, value in config.items() if value != "absent"})


def test_llama_3_is_read_whole() -> None:
    config = read()
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (
        128256,
        4096,
        14336,
    )
    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (32, 32, 8)
    assert (config.head_dim, config.max_position_embeddings) == (128, 8192)
    assert (config.dtype, config.tie_word_embeddings, config.activation) == (
        "bfloat16",
        False,
        "silu",
    )
    assert config.rms_norm_eps == 1e-5
    assert config.attention_scale == 128**-0.5
    assert (config.attention_softcap, config.logit_softcap) == (None, None)
    assert not (config.qkv_bias or config.output_bias or config.mlp_bias)
    assert {layer.window for layer in config.layers} == {None}
    rope = config.layers[0].rope
    assert rope is not None and (rope.kind, rope.theta, rope.rotary_dim) == ("default", 5e5, 128)


def test_kv_bytes_per_token_counts_keys_and_values_of_all_layers() -> None:
    assert read().kv_bytes_per_token(256) == 131072


def test_both_spellings_of_rope_and_dtype_read_alike() -> None:
    scaling = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    old = read(rope_scaling={"rope_type": "llama3", **scaling}, max_position_embeddings=131072)
    new = read(
        rope_theta="absent",
        torch_dtype="absent",
        dtype="bfloat16",
        rope_parameters={"rope_type": "llama3", "rope_theta": 500000.0, **scaling},
        max_position_embeddings=131072,
    )
    assert old == new
    assert old.layers[0].rope is not None and old.layers[0].rope.kind == "llama3"


def test_absent_keys_take_the_defaults_of_their_architecture() -> None:
    sparse = {"num_key_value_heads": "absent", "rms_norm_eps": "absent", "torch_dtype": "absent"}
    llama = read(**sparse, rope_theta="absent")
    assert (llama.num_kv_heads, llama.rms_norm_eps, llama.dtype) == (32, 1e-6, None)
    assert llama.layers[0].rope is not None and llama.layers[0].rope.theta == 10_000.0
    assert read("Phi3ForCausalLM", **sparse).rms_norm_eps == 1e-5
    assert read("MistralForCausalLM", **sparse).num_kv_heads == 8
    assert read("MistralForCausalLM").layers[0].window == 4096
    assert read("Qwen3ForCausalLM", hidden_size=1024).head_dim == 128
    assert read("SmolLM3ForCausalLM", rope_theta="absent").layers[0].rope.theta == 2e6  # type: ignore[union-attr]
    for tied in ("SmolLM3ForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM"):
        assert read(tied).tie_word_embeddings
    assert not read("Qwen2ForCausalLM").tie_word_embeddings
    assert read("Gemma2ForCausalLM", hidden_act="absent").activation == "gelu_tanh"


def test_an_architecture_is_found_by_model_type_where_no_name_is_given() -> None:
    assert read(architectures=None, model_type="qwen2").family.architecture == "Qwen2ForCausalLM"


def test_mistral_with_a_null_window_sees_everything() -> None:
    assert {x.window for x in read("MistralForCausalLM", sliding_window=None).layers} == {None}


def test_qwen_uses_its_window_only_when_switched_on_and_only_in_late_layers() -> None:
    given = {"sliding_window": 100, "max_window_layers": 30}
    off = read("Qwen2ForCausalLM", use_sliding_window=False, **given)
    assert {layer.window for layer in off.layers} == {None}
    on = read("Qwen2ForCausalLM", use_sliding_window=True, **given)
    assert [layer.window for layer in on.layers] == [None] * 30 + [100] * 2
    assert on.qkv_bias and not on.output_bias


def test_smollm3_leaves_every_fourth_layer_without_rope() -> None:
    config = read("SmolLM3ForCausalLM", num_hidden_layers=8)
    assert [layer.rope is None for layer in config.layers] == [False, False, False, True] * 2


def test_gemma_2_alternates_windows_and_caps() -> None:
    config = read("Gemma2ForCausalLM", num_hidden_layers=4, query_pre_attn_scalar=224)
    assert [layer.window for layer in config.layers] == [4096, None, 4096, None]
    assert (config.attention_softcap, config.logit_softcap) == (50.0, 30.0)
    assert config.attention_scale == 224**-0.5
    assert config.head_dim == 256


def test_gemma_3_turns_its_sliding_layers_by_their_own_theta() -> None:
    scaling = {"rope_type": "linear", "factor": 8.0}
    old = read(
        "Gemma3ForCausalLM",
        num_hidden_layers=6,
        sliding_window=512,
        rope_theta=1e6,
        rope_local_base_freq=10_000,
        rope_scaling=scaling,
    )
    new = read(
        "Gemma3ForCausalLM",
        num_hidden_layers=6,
        sliding_window=512,
        rope_theta="absent",
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            "full_attention": {**scaling, "rope_theta": 1e6},
        },
    )
    assert old.layers == new.layers
    sliding, full = old.layers[0].rope, old.layers[5].rope
    assert sliding is not None and full is not None
    assert (sliding.kind, sliding.theta, old.layers[0].window) == ("default", 10_000.0, 512)
    assert (full.kind, full.theta, full.factor, old.layers[5].window) == ("linear", 1e6, 8.0, None)
    assert old.max_position_embeddings == old.longest_context == 8192


def test_partial_rotary_is_read_from_either_place() -> None:
    for given in (
        {"partial_rotary_factor": 0.75},
        {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.75}},
    ):
        rope = read("Phi3ForCausalLM", **given).layers[0].rope
        assert rope is not None and rope.rotary_dim == 96


FACTORS = [1.0] * 64


@pytest.mark.parametrize(
    ("max_positions", "scaling", "default", "longest"),
    [
        (4096, None, 4096, 4096),
        (4096, {"type": "linear", "factor": 4.0}, 16384, 16384),
        (4096, {"type": "dynamic", "factor": 2.0}, 4096, 8192),
        (131072, {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1, "high_freq_factor": 4,
                  "original_max_position_embeddings": 8192}, 131072, 131072),
        (32768, {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
         131072, 131072),
        (131072, {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
         131072, 131072),
        (4096, {"type": "yarn", "factor": 4.0}, 16384, 16384),
        (131072, {"type": "longrope", "short_factor": FACTORS, "long_factor": FACTORS,
                  "original_max_position_embeddings": 4096}, 4096, 131072),
    ],
)  # fmt: skip
def test_context_lengths_follow_the_rope_scaling(
    max_positions: int, scaling: dict[str, Any] | None, default: int, longest: int
) -> None:
    config = read(max_position_embeddings=max_positions, rope_scaling=scaling)
    assert (config.max_position_embeddings, config.longest_context) == (default, longest)


@pytest.mark.parametrize("name", ["su", "yarn", "longrope"])
def test_all_names_of_phi_3s_longrope_mean_the_same(name: str) -> None:
    config = read(
        "Phi3ForCausalLM",
        max_position_embeddings=131072,
        original_max_position_embeddings=4096,
        rope_scaling={"type": name, "short_factor": FACTORS, "long_factor": FACTORS},
    )
    rope = config.layers[0].rope
    assert rope is not None
    assert (rope.kind, rope.original_max_positions, rope.factor) == ("longrope", 4096, 32.0)


def test_an_unknown_architecture_lists_all_that_are_supported() -> None:
    with pytest.raises(ConfigError) as raised:
        read("FalconForCausalLM")
    assert "FalconForCausalLM is not supported" in str(raised.value)
    for family in FAMILIES:
        assert family.architecture in str(raised.value)


def test_a_config_without_any_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="model_type None is not supported"):
        ModelConfig.from_hf({})


@pytest.mark.parametrize(
    ("changes", "param", "message"),
    [
        ({"vocab_size": "absent"}, "vocab_size", "no vocab_size"),
        ({"hidden_size": 0}, "hidden_size", "at least 1, not 0"),
        ({"num_hidden_layers": 2.5}, "num_hidden_layers", "whole number"),
        ({"num_attention_heads": True}, "num_attention_heads", "whole number"),
        ({"num_key_value_heads": 5}, "num_key_value_heads", "must divide"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps", "above 0"),
        ({"attention_bias": "yes"}, "attention_bias", "true or false"),
        ({"hidden_act": "relu"}, "hidden_act", "'relu' is not supported"),
        ({"torch_dtype": "float8_e4m3fn"}, "dtype", "'float8_e4m3fn' is not supported"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config", "with awq"),
        ({"rope_scaling": {"type": "mrope"}}, "rope_parameters", "'mrope' is not supported"),
        ({"rope_scaling": "yarn"}, "rope_scaling", "must be a mapping"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention", "generate"),
    ],
)
def test_a_config_that_cannot_work_names_the_key(
    changes: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        read(**changes)
    assert raised.value.param == param


@pytest.mark.parametrize(
    ("layer_types", "message"),
    [
        (["full_attention"], "must cover the 32 layers"),
        (["chunked_attention"] * 32, "'chunked_attention' is not supported"),
        ("full_attention", "must be a list"),
    ],
)
def test_layer_types_that_cannot_work_are_refused(layer_types: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read("Qwen3ForCausalLM", layer_types=layer_types)
