from __future__ import annotations

import pytest
import torch

from ramet.kernels.cpu.arguments import heads_job
from ramet.kernels.cpu.kernels import CpuKernels
from ramet.kernels.cpu.kv_tiles import to_tiles
from ramet.kernels.kv_rows import row_size, to_rows
from ramet.kernels.reference import ReferenceKernels

SIZES = [1, 3, 8, 16, 31, 64, 576]


def assert_near(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    """A few units in the last place of float32; one step of bfloat16."""
    rtol, atol = 2e-6, 2e-6
    if dtype == torch.bfloat16:
        rtol, atol = 8e-3, 1e-3
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)


def randn(generator: torch.Generator, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator).to(dtype)


@pytest.mark.parametrize("size", SIZES)
def test_norms_match_the_reference_and_keep_their_bits_alone(
    kernels: CpuKernels,
    reference: ReferenceKernels,
    dtype: torch.dtype,
    generator: torch.Generator,
    size: int,
) -> None:
    x, residual = randn(generator, dtype, 70, size), randn(generator, dtype, 70, size)
    weight = torch.rand(size, generator=generator) + 0.5
    normed = kernels.rms_norm(x, weight, 1e-5)
    assert_near(normed, reference.rms_norm(x, weight, 1e-5), dtype)
    both, total = kernels.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(total, residual + x)
    assert torch.equal(both, kernels.rms_norm(total, weight, 1e-5))
    for row in range(0, 70, 9):
        alone = kernels.rms_norm(x[row : row + 1], weight, 1e-5)
        assert torch.equal(alone[0], normed[row])


def test_a_norm_of_heads_takes_a_strided_view(
    kernels: CpuKernels, dtype: torch.dtype, generator: torch.Generator
) -> None:
    qkv = randn(generator, dtype, 9, 5, 24)
    weight = torch.rand(24, generator=generator)
    for view in (qkv[:, 1:4], qkv[:, :1], qkv.transpose(0, 1)):
        expected = kernels.rms_norm(view.contiguous(), weight, 1e-6)
        assert torch.equal(kernels.rms_norm(view, weight, 1e-6), expected)
    deep = randn(generator, dtype, 2, 3, 4, 24)
    flat = kernels.rms_norm(deep.view(24, 24), weight, 1e-6)
    assert torch.equal(kernels.rms_norm(deep, weight, 1e-6).view(24, 24), flat)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("size", SIZES)
def test_gated_activations_match_the_reference_and_keep_their_bits_alone(
    kernels: CpuKernels,
    reference: ReferenceKernels,
    dtype: torch.dtype,
    generator: torch.Generator,
    size: int,
    activation: str,
) -> None:
    gate_up = 3 * randn(generator, dtype, 70, 2 * size)
    out = kernels.gated_activation(gate_up, activation)
    # In float64: torch's own 1 + tanh loses digits where the gate is far below zero.
    expected = reference.gated_activation(gate_up.double(), activation).float()
    assert_near(out.float(), expected, dtype)
    for row in range(0, 70, 9):
        assert torch.equal(
            kernels.gated_activation(gate_up[row : row + 1], activation)[0], out[row]
        )


def test_activations_of_large_values_are_finite_or_the_value(kernels: CpuKernels) -> None:
    gate = torch.tensor([-1e30, -200.0, -80.0, 0.0, 80.0, 200.0, 1e30])
    for activation in ("silu", "gelu_tanh"):
        out = kernels.gated_activation(torch.cat((gate, torch.ones(7)))[None], activation)[0]
        torch.testing.assert_close(out, gate.clamp(min=0), rtol=1e-6, atol=1e-30)


def test_a_nan_is_not_lost_in_an_activation(kernels: CpuKernels) -> None:
    gate_up = torch.tensor([[torch.nan, 1.0, 1.0, 1.0]])
    for activation in ("silu", "gelu_tanh"):
        assert kernels.gated_activation(gate_up, activation).isnan().tolist() == [[True, False]]


