"""From the library's keyword arguments to the frozen objects that the engine works with."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any, get_type_hints

import msgspec

from ..config import CacheConfig, EngineConfig, ModelOptions, SchedulerConfig
from ..errors import ConfigError
from ..execution.sampler import derive_seed
from ..request import SamplingParams

# Arguments of a call that are fields of GenerateRequest, not of SamplingParams.
ENVELOPE = ("namespace", "group", "priority", "timeout", "session", "retain")


def configure(
    model: str | os.PathLike[str] | EngineConfig, options: dict[str, Any]
) -> EngineConfig:
    """The configuration of `model`, with options laid over it.

    Args:
        model: a model, or a whole configuration.
        options: fields of `ModelOptions`, `CacheConfig` and `SchedulerConfig`.

    Raises:
        ConfigError: a value is out of range, or of another type; names the option.
        TypeError: there is no such option.
    """
    config = model if isinstance(model, EngineConfig) else EngineConfig()
    if not isinstance(model, EngineConfig):
        options = {**options, "model": os.fspath(model)}
    left = dict(options)
    for name, part in (
        ("model", ModelOptions),
        ("cache", CacheConfig),
        ("scheduler", SchedulerConfig),
    ):
        chosen = {f.name: left.pop(f.name) for f in fields(part) if f.name in left}
        _check_types(part, chosen)
        config = replace(config, **{name: replace(getattr(config, name), **chosen)})
    if left:
        raise TypeError(f"There is no option {', '.join(map(repr, left))}.")
    return config


def _check_types(part: type, options: dict[str, Any]) -> None:
    types = get_type_hints(part)
    for name, value in options.items():
        try:
            msgspec.convert(value, types[name])
        except msgspec.ValidationError:
            kind = types[name].__name__ if isinstance(types[name], type) else types[name]
            raise ConfigError(f"{name} must be {kind}, not {value!r}.", param=name) from None


def sampling_params(params: SamplingParams | None, options: dict[str, Any]) -> SamplingParams:
    """`params`, or those that the options make; a single stop string need not be in a tuple.

    An empty text for `stop_regex` is none.

    Raises:
        InvalidRequest: a value is out of range.
        TypeError: both are given, or there is no such parameter.
    """
    if params is not None:
        if options:
            raise TypeError(f"{', '.join(options)}: give either params or keyword arguments.")
        return params
    known = {field.name for field in fields(SamplingParams)}
    for name in options:
        if name not in known:
            raise TypeError(f"There is no sampling parameter {name!r}.")
    names = [name for name in ("stop", "stop_regex", "stop_token_ids") if name in options]
    values = options | {name: _tuple(options[name]) for name in names}
    if options.get("stop_regex") == "":
        values["stop_regex"] = ()
    return SamplingParams(**values)


def _tuple(value: str | Iterable[Any]) -> tuple[Any, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def params_of_sample(params: SamplingParams, index: int) -> SamplingParams:
    """`params` for sample `index` of a prompt: a given seed becomes its own, and the first alone has the
    prompt scored."""
    if index == 0:
        return params
    if params.prompt_logprobs is not None:
        params = replace(params, prompt_logprobs=None, prompt_logprobs_start=0)
    # Without a seed the engine draws one for every request.
    return params if params.seed is None else replace(params, seed=derive_seed(params.seed, index))
