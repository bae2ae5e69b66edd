"""The contract of every op but attention, for every implementation."""

from __future__ import annotations

import math

import pytest
import torch

from ramet.kernels import ops
from ramet.kernels.kv_rows import to_rows

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# One rounding of a result of size about 1 to 4.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}


def close(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    assert actual.dtype == dtype
    torch.testing.assert_close(
        actual.double(), expected.double(), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype]
    )


def test_load_gives_the_named_implementation() -> None:
    for name in built():
        assert ops.load(name, torch.device("cpu")).name == name


def test_load_auto_takes_the_native_kernels_on_a_cpu_and_runs_everywhere_else() -> None:
    assert ops.load("auto", torch.device("cpu")).name == built()[-1]
    assert ops.load("auto", torch.device("meta")).name == "reference"


def test_without_native_kernels_auto_falls_back_with_one_clear_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ops, "find_spec", lambda *name: None)
    assert ops.load("auto", torch.device("cpu")).name == "sdpa"
    (record,) = caplog.records
    assert "C++17 compiler" in record.getMessage()
    with pytest.raises(ValueError, match="were not built"):
        ops.load("cpu", torch.device("cpu"))


def test_an_instruction_set_can_be_forced() -> None:
    if not ops.is_built():
        pytest.skip("the native kernels were not built")
    kernels = ops.load("cpu:portable", torch.device("cpu"), num_threads=1)
    assert kernels.name == "cpu" and kernels.row_invariant
    with pytest.raises(ValueError, match="mmx"):
        ops.load("cpu:mmx", torch.device("cpu"))


def built() -> list[str]:
    return [name for name in ops.NAMES if name != "cpu" or ops.is_built()]


def test_load_of_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'cuda'; known are auto, reference, sdpa, cpu"):
        ops.load("cuda", torch.device("cpu"))


def test_load_of_a_cpu_implementation_for_another_device_raises() -> None:
    with pytest.raises(ValueError, match="not on meta"):
        ops.load("sdpa", torch.device("meta"))


@pytest.mark.parametrize("sizes", [(0, 1, 8, 16), (4, 3, 8, 16), (4, 2, 8, 0)])
def test_an_impossible_attention_shape_raises(sizes: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="at least 1|must divide"):
        ops.AttentionShape(*sizes)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [True, False])
def test_linear_multiplies_and_adds_the_bias(
    kernels: ops.Kernels, rng: torch.Generator, dtype: torch.dtype, bias: bool
) -> None:
    x = torch.randn(5, 24, generator=rng).to(dtype)
    weight = (torch.randn(7, 24, generator=rng) / 5).to(dtype)
    offset = torch.randn(7, generator=rng).to(dtype)
    expected = x.double() @ weight.double().T + (offset.double() if bias else 0.0)
    packed = kernels.pack_linear(weight.clone(), offset.clone() if bias else None)
    assert (packed.out_features, packed.in_features) == (7, 24)
    close(kernels.linear(x, packed), expected, dtype)


def test_embedding_returns_rows_of_the_packed_weight(
    kernels: ops.Kernels, rng: torch.Generator
) -> None:
    weight = torch.randn(9, 6, generator=rng)
    ids = torch.tensor([8, 0, 3, 3])
    packed = kernels.pack_linear(weight.clone())
    torch.testing.assert_close(kernels.embedding(ids, packed), weight[ids], rtol=0, atol=0)


def test_pack_linear_refuses_what_is_not_a_matrix_and_a_bias_that_does_not_fit(
    kernels: ops.Kernels,
) -> None:
    with pytest.raises(ValueError, match="matrix"):
        kernels.pack_linear(torch.zeros(3))
    with pytest.raises(ValueError, match="does not fit"):
        kernels.pack_linear(torch.zeros(3, 4), torch.zeros(4))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5, 48), (5, 3, 16), (1, 1)])
