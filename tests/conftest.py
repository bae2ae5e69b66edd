"""What the whole suite shares: one thread of arithmetic, the one real model, and a tiny one that chats."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> Iterator[None]:
    """Tiny models are slower on many threads, and tests should not differ between machines."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct as a GGUF file or a folder, pulled once into the user's model store.

    Where it cannot be had, tests that need it are skipped; under CI they fail.
    """
    from ramet.runtime.config import DEFAULT_MODEL
    from ramet.runtime.errors import RametError
    from ramet.runtime.sources.download import pull
    from ramet.runtime.sources.store import ModelStore

    cache_dir = os.environ.get("RAMET_CACHE_DIR") or Path.home() / ".cache" / "ramet"
    try:
        return pull(DEFAULT_MODEL, ModelStore(Path(cache_dir)))
    except RametError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"the real model cannot be had: {error}")


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> Path:
    """The same under its short name."""
    return smollm2_path


TEMPLATE = (
    "{% if tools %}<|im_start|>tools\n{% for tool in tools %}{{ tool.function.name }} {% endfor %}"
    "as <tool_call><|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@pytest.fixture(scope="session")
def tiny_llama() -> Callable[..., dict[str, Any]]:
    """The config.json of a tiny llama, with what is given."""
    fixed = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
    return lambda **given: {**fixed, **given}


@pytest.fixture(scope="session")
def tiny_folder(
    tiny_llama: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A random one-layer llama over bytes and a few merges, as a Hugging Face folder."""
    import torch
    from safetensors.torch import save_file
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "a"), ("t", "h"), ("th", "e"), ("Y", "e"), ("Ye", "s"), ("Ġ", "Yes")]
    vocab = [*SPECIAL, *alphabet, *[a + b for a, b in merges]]
    fast = Tokenizer(models.BPE({text: i for i, text in enumerate(vocab)}, merges))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    folder = tmp_path_factory.mktemp("models") / "tiny"
    folder.mkdir()
    fast.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|im_end|>", "add_bos_token": False, "chat_template": TEMPLATE})
    )
    config = tiny_llama(vocab_size=len(vocab), num_hidden_layers=1, max_position_embeddings=2048)
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(0)
    shapes = {"self_attn.q_proj": (32, 32), "self_attn.k_proj": (16, 32)}
    shapes |= {"self_attn.v_proj": (16, 32), "self_attn.o_proj": (32, 32)}
    shapes |= {"mlp.gate_proj": (48, 32), "mlp.up_proj": (48, 32), "mlp.down_proj": (32, 48)}
    tensors = {
        f"model.layers.0.{name}.weight": torch.randn(*shape, generator=generator) * 0.35
        for name, shape in shapes.items()
    }
    tensors["model.embed_tokens.weight"] = torch.randn(len(vocab), 32, generator=generator) * 3
    # Only ASCII is likely, so that texts are whole characters.
    head = torch.randn(len(vocab), 32, generator=generator) * 0.5
    letters = [i for i, text in enumerate(vocab) if text.replace("Ġ", "").isascii() and i > 2]
    head[[i for i in range(len(vocab)) if i not in letters]] *= 0.0
    tensors["lm_head.weight"] = head
    for name in ("layers.0.input_layernorm", "layers.0.post_attention_layernorm", "norm"):
        tensors[f"model.{name}.weight"] = torch.ones(32)
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="session")
def server_url(tiny_folder: Path) -> Iterator[str]:
    """The tiny model behind `ramet serve`."""
    command = [sys.executable, "-m", "ramet", "serve", str(tiny_folder), "--port", "0"]
    process = subprocess.Popen(
        [*command, "--kv-cache-memory", "32MiB", "--served-model-name", "tiny"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    watchdog = threading.Timer(120, process.kill)
    watchdog.start()
    assert process.stdout is not None
    try:
        found = None
        for line in process.stdout:
            found = re.search(r"http://[\d.]+:\d+", line)
            if found:
                break
        # It bounds the start; the session may take as long as it takes.
        watchdog.cancel()
        assert found, "the server ended before it was ready"
        yield found[0]
    finally:
        watchdog.cancel()
        process.terminate()
        process.wait(30)
        process.stdout.close()
