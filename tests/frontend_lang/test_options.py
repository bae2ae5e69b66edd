"""Flags are the fields of the configuration, there and back."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from ramet.commands.options import AUTO, flags_of, from_flags, with_flags
from ramet.runtime.config import EngineConfig, ModelOptions, ServerConfig
from ramet.runtime.errors import ConfigError


def parse(*argv: str) -> ServerConfig:
    """What `ramet serve` would be given."""
    seen: list[dict[str, Any]] = []

    def command(**values: Any) -> None:
        seen.append(values)

    app = typer.Typer()
    app.command()(with_flags(command, flags_of(ServerConfig)))
    result = CliRunner().invoke(app, argv, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return from_flags(ServerConfig, seen[0])


def described_fields(config: type[Any]) -> set[str]:
    hints = get_type_hints(config)
    names = set()
    for item in fields(config):
        if is_dataclass(hints[item.name]):
            names |= described_fields(hints[item.name])
        elif "help" in item.metadata:
            names.add(item.name)
    return names


def test_no_flags_give_the_default_configuration() -> None:
    assert parse() == ServerConfig()


def test_every_described_field_has_a_flag() -> None:
    assert {flag.name for flag in flags_of(ServerConfig)} == described_fields(ServerConfig)


def test_every_flag_reaches_its_field() -> None:
    config = parse(
        "some/model", "--dtype=bfloat16", "--quantization=int4", "--max-model-len=32k", "--seed=3",
        "--cpu-threads=2",
        "--block-size=8", "--kv-cache-dtype=int8", "--gpu-memory-utilization=0.25", "--kv-cache-memory=2GiB",
        "--no-prefix-cache", "--eviction-policy=lfu", "--max-num-seqs=4",
        "--max-num-batched-tokens=99", "--schedule-policy=fcfs", "--max-overtakes=5",
        "--step-latency-target=0.5", "--max-queue-len=6", "--host=::1", "--port=7",
        "--served-model-name=name", "--api-key=a", "--api-key=b", "--shutdown-timeout=1.5",
    )  # fmt: skip
    model, cache, scheduler = config.engine.model, config.engine.cache, config.engine.scheduler
    assert (model.model, model.dtype, model.max_model_len) == ("some/model", "bfloat16", 32_000)
    assert model.quantization == "int4"
    assert (model.seed, model.num_threads, model.auto_length) == (3, 2, False)
    assert (cache.block_size, cache.memory_fraction) == (8, 0.25)
    assert (cache.kv_cache_memory, cache.kv_cache_dtype) == (2 * 1024**3, "int8")
    assert (cache.enable_prefix_cache, cache.eviction_policy) == (False, "lfu")
    assert (scheduler.max_num_seqs, scheduler.max_num_batched_tokens) == (4, 99)
    assert (scheduler.schedule_policy, scheduler.max_overtakes) == ("fcfs", 5)
    assert (scheduler.step_latency_target, scheduler.max_queue_len) == (0.5, 6)
    assert (config.host, config.port, config.served_model_name) == ("::1", 7, "name")
    assert (config.api_key, config.shutdown_timeout) == (("a", "b"), 1.5)


@pytest.mark.parametrize(
    ("text", "length"), [("8192", 8192), ("32k", 32_000), ("32K", 32_768), ("1.5k", 1500)]
)
def test_lengths_may_be_written_short(text: str, length: int) -> None:
    assert parse(f"--max-model-len={text}").engine.model.max_model_len == length


def test_auto_length_shrinks_and_the_default_does_not() -> None:
    model = parse("--max-model-len=auto").engine.model
    assert (model.max_model_len, model.auto_length) == (None, True)
    assert not parse().engine.model.auto_length


def test_auto_means_the_default_for_every_other_flag_that_may_be_none() -> None:
    assert parse("--cpu-threads=auto", "--kv-cache-memory=auto") == ServerConfig()


def test_flags_that_are_no_fields_are_left_to_the_command() -> None:
    config = from_flags(EngineConfig, {"port": 9, "seed": 4, "max_model_len": AUTO})
    assert config.model == ModelOptions(seed=4, auto_length=True)


@pytest.mark.parametrize(
    "argv",
    [
        ["--dtype=float8"],
        ["--block-size=0"],
        ["--gpu-memory-utilization=1.5"],
        ["--max-num-seqs=9", "--max-num-batched-tokens=8"],
        ["--port=70000"],
        ["--api-key="],
        ["--kv-cache-memory=3q"],
    ],
)
def test_values_out_of_range_raise(argv: list[str]) -> None:
    with pytest.raises(ConfigError):
        parse(*argv)


def test_a_word_for_a_number_is_misuse() -> None:
    app = typer.Typer()
    app.command()(with_flags(lambda **values: None, flags_of(ServerConfig)))
    result = CliRunner().invoke(app, ["--cpu-threads", "many"])
    assert result.exit_code == 2
    assert "neither a number nor auto" in result.output


def test_a_command_keeps_its_own_parameters() -> None:
    seen: list[dict[str, Any]] = []

    def command(own: int = 5, **values: Any) -> None:
        seen.append({"own": own, **values})

    app = typer.Typer()
    app.command()(with_flags(command, flags_of(EngineConfig)))
    assert CliRunner().invoke(app, ["--own=6", "--seed=7"]).exit_code == 0
    assert (seen[0]["own"], seen[0]["seed"]) == (6, 7)
