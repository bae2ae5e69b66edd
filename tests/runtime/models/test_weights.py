"""Loading: what may be in a checkpoint, what must be, and how much memory it takes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from ramet.kernels import ops
from ramet.runtime.errors import ConfigError
from ramet.runtime.models import Decoder, ModelConfig, Precision, load_decoder
from ramet.runtime.sources.base import StoredTensor

CPU = torch.device("cpu")
PROMPT = list(range(3, 23))


@pytest.fixture
def load(memory_source: Callable[..., Any]) -> Callable[..., Decoder]:
    def load(model: Any, tensors: dict[str, torch.Tensor], **options: Any) -> Decoder:
        return load_decoder(
            memory_source(model.hf_config, tensors),
            ModelConfig.from_hf(model.hf_config),
            precision=Precision(
                options.pop("dtype", torch.float32), options.pop("quantization", None)
            ),
            device=CPU,
            kernels=ops.load("reference", CPU),
            **options,
        )

    return load


@pytest.fixture
def llama(tiny_model: Callable[..., Any]) -> Any:
    return tiny_model("LlamaConfig", attention_bias=True)


def logits(decoder: Decoder, model: Any) -> torch.Tensor:
    (result,) = type(model.run())(decoder, num_seqs=1).step({0: PROMPT})
    return torch.as_tensor(result)


def test_tensors_may_come_in_any_order(llama: Any, load: Callable[..., Decoder]) -> None:
    tensors = llama.tensors()
    backwards = load(llama, dict(reversed(tensors.items())))
    torch.testing.assert_close(
        logits(backwards, llama), logits(load(llama, tensors), llama), rtol=0, atol=0
    )


def test_weights_are_copied_from_the_source(llama: Any, load: Callable[..., Decoder]) -> None:
    tensors = {name: tensor.clone() for name, tensor in llama.tensors().items()}
    decoder = load(llama, tensors)
    before = logits(decoder, llama)
    for tensor in tensors.values():
        tensor.zero_()
    torch.testing.assert_close(logits(decoder, llama), before, rtol=0, atol=0)


def test_rotary_buffers_of_old_checkpoints_are_ignored(
    llama: Any, load: Callable[..., Decoder]
) -> None:
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    load(llama, {**llama.tensors(), **extra})


def test_a_tied_head_is_the_embedding_even_if_the_checkpoint_repeats_it(
    tiny_model: Callable[..., Any], load: Callable[..., Decoder]
) -> None:
    model = tiny_model("LlamaConfig", tie_word_embeddings=True)
    tensors = model.tensors()
    assert "lm_head.weight" not in tensors
    repeated = {**tensors, "lm_head.weight": torch.zeros(97, 48)}
    torch.testing.assert_close(
        logits(load(model, repeated), model), model.expect(PROMPT), atol=2e-5, rtol=2e-5
    )


@pytest.mark.parametrize(
    "name",
    [
        "lm_head.weight",
        "model.norm.weight",
        "model.embed_tokens.weight",
        "model.layers.2.mlp.up_proj.weight",
        "model.layers.0.self_attn.k_proj.bias",
        "model.layers.1.post_attention_layernorm.weight",
    ],
)
def test_a_missing_tensor_is_named(llama: Any, load: Callable[..., Decoder], name: str) -> None:
    tensors = llama.tensors()
    del tensors[name]
    with pytest.raises(ConfigError, match=f"lacks the tensor {name}"):
        load(llama, tensors)


def test_many_missing_tensors_are_counted(llama: Any, load: Callable[..., Decoder]) -> None:
    with pytest.raises(ConfigError, match=r"model.embed_tokens.weight, .* and \d+ more"):
        load(llama, {})


@pytest.mark.parametrize(
    "name", ["model.layers.3.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.bias", "score.weight"]
)
def test_an_unexpected_tensor_is_named(llama: Any, load: Callable[..., Decoder], name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}, which LlamaForCausalLM"):
        load(llama, {**llama.tensors(), name: torch.zeros(1)})


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("model.layers.0.self_attn.q_proj.weight", (16, 48)),
        ("model.layers.0.self_attn.k_proj.bias", (48,)),
        ("model.norm.weight", (1, 48)),
        ("lm_head.weight", (98, 48)),
    ],
)
def test_a_tensor_of_the_wrong_shape_is_named_with_both_shapes(
    llama: Any, load: Callable[..., Decoder], name: str, shape: tuple[int, ...]
) -> None:
    expected = list(llama.tensors()[name].shape)
    with pytest.raises(ConfigError) as raised:
        load(llama, {**llama.tensors(), name: torch.zeros(shape)})
    assert name in str(raised.value)
    assert f"is {list(shape)}, but config.json makes it {expected}" in str(raised.value)


class GivenTwice:
    """A source that gives one of its tensors twice."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def stored(self) -> dict[str, StoredTensor]:
        return {name: StoredTensor(tuple(value.shape)) for name, value in self._tensors.items()}

    def tensors(self, *, quantized: bool = False) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self._tensors.items():
            yield name, tensor
            if name == "model.norm.weight":
                yield name, tensor


def load_from(source: Any, model: Any) -> Decoder:
    return load_decoder(
        source,
        ModelConfig.from_hf(model.hf_config),
        precision=Precision(torch.float32),
        device=CPU,
        kernels=ops.load("reference", CPU),
    )


def test_a_tensor_that_comes_twice_is_named(llama: Any) -> None:
    with pytest.raises(ConfigError, match=r"tensor model\.norm\.weight twice"):
        load_from(GivenTwice(llama.tensors()), llama)


class OneAtATime:
    """A source that counts how many of its tensors are alive when the next one is asked for."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self._given: list[weakref.ref[torch.Tensor]] = []
        self.most_alive = 0

    def stored(self) -> dict[str, StoredTensor]:
        return {name: StoredTensor(tuple(value.shape)) for name, value in self._tensors.items()}

    def tensors(self, *, quantized: bool = False) -> Iterator[tuple[str, torch.Tensor]]:
        for name in self._tensors:
            alive = sum(given() is not None for given in self._given)
            self.most_alive = max(self.most_alive, alive)
            yield name, self._make(name)

    def _make(self, name: str) -> torch.Tensor:
        tensor = self._tensors[name].clone()
        self._given.append(weakref.ref(tensor))
        return tensor


def test_a_tensor_is_let_go_before_the_next_is_made(llama: Any) -> None:
    source = OneAtATime(llama.tensors())
    load_from(source, llama)
    assert source.most_alive == 0


def test_weights_take_the_asked_dtype_and_norms_stay_float32(
    tiny_model: Callable[..., Any], load: Callable[..., Decoder]
) -> None:
    model = tiny_model("Gemma3TextConfig", head_dim=16)
    decoder = load(model, model.tensors(), dtype=torch.bfloat16)
    layer = decoder._weights.layers[0]
    stored = model.tensors()["model.layers.0.self_attn.q_norm.weight"]
    assert layer.q_norm is not None and layer.q_norm.dtype == torch.float32
    torch.testing.assert_close(layer.q_norm, 1 + stored)
    assert decoder.dtype == torch.bfloat16
    x = torch.zeros(1, 48, dtype=torch.bfloat16)
    assert decoder.kernels.linear(x, layer.qkv).dtype == torch.bfloat16


def test_tables_cover_the_asked_positions_or_the_models_own(
    llama: Any, load: Callable[..., Decoder]
) -> None:
    assert load(llama, llama.tensors()).max_positions == 128
    assert load(llama, llama.tensors(), max_positions=20).max_positions == 20
    with pytest.raises(IndexError):
        logits(load(llama, llama.tensors(), max_positions=19), llama)