def test_rms_norm_divides_by_the_root_mean_square(
    kernels: ops.Kernels, rng: torch.Generator, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    x = (3 * torch.randn(shape, generator=rng)).to(dtype)
    weight = torch.rand(shape[-1], generator=rng) + 0.5
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight
    close(kernels.rms_norm(x, weight, 1e-5), expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_rms_norm_returns_the_normed_sum_and_the_sum(
    kernels: ops.Kernels, rng: torch.Generator, dtype: torch.dtype
) -> None:
    x, residual = torch.randn(2, 5, 48, generator=rng).to(dtype).unbind()
    before = residual.clone()
    weight = torch.rand(48, generator=rng) + 0.5
    normed, total = kernels.add_rms_norm(x, residual, weight, 1e-6)
    torch.testing.assert_close(total, x + residual, rtol=0, atol=0)
    torch.testing.assert_close(normed, kernels.rms_norm(total, weight, 1e-6))
    torch.testing.assert_close(residual, before, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ops.ACTIVATIONS)
def test_gated_activation_takes_the_gate_first(
    kernels: ops.Kernels, rng: torch.Generator, dtype: torch.dtype, activation: str
) -> None:
    gate_up = torch.randn(5, 32, generator=rng).to(dtype)
    gate, up = gate_up.double().chunk(2, dim=-1)
    if activation == "silu":
        expected = gate / (1 + torch.exp(-gate)) * up
    else:
        inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
        expected = 0.5 * gate * (1 + torch.tanh(inner)) * up
    close(kernels.gated_activation(gate_up, activation), expected, dtype)


def test_gated_activation_refuses_an_unknown_name(kernels: ops.Kernels) -> None:
    with pytest.raises(ValueError, match="'relu'; known are silu, gelu_tanh"):
        kernels.gated_activation(torch.zeros(1, 2), "relu")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rotary_dim", [16, 12, 2])
def test_rotary_embedding_turns_pairs_and_leaves_the_rest(
    kernels: ops.Kernels, rng: torch.Generator, dtype: torch.dtype, rotary_dim: int
) -> None:
    q = torch.randn(6, 4, 16, generator=rng).to(dtype)
    k = torch.randn(6, 2, 16, generator=rng).to(dtype)
    positions = torch.tensor([0, 7, 3, 31, 8, 8])
    angles = torch.rand(32, rotary_dim // 2, generator=rng) * 6
    rotated = kernels.rotary_embedding(
        q, k, positions, torch.cat((angles.cos(), angles.sin()), dim=-1)
    )
    half = rotary_dim // 2
    for actual, x in zip(rotated, (q, k), strict=True):
        expected = x.double().clone()
        for row, position in enumerate(positions):
            turn = torch.polar(torch.ones(half).double(), angles[position].double())
            pairs = torch.complex(x[row, :, :half].double(), x[row, :, half:rotary_dim].double())
            turned = pairs * turn
            expected[row, :, :half], expected[row, :, half:rotary_dim] = turned.real, turned.imag
        close(actual, expected, dtype)


@pytest.mark.parametrize("block_size", [1, 4])
def test_store_kv_writes_its_slots_and_no_other(
    kernels: ops.Kernels, rng: torch.Generator, block_size: int
) -> None:
    k_cache, v_cache = torch.zeros(2, 12 // block_size, block_size, 2, 8).unbind()
    k, v = torch.randn(2, 3, 2, 8, generator=rng).unbind()
    slots = torch.tensor([11, 0, 5])
    kernels.store_kv(k, v, k_cache, v_cache, slots)
    for cache, rows in ((k_cache, k), (v_cache, v)):
        flat = cache.view(12, 2, 8)
        torch.testing.assert_close(flat[slots], rows, rtol=0, atol=0)
        others = [slot for slot in range(12) if slot not in slots.tolist()]
        assert not flat[others].any()


def test_store_kv_rounds_to_the_dtype_of_the_cache(kernels: ops.Kernels) -> None:
    cache = torch.zeros(1, 2, 1, 4, dtype=torch.bfloat16)
    k = torch.full((1, 1, 4), 1.001)
    kernels.store_kv(k, k, cache, cache.clone(), torch.tensor([1]))
    torch.testing.assert_close(cache[0, 1], k[0].bfloat16(), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_store_kv_in_8_bits_writes_rows_with_their_scales(
    kernels: ops.Kernels, rng: torch.Generator, dtype: torch.dtype
) -> None:
    caches = torch.zeros(2, 3, 4, 2, 12, dtype=torch.int8)
    k, v = torch.randn(2, 3, 2, 8, generator=rng).to(dtype).unbind()
    slots = torch.tensor([11, 0, 5])
    kernels.store_kv(k, v, caches[0], caches[1], slots)
    for cache, heads in zip(caches, (k, v), strict=True):
        rows = cache.view(12, 2, 12)
        assert torch.equal(rows[slots], to_rows(heads, torch.int8))
        assert int(rows.any(-1).any(-1).sum()) == 3