@pytest.mark.parametrize("head_dim,rotary_dim", [(64, 64), (24, 24), (40, 20), (8, 2), (96, 64)])
def test_rotation_matches_the_reference(
    kernels: CpuKernels,
    reference: ReferenceKernels,
    dtype: torch.dtype,
    generator: torch.Generator,
    head_dim: int,
    rotary_dim: int,
) -> None:
    qkv = randn(generator, dtype, 33, 8, head_dim)
    q, k, _ = torch.split(qkv, [4, 2, 2], dim=1)
    cos_sin = torch.randn(100, rotary_dim, generator=generator)
    positions = torch.randint(100, (33,), generator=generator)
    for out, expected in zip(
        kernels.rotary_embedding(q, k, positions, cos_sin),
        reference.rotary_embedding(q, k, positions, cos_sin),
        strict=True,
    ):
        assert_near(out, expected, dtype)


CACHE_DTYPES = [torch.float32, torch.bfloat16, torch.int8]


@pytest.mark.parametrize("cache_dtype", CACHE_DTYPES, ids=["f32kv", "bf16kv", "i8kv"])
@pytest.mark.parametrize("block_size", [5, 16, 32])
@pytest.mark.parametrize("head_dim", [4, 24, 64, 100])
def test_stored_keys_and_values_lie_in_their_slots(
    kernels: CpuKernels,
    reference: ReferenceKernels,
    dtype: torch.dtype,
    generator: torch.Generator,
    cache_dtype: torch.dtype,
    head_dim: int,
    block_size: int,
) -> None:
    qkv = randn(generator, dtype, 17, 8, head_dim)
    _, k, v = torch.split(qkv, [4, 2, 2], dim=1)
    k[3], v[5] = 0.0, 1e-33
    slots = torch.randperm(40, generator=generator)[:17]
    shape = (2, -(-40 // block_size), block_size, 2, row_size(head_dim, cache_dtype))
    rows = torch.randint(-9, 9, shape, generator=generator).to(cache_dtype)
    k_cache, v_cache = to_tiles(rows[0], "keys"), to_tiles(rows[1], "values")
    kernels.store_kv(k, v, k_cache, v_cache, slots)
    reference.store_kv(k, v, rows[0], rows[1], slots)
    assert torch.equal(k_cache, to_tiles(rows[0], "keys"))
    assert torch.equal(v_cache, to_tiles(rows[1], "values"))


@pytest.mark.parametrize(("block_size", "head_dim"), [(5, 24), (16, 32)])
def test_rotation_and_storing_in_one_pass_have_the_same_bits(
    kernels: CpuKernels,
    dtype: torch.dtype,
    generator: torch.Generator,
    block_size: int,
    head_dim: int,
) -> None:
    q, k, v = torch.split(randn(generator, dtype, 17, 8, head_dim), [4, 2, 2], dim=1)
    slots = torch.randperm(40, generator=generator)[:17]
    positions = torch.randint(100, (17,), generator=generator)
    cos_sin = torch.randn(100, 16, generator=generator)
    for cache_dtype in CACHE_DTYPES:
        width = row_size(head_dim, cache_dtype)
        fused = torch.zeros(2, 8, block_size, 2, width, dtype=cache_dtype)
        apart = fused.clone()
        out = kernels.rotary_store_kv(q, k, v, positions, cos_sin, fused[0], fused[1], slots)
        rotated_q, rotated_k = kernels.rotary_embedding(q, k, positions, cos_sin)
        kernels.store_kv(rotated_k, v, apart[0], apart[1], slots)
        assert torch.equal(out, rotated_q)
        assert torch.equal(fused, apart)


def test_in_8_bits_a_head_that_is_not_finite_hides_nothing_and_spoils_no_other(
    kernels: CpuKernels, dtype: torch.dtype
) -> None:
    k = torch.ones(3, 1, 24, dtype=dtype)
    k[0, 0, 3], k[1, 0, 20] = torch.nan, torch.inf
    caches = torch.zeros(2, 1, 3, 1, 28, dtype=torch.int8)
    kernels.store_kv(k, k, caches[0], caches[1], torch.arange(3))
    scales = caches[0, 0, :, 0, 24:].contiguous().view(torch.float32)[:, 0]
    assert scales.isfinite().tolist() == [False, False, True]
    assert torch.equal(caches[0, 0, 2], to_rows(k[2], torch.int8))


def test_a_head_stored_in_8_bits_has_a_largest_size(kernels: CpuKernels) -> None:
    heads = torch.ones(1, 1, 1032)
    cache = torch.zeros(1, 1, 1, 1036, dtype=torch.int8)
    with pytest.raises(ValueError, match="a cache of int8 takes heads of at most 1024, not 1032"):
        kernels.store_kv(heads, heads, cache, cache.clone(), torch.arange(1))
    cache = torch.zeros(1, 1, 1, 1028, dtype=torch.int8)
    kernels.store_kv(heads[..., :1024], heads[..., :1024], cache, cache.clone(), torch.arange(1))
    assert torch.equal(cache[0, 0], to_rows(heads[0, :, :1024], torch.int8))


def test_what_does_not_fit_raises(kernels: CpuKernels) -> None:
    x, weight = torch.ones(2, 8), torch.ones(8)
    with pytest.raises(ValueError, match="norm's weight"):
        kernels.rms_norm(x, torch.ones(7), 1e-5)
    with pytest.raises(ValueError, match="norm's weight"):
        kernels.rms_norm(x, weight.to(torch.bfloat16), 1e-5)
    with pytest.raises(ValueError, match="does not fit x"):
        kernels.add_rms_norm(x, torch.ones(1, 8), weight, 1e-5)
    with pytest.raises(ValueError, match="unknown activation 'relu'"):
        kernels.gated_activation(x, "relu")
    with pytest.raises(ValueError, match="gate_up must be"):
        kernels.gated_activation(torch.ones(2, 7), "silu")
    heads, cos_sin = torch.ones(2, 1, 8), torch.ones(4, 8)
    with pytest.raises(ValueError, match="1 positions for 2 tokens"):
        kernels.rotary_embedding(heads, heads, torch.zeros(1, dtype=torch.int64), cos_sin)
    with pytest.raises(ValueError, match="cos_sin must be"):
        kernels.rotary_embedding(heads, heads, torch.arange(2), torch.ones(4, 16))
    with pytest.raises(IndexError, match="position 4 is outside"):
        kernels.rotary_embedding(heads, heads, torch.tensor([0, 4]), cos_sin)
    cache = torch.zeros(2, 3, 1, 8)
    with pytest.raises(IndexError, match=r"slot 6 is outside of 0 \.\.\. 5"):
        kernels.store_kv(heads, heads, cache, cache.clone(), torch.tensor([0, 6]))
    with pytest.raises(ValueError, match="a cache of torch.float32 must be contiguous"):
        kernels.store_kv(heads, heads, cache[..., :4], cache[..., :4], torch.arange(2))
    narrow = cache.to(torch.int8)
    with pytest.raises(ValueError, match=r"int8 must be .*, 1, 12\], not \[2, 3, 1, 8\]"):
        kernels.store_kv(heads, heads, narrow, narrow, torch.arange(2))
    with pytest.raises(ValueError, match="are float32, bfloat16 or int8, not torch.float16"):
        kernels.store_kv(heads, heads, cache.half(), cache.half(), torch.arange(2))
    more = torch.ones(2, 2, 8)
    with pytest.raises(ValueError, match=r"v must be \(2, 1, 8\) like k, not \(2, 2, 8\)"):
        kernels.store_kv(heads, more, cache, cache.clone(), torch.arange(2))
    with pytest.raises(ValueError, match="slots are those of keys or of values"):
        heads_job(heads, cache, slots=torch.arange(2))
    with pytest.raises(ValueError, match="3 slots for 2 tokens"):
        kernels.store_kv(heads, heads, cache, cache.clone(), torch.arange(3))
