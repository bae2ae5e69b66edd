"""What a decode step takes over long contexts, for each precision of the KV cache.

    python -m ramet.bench.decode [MODEL] [--sequences 32] [--context 2000] [--kv bfloat16 int8]

Prompts share nothing. They are computed once and then found in the cache, so that the time of many steps
less that of one leaves steps alone. All engines are loaded at once and take turns: what disturbs the machine
disturbs all of them.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from contextlib import ExitStack

from ramet.runtime import Engine

NUM_STEPS = 16
# Memory of a cache, taken as far as it is used.
KV_CACHE_BYTES = 4 << 30


def main() -> None:
    """Print the time of a step, and what a token takes, for every precision."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2-135m-instruct", metavar="MODEL")
    parser.add_argument("--sequences", type=int, default=32, help="that decode at once")
    parser.add_argument("--context", type=int, default=2000, help="tokens of each before them")
    parser.add_argument("--kv", nargs="+", default=["bfloat16", "int8"], metavar="DTYPE")
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        engines = {
            dtype: stack.enter_context(
                Engine(
                    arguments.model,
                    kv_cache_dtype=dtype,
                    kv_cache_memory=KV_CACHE_BYTES,
                    kernels=arguments.kernels,
                    max_num_seqs=arguments.sequences,
                    max_model_len=arguments.context + NUM_STEPS + 1,
                )
            )
            for dtype in arguments.kv
        }
        steps = measure(engines, arguments.sequences, arguments.context, arguments.runs)
        print(f"{arguments.sequences} sequences at {arguments.context} tokens")
        for dtype, engine in engines.items():
            info = engine.info
            kib = info.kv_cache_bytes / (info.num_blocks * info.block_size) / 1024
            median, best = statistics.median(steps[dtype]) * 1e3, min(steps[dtype]) * 1e3
            print(f"{dtype:9} {median:7.1f} ms a step (best {best:.1f}), {kib:.2f} KiB a token")


def measure(
    engines: dict[str, Engine], num_seqs: int, context: int, runs: int
) -> dict[str, list[float]]:
    """Seconds of a step in each run, by the engines' names."""
    vocab_size = next(iter(engines.values())).info.vocab_size
    draw = random.Random(1)
    prompts = [draw.choices(range(vocab_size), k=context) for _ in range(num_seqs)]
    for engine in engines.values():
        run(engine, prompts, 1)
    steps: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(runs):
        for name, engine in engines.items():
            one = run(engine, prompts, 1)
            steps[name].append((run(engine, prompts, 1 + NUM_STEPS) - one) / NUM_STEPS)
    return steps


def run(engine: Engine, prompts: list[list[int]], num_tokens: int) -> float:
    """Seconds in which every prompt gets that many tokens."""
    began = time.perf_counter()
    engine.generate(prompts, temperature=0, max_tokens=num_tokens, ignore_eos=True)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
