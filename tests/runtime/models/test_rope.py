"""Rope tables against transformers' frequencies, and the errors of their parameters."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from ramet.runtime.errors import ConfigError
from ramet.runtime.models.rope import RopeConfig, cos_sin_table

SHORT, LONG = [1.0 + i / 10 for i in range(16)], [1.0 + i for i in range(16)]
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "yarn with all its options": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 20.0,
        "beta_slow": 2.0,
        "truncate": False,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
    },
    "yarn with an attention factor": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "attention_factor": 1.5,
    },
    "longrope": {
        "rope_type": "longrope",
        "short_factor": SHORT,
        "long_factor": LONG,
        "original_max_position_embeddings": 64,
    },
}


def read(max_positions: int = 256, **parameters: Any) -> RopeConfig:
    return RopeConfig.from_hf(
        {"rope_theta": 10_000.0, **parameters}, head_dim=32, max_positions=max_positions
    )


def expect(scaling: dict[str, Any], length: int) -> torch.Tensor:
    """The table that transformers' own functions make for that length."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import LlamaConfig
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=2,
        max_position_embeddings=256,
        rope_parameters={"rope_theta": 10_000.0, **scaling},
    )
    frequencies, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, "cpu", seq_len=length)
    angles = torch.arange(length)[:, None] * frequencies
    return torch.cat((angles.cos(), angles.sin()), dim=-1) * factor


@pytest.mark.parametrize("length", [64, 65, 256, 1000])
@pytest.mark.parametrize("name", SCALINGS)
def test_scaled_tables_are_those_of_transformers(name: str, length: int) -> None:
    table = cos_sin_table(read(**SCALINGS[name]), length)
    assert table.shape == (length, 32) and table.dtype == torch.float32
    # Angles reach 1,000 radians, where float32 steps by 6e-5.
    torch.testing.assert_close(table, expect(SCALINGS[name], length), atol=1e-4, rtol=1e-4)


def test_the_default_table_turns_each_pair_at_its_own_speed() -> None:
    table = cos_sin_table(read(partial_rotary_factor=0.25), 10)
    assert table.shape == (10, 8)
    for pair in range(4):
        angle = 7 * 10_000.0 ** (-2 * pair / 8)
        torch.testing.assert_close(table[7, pair], torch.tensor(angle).cos())
        torch.testing.assert_close(table[7, 4 + pair], torch.tensor(angle).sin())


@pytest.mark.parametrize("name", ["dynamic", "longrope"])
def test_the_frequencies_of_a_table_are_the_same_at_every_position(name: str) -> None:
    rope = read(**SCALINGS[name])
    longer = cos_sin_table(rope, 600)
    shorter = cos_sin_table(rope, 50)
    assert not torch.allclose(longer[:50], shorter, atol=1e-3)
    within = cos_sin_table(rope, 40)
    torch.testing.assert_close(shorter[:40], within)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rope_type": "proportional"}, "'proportional' is not supported; supported are default"),
        ({"rope_type": "linear"}, "'linear' needs factor"),
        ({"rope_type": "llama3", "factor": 8.0}, "needs low_freq_factor, high_freq_factor"),
        ({"rope_type": "longrope", "short_factor": SHORT}, "needs long_factor"),
        ({**SCALINGS["longrope"], "long_factor": LONG[:3]}, "long_factor must have 16 numbers"),
        ({**SCALINGS["longrope"], "long_factor": ["a"] * 16}, "must be numbers above 0"),
        ({"rope_type": "linear", "factor": -2.0}, "factor must be a number above 0"),
        ({"rope_theta": "big"}, "rope_theta must be a number above 0"),
        ({"partial_rotary_factor": 0.1}, "even number of dims, at least 2, not 3"),
        ({**SCALINGS["dynamic"], "partial_rotary_factor": 0.0625}, "at least 4, not 2"),
        ({**SCALINGS["yarn"], "original_max_position_embeddings": 0}, "at least 1, not 0"),
    ],
)
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(**parameters)
