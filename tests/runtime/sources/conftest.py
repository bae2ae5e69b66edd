"""Tiny models, written by the tests themselves: GGUF files and Hugging Face folders."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from numpy.typing import NDArray
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from ramet.runtime.sources.hub import HubUnreachable, Listing
from ramet.runtime.sources.store import ModelStore

Arrays = dict[str, NDArray[np.float32]]
WriteGguf = Callable[..., Path]

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FF, VOCAB, LAYERS = 64, 4, 2, 16, 96, 300, 2


def byte_symbols() -> list[str]:
    """The 256 letters that stand for bytes in byte-level BPE."""
    return sorted(pre_tokenizers.ByteLevel.alphabet())


def tiny_tokens() -> tuple[list[str], list[int], list[str]]:
    """300 tokens, their types, and merges that make "Ġthe" and "12"."""
    joined = ["th", "the", "Ġthe", "12"]
    merges = ["t h", "th e", "Ġ the", "1 2"]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = [*special, *byte_symbols(), *joined, "<think>"]
    padding = [f"[PAD{index}]" for index in range(VOCAB - len(tokens))]
    types = [3] * len(special) + [1] * (256 + len(joined)) + [4] + [5] * len(padding)
    return tokens + padding, types, merges


def llama_tensors(rng: np.random.Generator) -> Arrays:
    """A random tiny Llama under Hugging Face names."""

    def random(*shape: int) -> NDArray[np.float32]:
        return rng.standard_normal(shape, np.float32)

    tensors = {
        "model.embed_tokens.weight": random(VOCAB, HIDDEN),
        "model.norm.weight": random(HIDDEN),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        tensors |= {
            f"{prefix}.input_layernorm.weight": random(HIDDEN),
            f"{prefix}.post_attention_layernorm.weight": random(HIDDEN),
            f"{prefix}.self_attn.q_proj.weight": random(HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}.self_attn.k_proj.weight": random(KV_HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}.self_attn.v_proj.weight": random(KV_HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}.self_attn.o_proj.weight": random(HIDDEN, HEADS * HEAD_DIM),
            f"{prefix}.mlp.gate_proj.weight": random(FF, HIDDEN),
            f"{prefix}.mlp.up_proj.weight": random(FF, HIDDEN),
            f"{prefix}.mlp.down_proj.weight": random(HIDDEN, FF),
        }
    return tensors


LLAMA_METADATA: dict[str, Any] = {
    "block_count": LAYERS,
    "context_length": 512,
    "embedding_length": HIDDEN,
    "feed_forward_length": FF,
    "attention.head_count": HEADS,
    "attention.head_count_kv": KV_HEADS,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 100000.0,
}


def add_metadata(writer: GGUFWriter, key: str, value: Any) -> None:
    """Write one value with the GGUF type that its Python type calls for."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


@pytest.fixture
def write_gguf(tmp_path: Path) -> WriteGguf:
    """Writes a GGUF file: (tensors, arch=, metadata=, top=, qtypes=, name=) -> path.

    `metadata` goes under the architecture's prefix, `top` as it is; `qtypes` says how tensors are stored.
    """

    def write(
        tensors: Arrays,
        *,
        arch: str = "llama",
        metadata: dict[str, Any] = LLAMA_METADATA,
        top: dict[str, Any] | None = None,
        qtypes: dict[str, GGMLQuantizationType] | None = None,
        name: str = "tiny.gguf",
    ) -> Path:
        path = tmp_path / name
        writer = GGUFWriter(path, arch)
        for key, value in metadata.items():
            add_metadata(writer, f"{arch}.{key}", value)
        for key, value in (top or {}).items():
            add_metadata(writer, key, value)
        for tensor, values in tensors.items():
            qtype = (qtypes or {}).get(tensor)
            if qtype is None:
                writer.add_tensor(tensor, values)
            else:
                writer.add_tensor(tensor, quantize(values, qtype), raw_dtype=qtype)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


@pytest.fixture
def tokenizer_metadata() -> dict[str, Any]:
    """The tokenizer of a tiny GGUF file, smollm's kind."""
    tokens, types, merges = tiny_tokens()
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": "{{ messages[0].content }}",
    }


@pytest.fixture
def hf_tensors() -> dict[str, torch.Tensor]:
    """A random tiny Llama as torch tensors."""
    arrays = llama_tensors(np.random.default_rng(7))
    return {name: torch.from_numpy(values) for name, values in arrays.items()}


