"""Names and row order of GGUF tensors."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import MODEL_ARCH, get_tensor_name_map

from ramet.runtime.sources.gguf_config import ARCHITECTURES
from ramet.runtime.sources.gguf_tensors import hf_name, is_rotated, unpermute

LLAMA_NAMES = [
    "model.embed_tokens",
    "model.norm",
    "lm_head",
    *(
        f"model.layers.3.{part}"
        for part in (
            "input_layernorm",
            "post_attention_layernorm",
            "self_attn.q_proj",
            "self_attn.k_proj",
            "self_attn.v_proj",
            "self_attn.o_proj",
            "mlp.gate_proj",
            "mlp.up_proj",
            "mlp.down_proj",
        )
    ),
]
QK_NORMS = [f"model.layers.3.self_attn.{part}_norm" for part in "qk"]
SANDWICH = [f"model.layers.3.{part}_feedforward_layernorm" for part in ("pre", "post")]
FUSED = ["model.layers.3.self_attn.qkv_proj", "model.layers.3.mlp.gate_up_proj"]
SPLIT = {f"model.layers.3.{part}_proj" for part in ("self_attn.q", "self_attn.k", "self_attn.v")}
SPLIT |= {f"model.layers.3.mlp.{part}_proj" for part in ("gate", "up")}

NAMES = {
    "llama": LLAMA_NAMES,
    "qwen2": LLAMA_NAMES,
    "qwen3": LLAMA_NAMES + QK_NORMS,
    "smollm3": LLAMA_NAMES,
    "gemma2": [name for name in LLAMA_NAMES if name != "lm_head"] + SANDWICH,
    "gemma3": LLAMA_NAMES + SANDWICH + QK_NORMS,
    "phi3": [name for name in LLAMA_NAMES if name not in SPLIT] + FUSED,
}


@pytest.mark.parametrize("arch", sorted(ARCHITECTURES))
def test_names_invert_those_of_the_converter(arch: str) -> None:
    converter = get_tensor_name_map(MODEL_ARCH[arch.upper()], 4)
    for name in NAMES[arch]:
        stored = converter.get_name(f"{name}.weight", try_suffixes=(".weight",))
        assert stored is not None, name
        assert hf_name(stored, ARCHITECTURES[arch]) == f"{name}.weight"


@pytest.mark.parametrize(
    "name", ["blk.0.attn_q", "blk.0.attn_q.scale", "blk.x.attn_q.weight", "v.patch_embd.weight"]
)
def test_other_names_have_no_counterpart(name: str) -> None:
    assert hf_name(name, ARCHITECTURES["llama"]) is None


def test_only_queries_and_keys_are_rotated() -> None:
    assert is_rotated("blk.12.attn_q.weight") and is_rotated("blk.0.attn_k.bias")
    assert not is_rotated("blk.0.attn_v.weight") and not is_rotated("blk.0.attn_q_norm.weight")


def test_unpermute_joins_the_halves_of_each_head() -> None:
    stored = np.array([0, 3, 1, 4, 2, 5, 10, 13, 11, 14, 12, 15])[:, None]
    assert unpermute(stored, 2)[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15]
