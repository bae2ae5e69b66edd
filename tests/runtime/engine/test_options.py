"""Keyword arguments of the library."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramet.runtime.config import EngineConfig, ModelOptions
from ramet.runtime.engine.options import configure, params_of_sample, sampling_params
from ramet.runtime.errors import ConfigError, InvalidRequest
from ramet.runtime.request import SamplingParams


def test_options_reach_the_part_of_the_configuration_that_they_belong_to() -> None:
    config = configure(Path("/m"), {"max_model_len": 5, "block_size": 7, "max_num_seqs": 3})
    assert config.model == ModelOptions(model="/m", max_model_len=5)
    assert (config.cache.block_size, config.scheduler.max_num_seqs) == (7, 3)


def test_options_are_laid_over_a_whole_configuration() -> None:
    base = EngineConfig(model=ModelOptions(model="m", seed=4))
    config = configure(base, {"max_model_len": 5})
    assert config.model == ModelOptions(model="m", seed=4, max_model_len=5)
    assert base.model.max_model_len is None


def test_an_unknown_option_raises_and_is_named() -> None:
    with pytest.raises(TypeError, match="'gpu'"):
        configure("m", {"gpu": 1, "seed": 2})


def test_an_option_out_of_range_raises() -> None:
    with pytest.raises(ConfigError, match="block_size"):
        configure("m", {"block_size": 0})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("kv_cache_memory", "2GiB", "kv_cache_memory must be int | None, not '2GiB'."),
        ("block_size", 1.5, "block_size must be int, not 1.5."),
        ("max_model_len", "auto", "max_model_len must be int | None, not 'auto'."),
        ("dtype", 16, "dtype must be str, not 16."),
    ],
)
def test_an_option_of_another_type_is_told_which_it_takes(
    name: str, value: object, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        configure("m", {name: value})
    assert (str(caught.value), caught.value.param) == (message, name)


def test_sampling_options_are_the_fields_of_sampling_params() -> None:
    options = {"temperature": 0.5, "stop": "END", "stop_token_ids": [3]}
    assert sampling_params(None, options) == SamplingParams(
        temperature=0.5, stop=("END",), stop_token_ids=(3,)
    )
    assert sampling_params(None, {"stop": ["a", "b"]}).stop == ("a", "b")
    assert sampling_params(None, {}) == SamplingParams()
    for given, patterns in (("", ()), ("a+", ("a+",)), (["a+", "b."], ("a+", "b."))):
        assert sampling_params(None, {"stop_regex": given}).stop_regex == patterns


def test_params_are_taken_as_they_are_and_exclude_options() -> None:
    params = SamplingParams(top_k=3)
    assert sampling_params(params, {}) is params
    with pytest.raises(TypeError, match="top_p"):
        sampling_params(params, {"top_p": 0.5})


def test_an_unknown_sampling_parameter_raises_and_is_named() -> None:
    with pytest.raises(TypeError, match="'temprature'"):
        sampling_params(None, {"temprature": 0})
    with pytest.raises(InvalidRequest, match="top_p"):
        sampling_params(None, {"top_p": 0})


def test_samples_have_seeds_of_their_own_only_if_there_is_a_seed() -> None:
    seeded, free = SamplingParams(seed=5), SamplingParams()
    assert params_of_sample(seeded, 0) is seeded
    seeds = {params_of_sample(seeded, index).seed for index in range(5)}
    assert len(seeds) == 5
    assert params_of_sample(free, 3) is free