@pytest.fixture
def hf_folder(tmp_path: Path, hf_tensors: dict[str, torch.Tensor]) -> Path:
    """A whole tiny Hugging Face model in one safetensors file."""
    folder = tmp_path / "tiny-model"
    folder.mkdir()
    write_json(
        folder / "config.json",
        {"architectures": ["LlamaForCausalLM"], "vocab_size": VOCAB, "eos_token_id": 5},
    )
    write_json(folder / "generation_config.json", {"eos_token_id": [2, 7]})
    tokens, _, merges = tiny_tokens()
    ids = {token: index for index, token in enumerate(tokens)}
    fast = Tokenizer(models.BPE(ids, [(a, b) for a, b in (m.split(" ") for m in merges)]))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens(tokens[:3])
    fast.save(str(folder / "tokenizer.json"))
    write_json(
        folder / "tokenizer_config.json",
        {"eos_token": {"content": "<|im_end|>"}, "bos_token": "<|im_start|>"},
    )
    save_file(hf_tensors, folder / "model.safetensors")
    return folder


@pytest.fixture
def sharded_folder(hf_folder: Path, hf_tensors: dict[str, torch.Tensor]) -> Path:
    """The same model in three shards and an index."""
    (hf_folder / "model.safetensors").unlink()
    names = sorted(hf_tensors)
    weight_map: dict[str, str] = {}
    for shard in range(3):
        file = f"model-{shard + 1:05}-of-00003.safetensors"
        part = {name: hf_tensors[name] for name in names[shard::3]}
        save_file(part, hf_folder / file)
        weight_map |= dict.fromkeys(part, file)
    write_json(hf_folder / "model.safetensors.index.json", {"weight_map": weight_map})
    return hf_folder


def write_json(path: Path, content: object) -> None:
    """Write a JSON file."""
    path.write_text(json.dumps(content), "utf-8")


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    """An empty store."""
    return ModelStore(tmp_path / "cache")


class FakeHub:
    """A hub that serves one folder under one repository id.

    Attributes:
        fetched: every file asked for, in order.
        before_fetch: called with the file's name and the target folder; raise there to break off.
    """

    def __init__(self, repo_id: str, folder: Path) -> None:
        self.repo_id = repo_id
        self.folder = folder
        self.fetched: list[str] = []
        self.error: Exception | None = None
        self.before_fetch: Callable[[str, Path], None] = lambda file, folder: None
        self.sizes: dict[str, int] = {}

    def listing(self, repo_id: str, revision: str | None) -> Listing:
        if self.error is not None:
            raise self.error
        assert repo_id == self.repo_id
        files = {path.name: path.stat().st_size for path in self.folder.iterdir()}
        return Listing("c0ffee", files | self.sizes)

    def fetch(self, repo_id: str, commit: str, file: str, folder: Path) -> None:
        assert (repo_id, commit) == (self.repo_id, "c0ffee")
        self.fetched.append(file)
        self.before_fetch(file, folder)
        (folder / file).write_bytes((self.folder / file).read_bytes())


@pytest.fixture
def fake_hub(hf_folder: Path) -> FakeHub:
    """A hub with `acme/tiny-model`."""
    return FakeHub("acme/tiny-model", hf_folder)


@pytest.fixture
def unreachable_hub(hf_folder: Path) -> FakeHub:
    """A hub that gives no answer."""
    hub = FakeHub("acme/tiny-model", hf_folder)
    hub.error = HubUnreachable("no route")
    return hub


@pytest.fixture
def hf_arrays() -> Arrays:
    """A random tiny Llama under Hugging Face names."""
    return llama_tensors(np.random.default_rng(3))


@pytest.fixture
def llama_metadata() -> dict[str, Any]:
    """What a GGUF file says about `hf_arrays`, without the architecture's prefix."""
    return dict(LLAMA_METADATA)


@pytest.fixture
def gguf_arrays(hf_arrays: Arrays) -> Arrays:
    """`hf_arrays` as the converter writes them: GGUF names, rows of q and k interleaved."""
    parts = {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    renamed = {
        "token_embd.weight": hf_arrays["model.embed_tokens.weight"],
        "output_norm.weight": hf_arrays["model.norm.weight"],
    }
    for layer in range(LAYERS):
        for hf_part, part in parts.items():
            values = hf_arrays[f"model.layers.{layer}.{hf_part}.weight"]
            if part in ("attn_q", "attn_k"):
                heads = HEADS if part == "attn_q" else KV_HEADS
                values = interleave(values, heads)
            renamed[f"blk.{layer}.{part}.weight"] = values
    return renamed


def interleave(values: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Row i of a head's first half goes to 2i, of its second half to 2i + 1; row by row."""
    head_dim = values.shape[0] // num_heads
    moved = np.empty_like(values)
    for row in range(values.shape[0]):
        head, index = divmod(row, head_dim)
        half, pair = divmod(index, head_dim // 2)
        moved[head * head_dim + 2 * pair + half] = values[row]
    return moved
