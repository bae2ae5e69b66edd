"""A backend of bytes that answers from a script, and remembers what it was asked."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ramet import Runtime, RuntimeEndpoint
from ramet.lang.backends.base import (
    Generated,
    GenRequest,
    Message,
    OptionScore,
    Sample,
    Scored,
    ScoreRequest,
)
from ramet.lang.chat import Frames
from ramet.lang.defaults import set_default_backend
from ramet.lang.params import Params

Reply = Callable[[str], str]


@dataclass
class FakeBackend:
    """Tokens are bytes. Stops at stop strings; counts as cached what an earlier request has seen."""

    reply: Reply = lambda prompt: "ok"
    score_of: Callable[[str, str], list[float]] = lambda prompt, option: [-float(len(option))]
    delay: float = 0.0
    requests: list[GenRequest] = field(default_factory=list)
    scorings: list[ScoreRequest] = field(default_factory=list)
    refuses: Callable[[Params], None] = lambda params: None
    num_live: int = 0
    most_live: int = 0
    cancelled: int = 0
    seen: set[bytes] = field(default_factory=set)
    num_renders: int = 0
    retains: bool = True
    retained: dict[str, tuple[tuple[int, ...], float | None]] = field(default_factory=dict)
    num_retained: int = 0

    def __post_init__(self) -> None:
        self.frames: Frames | None = Frames(self.render)

    def check(self, params: Params) -> None:
        self.refuses(params)

    async def generate(self, request: GenRequest) -> Generated:
        self.requests.append(request)
        self.num_live += 1
        self.most_live = max(self.most_live, self.num_live)
        try:
            return await self._generate(request)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.num_live -= 1

    async def _generate(self, request: GenRequest) -> Generated:
        prompt, params = request.prompt, request.params
        whole = bytes(prompt.ids).decode() + prompt.text
        assert whole == prompt.whole
        data = whole.encode()
        cached = max((n for n in range(len(data) + 1) if data[:n] in self.seen), default=0)
        await asyncio.sleep(self.delay)
        samples = [self._sample(self.reply(whole), params) for _ in range(params.n or 1)]
        if request.on_text is not None:
            for character in samples[0].text:
                request.on_text(character)
                await asyncio.sleep(0)
        said = data + bytes(samples[0].kept_ids)
        self.seen |= {said[:n] for n in range(1, len(said) + 1)}
        return Generated(
            samples=samples,
            prompt_ids=tuple(prompt.text.encode()),
            num_prompt_tokens=len(data),
            num_cached_tokens=cached,
        )

    def _sample(self, text: str, params: Params) -> Sample:
        reason: str = "stop"
        stop: str | None = None
        for candidate in params.stop or ():
            if candidate in text:
                text, stop = text.partition(candidate)[0], candidate
        if params.max_tokens is not None and len(text) > params.max_tokens:
            text, reason = text[: params.max_tokens], "length"
        ids = tuple(text.encode())
        logprobs = None
        if params.logprobs is not None:
            logprobs = tuple({"token_id": i, "logprob": -0.5} for i in ids)
        return Sample(
            text=text,
            kept_ids=ids,
            num_tokens=len(ids),
            finish_reason=reason,
            stop_reason=stop,
            logprobs=logprobs,
        )

    async def retain(self, session: str, ids: tuple[int, ...], seconds: float | None) -> None:
        self.retained[session] = (ids, seconds)
        self.num_retained += 1

    def release(self, session: str) -> None:
        self.retained.pop(session, None)

    async def score(self, request: ScoreRequest) -> Scored:
        self.scorings.append(request)
        await asyncio.sleep(self.delay)
        whole = request.prompt.whole
        options = tuple(
            OptionScore(
                text=option,
                token_ids=tuple(option.encode()),
                logprobs=tuple(self.score_of(whole, option)),
                unconditional=(tuple(self.score_of("", option)) if request.unconditional else ()),
            )
            for option in request.options
        )
        return Scored(options=options, num_prompt_tokens=len(whole), num_cached_tokens=len(whole))

    async def render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        self.num_renders += 1
        text = "".join(f"<{m.role}>{m.content}</{m.role}>\n" for m in messages)
        return text + ("<assistant>" if add_generation_prompt else "")


@pytest.fixture
def backend() -> Iterator[FakeBackend]:
    """The default backend of the test."""
    made = FakeBackend()
    set_default_backend(made)
    yield made
    set_default_backend(None)


TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(vocab),
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
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
def runtime(tiny_folder: Path) -> Iterator[Runtime]:
    """The tiny model in this process."""
    with Runtime(tiny_folder, kv_cache_memory=32 * 1024**2) as made:
        yield made


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
        assert found, "the server ended before it was ready"
        yield found[0]
    finally:
        watchdog.cancel()
        process.terminate()
        process.wait(30)
        process.stdout.close()


@pytest.fixture(scope="session")
def endpoint(server_url: str) -> Iterator[RuntimeEndpoint]:
    """The same over HTTP."""
    with RuntimeEndpoint(server_url) as made:
        yield made


@pytest.fixture(params=["runtime", "endpoint"])
def exact(request: pytest.FixtureRequest) -> Any:
    """Each of the backends in which tokens travel."""
    return request.getfixturevalue(request.param)
