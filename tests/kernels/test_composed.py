"""Fused ops against the plain ones that they stand for, for every implementation."""

from __future__ import annotations

import pytest
import torch

from ramet.kernels import ops


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def randn(rng: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=rng).bfloat16()


def test_add_linear_is_the_product_added_to_the_residual(
    kernels: ops.Kernels, rng: torch.Generator
) -> None:
    x, residual = randn(rng, 5, 24), randn(rng, 5, 40)
    before = residual.clone()
    weight = kernels.pack_linear(randn(rng, 40, 24), randn(rng, 40))
    total = kernels.add_linear(x, weight, residual)
    same(total, residual + kernels.linear(x, weight))
    same(residual, before)


@pytest.mark.parametrize("activation", ops.ACTIVATIONS)
def test_gated_linear_is_the_product_activated(
    kernels: ops.Kernels, rng: torch.Generator, activation: str
) -> None:
    x, weight, bias = randn(rng, 5, 24), randn(rng, 40, 24), randn(rng, 40)
    gate_up = kernels.linear(x, kernels.pack_linear(weight.clone(), bias.clone()))
    packed = kernels.pack_gated_linear(weight, bias)
    assert (packed.out_features, packed.in_features) == (40, 24)
    same(kernels.gated_linear(x, packed, activation), kernels.gated_activation(gate_up, activation))


def test_gated_linear_refuses_an_unknown_name_and_odd_rows(kernels: ops.Kernels) -> None:
    weight = kernels.pack_gated_linear(torch.ones(4, 3))
    with pytest.raises(ValueError, match="'relu'; known are silu, gelu_tanh"):
        kernels.gated_linear(torch.ones(1, 3), weight, "relu")
    with pytest.raises(ValueError, match="even number of rows"):
        kernels.pack_gated_linear(torch.ones(5, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_are_float32_and_bounded_by_a_softcap(
    kernels: ops.Kernels, rng: torch.Generator, dtype: torch.dtype
) -> None:
    x, weight = randn(rng, 5, 24).to(dtype), randn(rng, 70, 24).to(dtype)
    packed = kernels.pack_linear(weight)
    plain = kernels.linear(x, packed).float()
    same(kernels.logits(x, packed), plain)
    capped = kernels.logits(x, packed, 3.0)
    torch.testing.assert_close(capped, 3 * torch.tanh(plain / 3), rtol=1e-6, atol=1e-6)
    assert kernels.logits(x[:0], packed, 3.0).shape == (0, 70)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_scaled_embedding_is_rounded_once(
    kernels: ops.Kernels, rng: torch.Generator, dtype: torch.dtype
) -> None:
    weight, ids = randn(rng, 9, 21).to(dtype), torch.tensor([8, 0, 3, 3])
    packed = kernels.pack_linear(weight.clone())
    expected = (weight[ids].float() * 6.9375).to(dtype)
    same(kernels.embedding(ids, packed, 6.9375), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_taken_in_the_order_asked_for(
    kernels: ops.Kernels, rng: torch.Generator, dtype: torch.dtype
) -> None:
    x = randn(rng, 6, 10).to(dtype)
    for rows in ([4, 0, 4], [], [5]):
        taken = kernels.take_rows(x, torch.tensor(rows, dtype=torch.int64))
        same(taken, x[rows])
    with pytest.raises(IndexError):
        kernels.take_rows(x, torch.tensor([6]))


def test_rotary_store_kv_rotates_and_stores(kernels: ops.Kernels, rng: torch.Generator) -> None:
    q, k, v = randn(rng, 5, 8, 16).split_with_sizes([4, 2, 2], dim=1)
    positions, slots = torch.tensor([3, 0, 9, 1, 1]), torch.tensor([2, 11, 0, 7, 5])
    cos_sin = torch.randn(10, 16, generator=rng)
    fused = torch.zeros(2, 3, 4, 2, 16, dtype=torch.bfloat16)
    apart = fused.clone()
    turned = kernels.rotary_store_kv(q, k, v, positions, cos_sin, fused[0], fused[1], slots)
    expected_q, expected_k = kernels.rotary_embedding(q, k, positions, cos_sin)
    kernels.store_kv(expected_k, v, apart[0], apart[1], slots)
    same(turned, expected_q)
    same(fused, apart)
