"""From a configuration to a model on this disk, and to an engine around it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramet.runtime import Engine
from ramet.runtime.config import CacheConfig, EngineConfig, ModelOptions
from ramet.runtime.engine.factory import open_source
from ramet.runtime.engine.loading import open_core
from ramet.runtime.engine.process import EngineProcess
from ramet.runtime.errors import ConfigError, ModelNotFound

MEGABYTE = 1 << 20


def config(model: object) -> EngineConfig:
    return EngineConfig(
        model=ModelOptions(model=str(model), num_threads=1),
        cache=CacheConfig(kv_cache_memory=MEGABYTE),
    )


def test_a_folder_is_opened_and_loaded(tiny_folder: Path, tmp_path: Path) -> None:
    assert open_source(config(tiny_folder), tmp_path).config()["model_type"] == "llama"
    core = open_core(config(tiny_folder), tmp_path)
    assert (core.info.model_name, core.info.vocab_size) == ("tiny", 259)


def test_a_model_that_is_not_here_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        open_source(config("qwen3-0.6b"), tmp_path)


def test_the_library_opens_a_folder_with_options(tiny_folder: Path, tmp_path: Path) -> None:
    with Engine(
        tiny_folder,
        cache_dir=tmp_path,
        max_model_len=64,
        kv_cache_memory=MEGABYTE,
        num_threads=1,
    ) as engine:
        assert engine.info.max_model_len == 64
        completion = engine.generate("hello", temperature=0, max_tokens=4, ignore_eos=True)
        assert len(completion.token_ids) == 4


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_the_library_quantizes_when_asked(
    tiny_folder: Path, tmp_path: Path, quantization: str
) -> None:
    sizes = []
    for asked in (None, quantization):
        with Engine(
            tiny_folder,
            cache_dir=tmp_path,
            quantization=asked,
            kernels="reference",
            kv_cache_memory=MEGABYTE,
            num_threads=1,
        ) as engine:
            assert engine.info.quantization == asked
            sizes.append(engine.info.weight_bytes)
            completion = engine.generate("hello", temperature=0, max_tokens=4, ignore_eos=True)
            assert len(completion.token_ids) == 4
    assert sizes[1] < sizes[0] / 2


@pytest.mark.parametrize("kernels", ["reference", "sdpa", "auto"])
def test_the_library_keeps_keys_and_values_in_8_bits_when_asked(
    tiny_folder: Path, tmp_path: Path, kernels: str
) -> None:
    outputs = []
    for asked in ("float32", "int8"):
        with Engine(
            tiny_folder,
            cache_dir=tmp_path,
            dtype="float32",
            kv_cache_dtype=asked,
            kernels=kernels,
            kv_cache_memory=MEGABYTE,
            num_threads=1,
        ) as engine:
            assert engine.info.kv_cache_dtype == asked
            completion = engine.generate(
                "hello", temperature=0, max_tokens=1, ignore_eos=True, logprobs=1
            )
            assert completion.logprobs is not None
            outputs.append(completion.logprobs[0].logprob)
    whole, small = outputs
    assert whole != small
    assert whole == pytest.approx(small, abs=0.05)


def test_an_engine_that_cannot_work_raises(tiny_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max-model-len"):
        Engine(tiny_folder, cache_dir=tmp_path, kv_cache_memory=1024, num_threads=1)
    with pytest.raises(ConfigError, match="quantization must be one of int8, int4, not 'fp8'"):
        Engine(tiny_folder, cache_dir=tmp_path, quantization="fp8")
    with pytest.raises(ConfigError, match="must be one of auto, bfloat16, float32, int8") as caught:
        Engine(tiny_folder, cache_dir=tmp_path, kv_cache_dtype="int4")
    assert caught.value.param == "kv_cache_dtype"
    with pytest.raises(ConfigError, match="int4 computes in bfloat16 or float32, not in float16"):
        Engine(tiny_folder, cache_dir=tmp_path, quantization="int4", dtype="float16")
    with pytest.raises(TypeError, match="'temperature'"):
        Engine(tiny_folder, cache_dir=tmp_path, temperature=0)


async def test_a_process_refuses_what_cannot_work_with_both_remedies(
    tiny_folder: Path, tmp_path: Path
) -> None:
    engine = EngineProcess(
        EngineConfig(
            model=ModelOptions(model=str(tiny_folder), num_threads=1),
            cache=CacheConfig(kv_cache_memory=1024),
        ),
        tmp_path,
    )
    with pytest.raises(ConfigError) as caught:
        await engine.start()
    assert caught.value.hint is not None
    assert "--max-model-len" in caught.value.hint
    assert "--kv-cache-memory" in caught.value.hint
