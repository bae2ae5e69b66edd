"""Names and row order of GGUF tensors, told in the Hugging Face dialect.

It knows no file and no storage type: `hf_name` works on names, `unpermute` on rows of anything, so it
can also be applied to rows that are still quantized (quantization never crosses a row).
"""

from __future__ import annotations

import re
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from .gguf_config import ROPE_FREQS, ROPE_LONG, ROPE_SHORT, GgufArchitecture

T = TypeVar("T", bound=np.generic)

# Read into the configuration; Hugging Face has no tensors for them.
CONFIG_TENSORS = frozenset({ROPE_FREQS, ROPE_LONG, ROPE_SHORT})

_TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_FUSED = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
_SANDWICH = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def hf_name(name: str, architecture: GgufArchitecture) -> str | None:
    """The Hugging Face name of a GGUF tensor, or None if there is no counterpart."""
    stem, _, suffix = name.rpartition(".")
    if suffix not in ("weight", "bias"):
        return None
    if stem in _TOP:
        return f"{_TOP[stem]}.{suffix}"
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if match is None:
        return None
    table = dict(_BLOCK)
    if architecture.fused:
        table |= _FUSED
    if architecture.sandwich_norms:
        table |= _SANDWICH
    part = table.get(match[2])
    return None if part is None else f"model.layers.{match[1]}.{part}.{suffix}"


def is_rotated(name: str) -> bool:
    """Whether a GGUF tensor's rows are those that rope turns (and llama.cpp stores interleaved)."""
    return re.fullmatch(r"blk\.\d+\.attn_[qk]\.(weight|bias)", name) is not None


def is_norm(name: str) -> bool:
    """Whether a GGUF tensor is the weight of a norm."""
    return name.endswith("norm.weight")


def unpermute(rows: NDArray[T], num_heads: int) -> NDArray[T]:
    """Undo the interleaving of the two halves of each head.

    llama.cpp turns neighbouring rows, Hugging Face row i with row i + head_dim / 2: the converter moved
    row i of the first half to 2i and row i of the second half to 2i + 1.

    Args:
        rows: `[num_heads * head_dim, ...]`.
        num_heads: heads that the rows are divided into.

    Returns:
        A new array of the same shape.
    """
    pairs = rows.reshape(num_heads, -1, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)
