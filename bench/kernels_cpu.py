"""Times of the native CPU kernels: the products of one step of SmolLM2-135M, and its attention.

    python -m ramet.bench.kernels_cpu [--isa amx] [--threads 2] [--only attention]

Weights are as many as the model has, and caches those of several layers, so that they come from memory
as in a real step. The figures are the best and the median of short runs.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable

import torch

from ramet.kernels.cpu.kernels import CpuKernels
from ramet.kernels.kv_rows import row_size
from ramet.kernels.ops import AttentionShape
from ramet.kernels.quantization import QuantizedWeight, quantize

NUM_LAYERS, HIDDEN, MLP, VOCAB = 30, 576, 1536, 49152
SHAPE = AttentionShape(num_heads=9, num_kv_heads=3, head_dim=64, block_size=16)
CACHE_BYTES = 256 << 20
ROWS = (1, 4, 16, 32, 64, 128, 512)
QUANTIZED_ROWS = (1, 8, 32, 512)
# (sequences, new tokens each, tokens of KV each, how many of them all sequences share)
STEPS = (
    (1, 1, 2000, 0),
    (32, 1, 200, 0),
    (16, 1, 1550, 0),
    (16, 1, 1550, 1504),
    (32, 1, 2000, 0),
    (64, 1, 128, 64),
    (64, 1, 4064, 4000),
    (1, 512, 512, 0),
    (1, 512, 2000, 0),
)


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--isa", help="instruction set (default: the best)")
    parser.add_argument("--threads", type=int, help="threads (default: physical cores)")
    parser.add_argument("--only", choices=("products", "attention"), help="one of the two parts")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    kernels = CpuKernels(isa=arguments.isa, num_threads=arguments.threads)
    print(f"{kernels.isa}, {kernels.num_threads} threads, bfloat16")
    for bits in (16, 8, 4) if arguments.only != "attention" else ():
        print(f"products with weights of {bits} bits")
        products(kernels, bits)
    if arguments.only != "products":
        print("attention over caches of 16 and of 8 bits")
        for shape in STEPS:
            attention(kernels, *shape)


def products(kernels: CpuKernels, bits: int) -> None:
    """The linear layers of a step, gate and up with their activation, and the head on up to 64 rows.

    `bits` of an element of the weights: 16, 8 or 4.
    """

    def weight(out_features: int, in_features: int) -> torch.Tensor | QuantizedWeight:
        dense = torch.randn(out_features, in_features).to(torch.bfloat16)
        return dense if bits == 16 else quantize(dense, bits)

    layers = [
        (
            kernels.pack_linear(weight(5 * HIDDEN // 3, HIDDEN)),
            kernels.pack_linear(weight(HIDDEN, HIDDEN)),
            kernels.pack_gated_linear(weight(2 * MLP, HIDDEN)),
            kernels.pack_linear(weight(HIDDEN, MLP)),
        )
        for _ in range(NUM_LAYERS)
    ]
    head = kernels.pack_linear(weight(VOCAB, HIDDEN))
    num_weights = sum(w.in_features * w.out_features for layer in layers for w in layer)
    num_bytes = sum(w.num_bytes for layer in layers for w in layer)
    for num_rows in ROWS if bits == 16 else QUANTIZED_ROWS:
        x = torch.randn(num_rows, HIDDEN).to(torch.bfloat16)

        def step(x: torch.Tensor = x) -> None:
            for qkv, output, gate_up, down in layers:
                kernels.linear(x, qkv)
                kernels.linear(x, output)
                kernels.linear(kernels.gated_linear(x, gate_up, "silu"), down)

        def logits(x: torch.Tensor = x[:64]) -> None:
            kernels.linear(x, head)

        best, median = measure(step, 7)
        head_best, head_median = measure(logits, 7)
        print(
            f"{num_rows:4} rows: layers {best * 1e3:7.2f} ms (median {median * 1e3:7.2f}), "
            f"{num_bytes / best / 1e9:5.1f} GB/s, "
            f"{2 * num_weights * num_rows / best / 1e12:5.2f} TFLOP/s; "
            f"head {head_best * 1e3:5.2f} ms (median {head_median * 1e3:5.2f})"
        )


def attention(
    kernels: CpuKernels, num_seqs: int, num_new: int, kv_len: int, num_shared: int
) -> None:
    """Attention of all layers of a step."""
    times = []
    for dtype in (torch.bfloat16, torch.int8):
        tables, keys, values = caches(kernels, num_seqs, kv_len, num_shared, dtype)
        q = torch.randn(num_seqs * num_new, SHAPE.num_heads, SHAPE.head_dim).to(torch.bfloat16)
        plan = kernels.plan_attention(
            SHAPE,
            cu_seqlens=torch.arange(num_seqs + 1, dtype=torch.int32) * num_new,
            kv_lens=torch.full((num_seqs,), kv_len, dtype=torch.int32),
            block_tables=tables,
        )
        layers = itertools.cycle(range(keys.shape[0]))

        def layer() -> None:
            i = next(layers)  # noqa: B023
            kernels.attention(q, keys[i], values[i], plan, scale=0.125)  # noqa: B023

        best, median = (seconds * NUM_LAYERS * 1e3 for seconds in measure(layer, 25))
        times.append(f"{best:7.2f} ms (median {median:7.2f})")
    print(
        f"{num_seqs:3} sequences x {num_new:3} new of {kv_len:4}, {num_shared:4} shared: "
        f"{NUM_LAYERS} layers {', '.join(times)}"
    )


def caches(
    kernels: CpuKernels, num_seqs: int, kv_len: int, num_shared: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Block tables over shuffled blocks, and some layers' keys and values, every block in use."""
    num_blocks = -(-kv_len // SHAPE.block_size)
    num_shared_blocks = num_shared // SHAPE.block_size
    ids = torch.randperm(num_shared_blocks + num_seqs * (num_blocks - num_shared_blocks))
    shared, own = ids.to(torch.int32).tensor_split([num_shared_blocks])
    tables = torch.cat((shared.expand(num_seqs, -1), own.view(num_seqs, -1)), dim=1)
    heads = torch.randn(2, len(ids) * SHAPE.block_size, SHAPE.num_kv_heads, SHAPE.head_dim)
    width = row_size(SHAPE.head_dim, dtype)
    layer = torch.zeros(2, len(ids), SHAPE.block_size, SHAPE.num_kv_heads, width, dtype=dtype)
    kernels.store_kv(heads[0], heads[1], layer[0], layer[1], torch.arange(heads.shape[1]))
    num_layers = min(NUM_LAYERS, -(-CACHE_BYTES // (2 * layer.numel())))
    shape = (num_layers, *layer.shape[1:])
    return tables, layer[0].expand(shape).contiguous(), layer[1].expand(shape).contiguous()


def measure(run: Callable[[], None], times: int) -> tuple[float, float]:
    """Best and median seconds of a call, after one that is not counted."""
    run()
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    seconds.sort()
    return seconds[0], seconds[times // 2]


if __name__ == "__main__":
    main()
