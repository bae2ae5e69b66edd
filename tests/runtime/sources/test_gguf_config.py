"""GGUF metadata told as config.json."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from numpy.typing import NDArray
from transformers import AutoConfig, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ramet.runtime.errors import ConfigError
from ramet.runtime.sources.gguf_config import ARCHITECTURES, build_config, llama3_factors
from ramet.runtime.sources.gguf_reader import GgufReader

WriteGguf = Callable[..., Path]
Arrays = dict[str, NDArray[np.float32]]

EMBEDDING = {"token_embd.weight": np.zeros((300, 64), np.float32)}


@pytest.fixture
def config_of(
    write_gguf: WriteGguf, llama_metadata: dict[str, Any]
) -> Callable[..., dict[str, Any]]:
    def build(
        arch: str = "llama", tensors: Arrays | None = None, drop: str = "", **extra: Any
    ) -> dict[str, Any]:
        metadata = llama_metadata | {key.replace("__", "."): value for key, value in extra.items()}
        metadata.pop(drop, None)
        path = write_gguf(EMBEDDING | (tensors or {}), arch=arch, metadata=metadata)
        return build_config(GgufReader(path))

    return build


ConfigOf = Callable[..., dict[str, Any]]


def test_llama_facts(config_of: ConfigOf) -> None:
    config = config_of()
    expected = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 300,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000.0,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "float32",
    }
    assert config == expected


def test_defaults_of_optional_facts(config_of: ConfigOf) -> None:
    assert config_of(drop="rope.freq_base")["rope_theta"] == 10000.0
    assert config_of(drop="attention.head_count_kv")["num_key_value_heads"] == 4
    assert config_of(attention__key_length=32)["head_dim"] == 32


def test_output_tensor_means_untied(config_of: ConfigOf) -> None:
    output = {"output.weight": EMBEDDING["token_embd.weight"]}
    assert config_of(tensors=output)["tie_word_embeddings"] is False


def test_missing_fact_is_named(config_of: ConfigOf) -> None:
    with pytest.raises(ConfigError, match=r"tiny\.gguf has no llama\.context_length"):
        config_of(drop="context_length")


def test_file_without_embedding_is_no_model(
    write_gguf: WriteGguf, llama_metadata: dict[str, Any]
) -> None:
    path = write_gguf({"output_norm.weight": np.ones(4, np.float32)}, metadata=llama_metadata)
    with pytest.raises(ConfigError, match="no tensor token_embd.weight"):
        build_config(GgufReader(path))


def test_stored_precision_is_told_only_where_it_is_one(
    write_gguf: WriteGguf, llama_metadata: dict[str, Any]
) -> None:
    for qtype, dtype in (("F16", "float16"), ("BF16", "bfloat16"), ("Q8_0", None)):
        qtypes = {"token_embd.weight": GGMLQuantizationType[qtype]}
        path = write_gguf(EMBEDDING, metadata=llama_metadata, qtypes=qtypes)
        assert build_config(GgufReader(path)).get("torch_dtype") == dtype


def test_counts_per_layer_must_agree(config_of: ConfigOf) -> None:
    assert config_of(attention__head_count_kv=[2, 2])["num_key_value_heads"] == 2
    with pytest.raises(ConfigError, match="head_count_kv differs between layers"):
        config_of(attention__head_count_kv=[2, 4])


def test_llama_with_a_window_is_mistral(config_of: ConfigOf) -> None:
    config = config_of(attention__sliding_window=128)
    assert (config["model_type"], config["sliding_window"]) == ("mistral", 128)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_rope_table_becomes_its_parameters(config_of: ConfigOf, factor: float) -> None:
    metadata = {"rope__freq_base": 500000.0, "attention__key_length": 128}
    metadata |= {"rope__dimension_count": 128}
    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    hf = LlamaConfig(
        head_dim=128,
        max_position_embeddings=131072,
        rope_parameters={**scaling, "rope_theta": 500000.0},
    )
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](hf, torch.device("cpu"))
    plain = 500000.0 ** (-np.arange(0, 128, 2) / 128)
    table = (plain / scaled.numpy()).astype(np.float32)
    np.testing.assert_allclose(
        llama3_factors(head_dim=128, theta=500000.0, factor=factor), table, rtol=1e-4
    )
    config = config_of(tensors={"rope_freqs.weight": table}, **metadata)
    assert config["rope_scaling"] == scaling


def test_other_rope_table_is_refused(config_of: ConfigOf) -> None:
    table = np.linspace(1, 4, 8, dtype=np.float32)
    with pytest.raises(ConfigError, match="is not that of Llama 3"):
        config_of(tensors={"rope_freqs.weight": table})


def test_linear_and_yarn_scaling(config_of: ConfigOf) -> None:
    linear = config_of(rope__scaling__type="linear", rope__scaling__factor=4.0)
    assert linear["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    yarn = config_of(
        "qwen2",
        rope__scaling__type="yarn",
        rope__scaling__factor=4.0,
        rope__scaling__original_context_length=128,
        rope__scaling__yarn_beta_fast=24.0,
    )
    assert yarn["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 128,
        "beta_fast": 24.0,
    }


def test_scaling_without_a_counterpart_is_refused(config_of: ConfigOf) -> None:
    with pytest.raises(ConfigError, match="rope scaling 'wavy' is not supported"):
        config_of(rope__scaling__type="wavy", rope__scaling__factor=4.0)
    with pytest.raises(ConfigError, match="attn_factor with yarn"):
        config_of(
            rope__scaling__type="yarn", rope__scaling__factor=4.0, rope__scaling__attn_factor=0.5
        )


def test_phi3_facts(config_of: ConfigOf) -> None:
    long, short = (np.linspace(1, high, 6, dtype=np.float32) for high in (8, 2))
    config = config_of(
        "phi3",
        tensors={"rope_factors_long.weight": long, "rope_factors_short.weight": short},
        rope__scaling__original_context_length=128,
        rope__scaling__attn_factor=1.25,
        rope__dimension_count=12,
        attention__sliding_window=0,
    )
    assert config["partial_rotary_factor"] == 0.75
    assert config["original_max_position_embeddings"] == 128
    assert config["sliding_window"] is None
    scaling = config["rope_scaling"]
    assert (scaling["rope_type"], scaling["attention_factor"]) == ("longrope", 1.25)
    assert scaling["long_factor"] == [1.0, 2.4, 3.8, 5.2, 6.6, 8.0]
    np.testing.assert_allclose(scaling["short_factor"], short, rtol=1e-6)


def test_gemma_facts(config_of: ConfigOf) -> None:
    gemma2 = config_of(
        "gemma2",
        attention__sliding_window=64,
        attn_logit_softcapping=40.0,
        final_logit_softcapping=20.0,
        block_count=4,
    )
    assert gemma2["layer_types"] == ["sliding_attention", "full_attention"] * 2
    assert (gemma2["attn_logit_softcapping"], gemma2["final_logit_softcapping"]) == (40.0, 20.0)
    assert (gemma2["query_pre_attn_scalar"], gemma2["hidden_act"]) == (16, "gelu_pytorch_tanh")
    gemma3 = config_of("gemma3", attention__sliding_window=64, block_count=7, drop="rope.freq_base")
    assert gemma3["layer_types"] == ["sliding_attention"] * 5 + [
        "full_attention",
        "sliding_attention",
    ]
    assert (gemma3["rope_theta"], gemma3["rope_local_base_freq"]) == (1e6, 1e4)
    assert gemma3["attn_logit_softcapping"] is None


@pytest.mark.parametrize(
    ("arch", "num_layers", "hidden", "heads", "scale"),
    [("gemma2", 46, 4608, 32, 144), ("gemma3", 62, 5376, 32, 168)],
)
def test_gemma_27b_scales_by_width_per_head(
    config_of: ConfigOf, arch: str, num_layers: int, hidden: int, heads: int, scale: int
) -> None:
    config = config_of(
        arch,
        block_count=num_layers,
        embedding_length=hidden,
        attention__head_count=heads,
        attention__key_length=128,
        attention__sliding_window=64,
    )
    assert config["query_pre_attn_scalar"] == scale


def test_smollm3_leaves_every_fourth_layer_without_rope(config_of: ConfigOf) -> None:
    assert config_of("smollm3", block_count=8)["no_rope_layers"] == [1, 1, 1, 0] * 2


@pytest.mark.parametrize("arch", sorted(ARCHITECTURES))
def test_every_config_is_accepted_by_transformers(config_of: ConfigOf, arch: str) -> None:
    config = config_of(arch, attention__sliding_window=64)
    model_type = config.pop("model_type")
    loaded = AutoConfig.for_model(model_type, **config)
    assert loaded.num_key_value_heads == 2
    assert loaded.architectures == config["architectures"]
