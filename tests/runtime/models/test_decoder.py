"""Every family against transformers, through the paged, chunked and batched path."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from ramet.runtime.models import ModelConfig

# float32 rounding over three layers, relative to logits of size 1 to 7.
TOLERANCE = 2e-5
LAST = [-1]

YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0, 1.1, 1.5, 2.0],
    "long_factor": [1.0, 2.0, 5.0, 9.0],
}

# Every prompt of these tests is longer than the windows here.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "llama with biases": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    "llama tied, one kv head": (
        "LlamaConfig",
        {"tie_word_embeddings": True, "num_key_value_heads": 1},
    ),
    "llama without groups": ("LlamaConfig", {"num_key_value_heads": 6}),
    "llama 3.1": ("LlamaConfig", {"head_dim": 16, "rope_parameters": LLAMA3}),
    "llama linear": (
        "LlamaConfig",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.5}},
    ),
    "mistral": ("MistralConfig", {"sliding_window": None, "head_dim": 16}),
    "mistral with a window": ("MistralConfig", {"sliding_window": 7}),
    "qwen2": ("Qwen2Config", {}),
    "qwen2 with late windows": (
        "Qwen2Config",
        {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    ),
    "qwen2.5 yarn": ("Qwen2Config", {"rope_parameters": YARN}),
    "qwen3": ("Qwen3Config", {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3 with biases": ("Qwen3Config", {"head_dim": 8, "attention_bias": True}),
    "smollm3": ("SmolLM3Config", {"no_rope_layer_interval": 2}),
    "smollm3 with windows": (
        "SmolLM3Config",
        {"no_rope_layers": [0, 1, 0], "use_sliding_window": True, "sliding_window": 9},
    ),
    "gemma2": ("Gemma2Config", {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 24}),
    "gemma2 with tight caps": (
        "Gemma2Config",
        {"head_dim": 32, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    ),
    "gemma3": (
        "Gemma3TextConfig",
        {"head_dim": 16, "sliding_window": 8, "sliding_window_pattern": 2},
    ),
    "gemma3 stretched": (
        "Gemma3TextConfig",
        {
            "head_dim": 16,
            "layer_types": ["sliding_attention", "full_attention", "full_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            },
        },
    ),
    "phi3 with a window": ("Phi3Config", {"sliding_window": 11}),
    "phi3 partial": (
        "Phi3Config",
        {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    ),
    "phi3 longrope": (
        "Phi3Config",
        {"rope_parameters": LONGROPE, "original_max_position_embeddings": 64},
    ),
}


def prompt(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return [int(i) for i in torch.randint(3, 97, (length,), generator=generator)]


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest, tiny_model: Callable[..., Any]) -> Any:
    config_class, options = FAMILIES[request.param]
    return tiny_model(config_class, **options)


def close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = TOLERANCE) -> None:
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


def test_a_whole_prompt_gives_the_logits_of_transformers(model: Any) -> None:
    ids = prompt(45)
    (logits,) = model.run().step({0: ids})
    close(logits, model.expect(ids))


def test_odd_chunks_give_the_logits_of_the_whole_prompt(model: Any) -> None:
    ids = prompt(45)
    run = model.run()
    logits, begin = [], 0
    for size in (7, 1, 13, 2, 22):
        logits += run.step({0: ids[begin : begin + size]})
        begin += size
    close(torch.cat(logits), model.expect(ids))


def test_prefills_and_decodes_of_one_batch_do_not_meet(model: Any) -> None:
    prompts = [prompt(31, 1), prompt(18, 2), prompt(40, 3), prompt(9, 4)]
    expected = [model.expect(ids) for ids in prompts]
    run = model.run(num_seqs=4)
    close(run.step({0: prompts[0][:30]})[0], expected[0][:30])
    steps = [
        {1: prompts[1][:17], 2: prompts[2][:11]},
        {2: prompts[2][11:34], 0: prompts[0][30:], 3: prompts[3][:8]},
        {3: prompts[3][8:], 2: prompts[2][34:35], 1: prompts[1][17:]},
    ]
    for new in steps:
        before = list(run.lens)
        for (seq, ids), logits in zip(new.items(), run.step(new), strict=True):
            close(logits, expected[seq][before[seq] : before[seq] + len(ids)])


def test_greedy_tokens_are_those_of_transformers(model: Any) -> None:
    ids = prompt(21)
    expected = list(ids)
    for _ in range(24):
        expected.append(int(model.expect(expected)[-1].argmax()))
    run = model.run()
    actual = list(ids)
    (logits,) = run.step({0: ids}, rows=LAST)
    for _ in range(24):
        actual.append(int(logits[-1].argmax()))
        (logits,) = run.step({0: actual[-1:]}, rows=LAST)
    assert actual == expected


def test_a_saved_config_reads_like_the_live_one(model: Any) -> None:
    # What transformers writes to config.json leaves out values that it takes for defaults.
    saved = model.reference.config.to_diff_dict()
    assert len(saved) < len(model.hf_config)
    saved["architectures"] = model.hf_config["architectures"]
    assert ModelConfig.from_hf(saved) == ModelConfig.from_hf(model.hf_config)


def test_a_recorded_forward_has_the_bits_of_its_ops(model: Any) -> None:
    pytest.importorskip("ramet.kernels.cpu._native", reason="the native kernels were not built")
    recorded, direct = (model.run(kernels="cpu", dtype=torch.bfloat16) for _ in range(2))
    kernels = direct.decoder.kernels
    kernels.compile = lambda forward: partial(forward, kernels)
    ids = prompt(30)
    for begin, end in ((0, 17), (17, 28), (28, 29), (29, 30)):
        actual, expected = (run.step({0: ids[begin:end]})[0] for run in (recorded, direct))
        assert torch.equal(actual, expected)


def test_longrope_uses_its_long_factors_when_told_to_serve_long(tiny_model: Any) -> None:
    config_class, options = FAMILIES["phi3 longrope"]
    model = tiny_model(config_class, **options)
    ids = prompt(70)
    (long,) = model.run(max_positions=128).step({0: ids})
    close(long, model.expect(ids))
    (short,) = model.run(max_positions=64).step({0: ids[:60]})
    close(short, model.expect(ids[:60]))
    assert not torch.allclose(long[:60], short, atol=1e-2)


def test_the_oracle_kernels_give_the_same_logits(tiny_model: Any) -> None:
    for name in ("llama", "gemma2", "phi3 partial"):
        config_class, options = FAMILIES[name]
        model = tiny_model(config_class, **options)
        run, ids = model.run(kernels="reference"), prompt(30)
        close(torch.cat([*run.step({0: ids[:29]}), *run.step({0: ids[29:]})]), model.expect(ids))


@pytest.mark.parametrize("name", ["llama", "gemma2", "gemma3", "qwen3"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_near_float32(tiny_model: Any, name: str, dtype: torch.dtype) -> None:
    config_class, options = FAMILIES[name]
    model = tiny_model(config_class, **options)
    kernels = "auto" if dtype == torch.bfloat16 else "sdpa"  # the native ones have no float16
    run, ids = model.run(dtype=dtype, kernels=kernels), prompt(30)
    logits = torch.cat([*run.step({0: ids[:29]}), *run.step({0: ids[29:]})])
    expected = model.expect(ids)
    # Errors of a few roundings of activations, whatever the scale of the logits.
    error = (logits - expected).norm() / expected.norm()
    assert error < (0.05 if dtype == torch.bfloat16 else 0.008)


def test_only_the_wanted_rows_are_returned_in_order(tiny_model: Any) -> None:
    model = tiny_model("LlamaConfig")
    ids, other = prompt(20), prompt(12, 1)
    run = model.run(num_seqs=2)
    first, second = run.step({0: ids, 1: other}, rows=LAST)
    assert first.shape == second.shape == (1, 97)
    close(first, model.expect(ids)[-1:])
    close(second, model.expect(other)[-1:])


def test_a_batch_that_wants_no_logits_still_writes_its_kv(tiny_model: Any) -> None:
    model = tiny_model("LlamaConfig")
    ids = prompt(20)
    run = model.run()
    (nothing,) = run.step({0: ids[:12]}, rows=[])
    assert nothing.shape == (0, 97)
    close(run.step({0: ids[12:]})[0], model.expect(ids)[12:])
