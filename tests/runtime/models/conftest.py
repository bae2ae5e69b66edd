"""Tiny random models of transformers, and the same models here, on a paged KV pool."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch

from ramet.kernels import ops
from ramet.runtime.errors import ConfigError
from ramet.runtime.execution.batch import ForwardBatch
from ramet.runtime.execution.kv_pool import PagedKVPool
from ramet.runtime.models import Decoder, ModelConfig, Precision, load_decoder
from ramet.runtime.sources.base import StoredTensor, TokenizerFiles

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CPU = torch.device("cpu")
BLOCK_SIZE = 4

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


class MemorySource:
    """A `ModelSource` of tensors that are already in memory."""

    name = "memory"

    def __init__(self, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        self._config, self._tensors = config, tensors

    def config(self) -> dict[str, Any]:
        return self._config

    def eos_token_ids(self) -> tuple[int, ...]:
        return (2,)

    def stored(self) -> dict[str, StoredTensor]:
        return {name: StoredTensor(tuple(value.shape)) for name, value in self._tensors.items()}

    def tensors(self, *, quantized: bool = False) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self._tensors.items()

    def tokenizer(self) -> TokenizerFiles:
        raise ConfigError("A source in memory has no tokenizer.")


class PagedRun:
    """Sequences on one KV pool, each in blocks that lie anywhere in it."""

    def __init__(self, decoder: Decoder, *, num_seqs: int, max_len: int = 128) -> None:
        config = decoder.config
        num_blocks = max_len // BLOCK_SIZE
        self.decoder = decoder
        self._pool = PagedKVPool(
            num_layers=config.num_layers,
            num_blocks=num_seqs * num_blocks,
            block_size=BLOCK_SIZE,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            dtype=decoder.dtype,
            device=CPU,
        )
        generator = torch.Generator().manual_seed(3)
        shuffled = torch.randperm(num_seqs * num_blocks, generator=generator)
        self._tables = shuffled.view(num_seqs, num_blocks)
        self.lens = [0] * num_seqs

    def step(
        self, new: dict[int, list[int]], *, rows: list[int] | None = None
    ) -> list[torch.Tensor]:
        """Feed tokens to some sequences in one forward.

        Returns the logits of each sequence's new tokens: of all, or of those that `rows` picks.
        """
        input_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        kv_lens: list[int] = []
        wanted: list[list[int]] = []
        for seq, ids in new.items():
            for position in range(self.lens[seq], self.lens[seq] + len(ids)):
                block = int(self._tables[seq, position // BLOCK_SIZE])
                positions.append(position)
                slots.append(block * BLOCK_SIZE + position % BLOCK_SIZE)
            picked = range(len(ids)) if rows is None else [range(len(ids))[row] for row in rows]
            wanted.append([len(input_ids) + row for row in picked])
            input_ids += ids
            self.lens[seq] += len(ids)
            kv_lens.append(self.lens[seq])
        counts = torch.tensor([0] + [len(ids) for ids in new.values()])
        logits = self.decoder.forward(
            ForwardBatch(
                input_ids=torch.tensor(input_ids),
                positions=torch.tensor(positions),
                slot_mapping=torch.tensor(slots),
                cu_seqlens=counts.cumsum(0).int(),
                kv_lens=torch.tensor(kv_lens).int(),
                block_tables=self._tables[list(new)].int(),
                logit_rows=torch.tensor(sum(wanted, []), dtype=torch.int64),
                block_copies=torch.zeros(0, 2, dtype=torch.int64),
            ),
            self._pool,
        )
        return list(logits.split_with_sizes([len(picked) for picked in wanted]))


@dataclass(frozen=True)
class TinyModel:
    """One random model, twice."""

    reference: PreTrainedModel
    hf_config: dict[str, Any]

    def tensors(self) -> dict[str, torch.Tensor]:
        """What a checkpoint of it holds."""
        tensors = dict(self.reference.state_dict())
        if self.hf_config["tie_word_embeddings"]:
            del tensors["lm_head.weight"]
        return tensors

    def decoder(
        self,
        dtype: torch.dtype = torch.float32,
        kernels: str = "auto",
        max_positions: int | None = None,
        quantization: str | None = None,
    ) -> Decoder:
        return load_decoder(
            MemorySource(self.hf_config, self.tensors()),
            ModelConfig.from_hf(self.hf_config),
            precision=Precision(dtype, quantization),
            device=CPU,
            kernels=ops.load(kernels, CPU),
            max_positions=max_positions,
        )

    def run(self, num_seqs: int = 1, **kwargs: Any) -> PagedRun:
        return PagedRun(self.decoder(**kwargs), num_seqs=num_seqs)

    @torch.no_grad()
    def expect(self, ids: list[int]) -> torch.Tensor:
        """The reference's logits of every position."""
        logits: torch.Tensor = self.reference(torch.tensor([ids]), use_cache=False).logits[0]
        return logits.float()


TinyFactory = Callable[..., TinyModel]


@pytest.fixture(scope="session")
def tiny_model() -> TinyFactory:
    """Makes a random model of a config class of transformers, with `SMALL` sizes unless told."""
    with warnings.catch_warnings():
        # Deprecations inside torch and transformers are not this project's.
        warnings.simplefilter("ignore")
        import transformers

    made: dict[str, TinyModel] = {}

    def make(config_class: str, **options: Any) -> TinyModel:
        key = repr((config_class, sorted(options.items(), key=str)))
        if key not in made:
            config = getattr(transformers, config_class)(**{**SMALL, **options})
            config._attn_implementation = "eager"
            torch.manual_seed(0)
            make_random: Callable[..., PreTrainedModel] = (
                transformers.AutoModelForCausalLM.from_config
            )
            model = make_random(config).train(False)
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    noise = 0.2 * torch.randn_like(parameter)
                    parameter.copy_(parameter + noise if "norm" in name else noise)
            hf_config = {**config.to_dict(), "architectures": [type(model).__name__]}
            made[key] = TinyModel(model, hf_config)
        return made[key]

    return make


@pytest.fixture
def memory_source() -> type[MemorySource]:
    return MemorySource
