"""A whole GGUF file as a model source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from ramet.kernels.quantization import QuantizedWeight, dequantize
from ramet.runtime.errors import ConfigError
from ramet.runtime.sources.base import StoredTensor
from ramet.runtime.sources.gguf import GgufFile

WriteGguf = Callable[..., Path]
Arrays = dict[str, NDArray[np.float32]]
EXACT = [GGMLQuantizationType[name] for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")]


def expanded(source: GgufFile) -> dict[str, torch.Tensor]:
    """All tensors of a file, none of them still quantized."""
    tensors = {}
    for name, tensor in source.tensors():
        assert isinstance(tensor, torch.Tensor)
        tensors[name] = tensor
    return tensors


def test_tensors_come_back_under_hugging_face_names_and_order(
    write_gguf: WriteGguf, gguf_arrays: Arrays, hf_arrays: Arrays
) -> None:
    tensors = expanded(GgufFile(write_gguf(gguf_arrays)))
    assert tensors.keys() == hf_arrays.keys()
    for name, values in hf_arrays.items():
        assert np.array_equal(tensors[name].numpy(), values), name


def test_quantized_queries_are_unpermuted_too(
    write_gguf: WriteGguf, gguf_arrays: Arrays, hf_arrays: Arrays
) -> None:
    qtypes = {f"blk.0.attn_{part}.weight": GGMLQuantizationType.Q8_0 for part in "qkv"}
    tensors = expanded(GgufFile(write_gguf(gguf_arrays, qtypes=qtypes)))
    for part in "qkv":
        name = f"model.layers.0.self_attn.{part}_proj.weight"
        np.testing.assert_allclose(tensors[name].numpy(), hf_arrays[name], atol=0.02)


def test_bias_of_queries_is_unpermuted_too(write_gguf: WriteGguf, gguf_arrays: Arrays) -> None:
    # One head of 8: rows 0, 4, 1, 5, ... as stored.
    stored = np.array([0, 4, 1, 5, 2, 6, 3, 7], np.float32)
    metadata = {
        "block_count": 1,
        "attention.head_count": 1,
        "attention.head_count_kv": 1,
        "embedding_length": 8,
    }
    path = write_gguf({"blk.0.attn_k.bias": stored}, metadata=metadata)
    tensors = expanded(GgufFile(path))
    assert tensors["model.layers.0.self_attn.k_proj.bias"].tolist() == list(range(8))


def test_qwen_rows_stay_as_they_are(
    write_gguf: WriteGguf, hf_arrays: Arrays, llama_metadata: dict[str, Any]
) -> None:
    query = hf_arrays["model.layers.0.self_attn.q_proj.weight"]
    path = write_gguf({"blk.0.attn_q.weight": query}, arch="qwen2", metadata=llama_metadata)
    assert np.array_equal(
        expanded(GgufFile(path))["model.layers.0.self_attn.q_proj.weight"].numpy(), query
    )


def test_gemma_norms_lose_the_one_that_the_converter_added(write_gguf: WriteGguf) -> None:
    ones = np.array([1.0, 1.5, 0.0], np.float32)
    names = {
        "output_norm": "model.norm",
        "blk.0.attn_norm": "model.layers.0.input_layernorm",
        "blk.0.post_attention_norm": "model.layers.0.post_attention_layernorm",
        "blk.0.ffn_norm": "model.layers.0.pre_feedforward_layernorm",
        "blk.0.post_ffw_norm": "model.layers.0.post_feedforward_layernorm",
        "blk.0.attn_q_norm": "model.layers.0.self_attn.q_norm",
        "blk.0.attn_k_norm": "model.layers.0.self_attn.k_norm",
    }
    tensors = {f"{name}.weight": ones for name in names} | {"token_embd.weight": ones[None]}
    loaded = expanded(GgufFile(write_gguf(tensors, arch="gemma3", metadata={})))
    for name in names.values():
        assert loaded[f"{name}.weight"].tolist() == [0.0, 0.5, -1.0]
    assert loaded["model.embed_tokens.weight"].tolist() == [[1.0, 1.5, 0.0]]


def test_phi3_fused_tensors_keep_their_fusion(write_gguf: WriteGguf) -> None:
    rows = np.arange(8, dtype=np.float32).reshape(4, 2)
    tensors = {"blk.1.attn_qkv.weight": rows, "blk.1.ffn_up.weight": rows}
    loaded = expanded(GgufFile(write_gguf(tensors, arch="phi3", metadata={})))
    assert loaded.keys() == {
        "model.layers.1.self_attn.qkv_proj.weight",
        "model.layers.1.mlp.gate_up_proj.weight",
    }
    assert all(np.array_equal(values.numpy(), rows) for values in loaded.values())


def test_unknown_tensor_is_named_before_any_is_yielded(
    write_gguf: WriteGguf, gguf_arrays: Arrays
) -> None:
    path = write_gguf(gguf_arrays | {"blk.0.mystery.weight": np.ones(4, np.float32)})
    with pytest.raises(ConfigError, match=r"tensor 'blk\.0\.mystery\.weight' is not known"):
        next(iter(GgufFile(path).tensors()))


def test_header_tells_shapes_and_bits(write_gguf: WriteGguf, gguf_arrays: Arrays) -> None:
    qtypes = {
        "token_embd.weight": GGMLQuantizationType.Q4_1,
        "blk.0.attn_q.weight": GGMLQuantizationType.Q8_0,
        "blk.1.ffn_down.weight": GGMLQuantizationType.BF16,
        "output_norm.weight": GGMLQuantizationType.Q8_0,
    }
    rope = {"rope_freqs.weight": np.ones(8, np.float32)}
    stored = GgufFile(write_gguf(gguf_arrays | rope, qtypes=qtypes)).stored()
    assert len(stored) == len(gguf_arrays)
    assert stored.pop("model.embed_tokens.weight") == StoredTensor((300, 64), 4, True)
    assert stored.pop("model.layers.0.self_attn.q_proj.weight") == StoredTensor((64, 64), 8)
    # A vector is no product, however it is stored.
    assert stored["model.norm.weight"] == StoredTensor((64,), None)
    assert {tensor.bits for tensor in stored.values()} == {None}


@pytest.mark.parametrize("part", ["q", "k", "v"])
@pytest.mark.parametrize("qtype", EXACT, ids=lambda qtype: qtype.name)
def test_a_tensor_asked_for_as_stored_has_the_same_values_and_rows(
    write_gguf: WriteGguf, gguf_arrays: Arrays, qtype: GGMLQuantizationType, part: str
) -> None:
    source = GgufFile(write_gguf(gguf_arrays, qtypes={f"blk.0.attn_{part}.weight": qtype}))
    name = f"model.layers.0.self_attn.{part}_proj.weight"
    weight = dict(source.tensors(quantized=True))[name]
    assert isinstance(weight, QuantizedWeight) and weight.bits == source.stored()[name].bits
    torch.testing.assert_close(
        dequantize(weight, torch.float32), expanded(source)[name], rtol=0, atol=0
    )


def test_what_is_not_held_exactly_comes_expanded_even_if_asked_for_as_stored(
    write_gguf: WriteGguf, gguf_arrays: Arrays
) -> None:
    qtypes = {"blk.0.attn_q.weight": GGMLQuantizationType.BF16}
    for name, tensor in GgufFile(write_gguf(gguf_arrays, qtypes=qtypes)).tensors(quantized=True):
        assert isinstance(tensor, torch.Tensor) and tensor.dtype == torch.float32, name


def test_name_is_the_file_name_unless_given(write_gguf: WriteGguf, gguf_arrays: Arrays) -> None:
    path = write_gguf(gguf_arrays, name="My-Model.Q4_1.gguf")
    assert GgufFile(path).name == "My-Model.Q4_1"
    assert GgufFile(path, "other").name == "other"


def test_unknown_architecture_lists_the_known(write_gguf: WriteGguf, gguf_arrays: Arrays) -> None:
    path = write_gguf(gguf_arrays, arch="mamba")
    with pytest.raises(ConfigError, match=r"'mamba', which is not supported.*llama.*qwen3"):
        GgufFile(path)


def test_split_file_and_experts_are_refused(
    write_gguf: WriteGguf, gguf_arrays: Arrays, llama_metadata: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match="one part of a model split into 3 files"):
        GgufFile(write_gguf(gguf_arrays, top={"split.count": 3}))
    with pytest.raises(ConfigError, match="mixture of experts"):
        GgufFile(write_gguf(gguf_arrays, metadata=llama_metadata | {"expert_count": 8}))


def test_end_ids_are_the_files_own_and_known_ends_of_a_turn(
    write_gguf: WriteGguf, gguf_arrays: Arrays, tokenizer_metadata: dict[str, Any]
) -> None:
    top = tokenizer_metadata | {
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.eot_token_id": 1,
    }
    assert GgufFile(write_gguf(gguf_arrays, top=top)).eos_token_ids() == (0, 1, 2)
    assert GgufFile(write_gguf(gguf_arrays, top=tokenizer_metadata)).eos_token_ids() == (2,)


def test_tokenizer_is_built(
    write_gguf: WriteGguf, gguf_arrays: Arrays, tokenizer_metadata: dict[str, Any]
) -> None:
    files = GgufFile(write_gguf(gguf_arrays, top=tokenizer_metadata)).tokenizer()
    assert files.fast.decode(files.fast.encode(" the 12").ids) == " the 12"
