"""What serving adds to the engine, and what sharing saves.

    python -m ramet.bench.overhead [MODEL] [--port 8099] [--runs 3]

    throughput      32 prompts of 64 tokens, and one, 128 new each: in this process, over HTTP, streamed
    cached prompt   time to first token of 2,000 tokens that are all cached, in decode steps
    fork            a decode step of 64 samples over a prompt of 64 tokens and of 4,000 tokens

The three ways alternate in each run; one engine computes while the other sleeps. Medians are shown. The
client takes what it is sent and does not look at it, since it has the same cores as the server.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import aiohttp
import uvloop

from ramet.runtime import Engine

from .protocol import Prompt, Target
from .text import documentation_words

NUMS_STREAMS, PROMPT_LEN, OUTPUT_LEN = (32, 1), 64, 128
CACHED_LEN, FORK_LENS, NUM_SAMPLES = 2000, (64, 4000), 64
START_SECONDS = 120


class Texts:
    """Token ids of running text, new ones at every call."""

    def __init__(self, engine: Engine) -> None:
        self._ids = engine.tokenizer.encode(
            " ".join(documentation_words()), add_special_tokens=False
        )
        self._at = 0

    def take(self, num_tokens: int) -> list[int]:
        """The next `num_tokens` tokens of the text, which starts again after its end."""
        if self._at + num_tokens > len(self._ids):
            # Not where it started before, or the same prompts would come again.
            self._at = self._at % 37 + 1
        self._at += num_tokens
        return self._ids[self._at - num_tokens : self._at]


def main() -> None:
    """Print the three tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2-135m-instruct", metavar="MODEL")
    parser.add_argument("--port", type=int, default=8099, help="of the server to be started")
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    with Engine(arguments.model, kv_cache_memory=2 << 30) as engine:
        texts = Texts(engine)
        with server(arguments.model, arguments.port) as url:
            for num_streams in NUMS_STREAMS:
                uvloop.run(throughput(engine, url, texts, num_streams, arguments.runs))
        cached_prompt(engine, texts, arguments.runs)
        fork(engine, texts, arguments.runs)


@contextmanager
def server(model: str, port: int) -> Iterator[str]:
    """A server of the same model on loopback; ended afterwards.

    Raises:
        RuntimeError: it ended, or was not ready in time.
    """
    command = [sys.executable, "-m", "ramet", "serve", model, "--port", str(port)]
    command += ["--kv-cache-memory", "2GiB"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until_ready(process, url)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=30)


def wait_until_ready(process: subprocess.Popen[bytes], url: str) -> None:
    """Return once the server takes requests."""
    for _ in range(START_SECONDS * 10):
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}")
        try:
            urllib.request.urlopen(f"{url}/ready", timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise RuntimeError(f"the server was not ready within {START_SECONDS} s")


async def throughput(engine: Engine, url: str, texts: Texts, num_streams: int, runs: int) -> None:
    """Output tokens per second of the three ways."""
    target = Target(url=url, model=await model_name(url))
    ways: dict[str, Callable[[list[list[int]]], Awaitable[None]]] = {
        "in this process": lambda prompts: in_process(engine, prompts),
        "over HTTP": lambda prompts: over_http(target, prompts, stream=False),
        "over HTTP, streamed": lambda prompts: over_http(target, prompts, stream=True),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for run in range(-1, runs):
        for name, way in ways.items():
            prompts = [texts.take(PROMPT_LEN) for _ in range(num_streams)]
            began = time.perf_counter()
            await way(prompts)
            if run >= 0:
                seconds = time.perf_counter() - began
                rates[name].append(num_streams * OUTPUT_LEN / seconds)
    base = statistics.median(rates["in this process"])
    print(f"{num_streams} streams, {PROMPT_LEN} -> {OUTPUT_LEN} tokens")
    for name, values in rates.items():
        median = statistics.median(values)
        print(f"  {name:<22} {median:8.0f} tok/s {median / base:6.2f}")


async def in_process(engine: Engine, prompts: list[list[int]]) -> None:
    """All prompts at once through the library."""
    await engine.agenerate(
        prompts, temperature=0, max_tokens=OUTPUT_LEN, min_tokens=OUTPUT_LEN, ignore_eos=True
    )


async def over_http(target: Target, prompts: list[list[int]], *, stream: bool) -> None:
    """All prompts at once, a connection each."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def send(prompt_ids: list[int]) -> None:
            body = target.body(Prompt(text="", max_tokens=OUTPUT_LEN)) | {"prompt": prompt_ids}
            if not stream:
                del body["stream"], body["stream_options"]
            async with session.post(f"{target.url}/v1/completions", json=body) as response:
                response.raise_for_status()
                async for _ in response.content.iter_any():
                    pass

        await asyncio.gather(*map(send, prompts))


async def model_name(url: str) -> str:
    """The model that the server serves."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/v1/models") as response:
        return str((await response.json())["data"][0]["id"])


def cached_prompt(engine: Engine, texts: Texts, runs: int) -> None:
    """Time to first token of a prompt that was just computed, beside the decode steps after it."""
    ratios, firsts, steps = [], [], []
    for _ in range(runs):
        prompt = texts.take(CACHED_LEN)
        engine.generate(prompt, temperature=0, max_tokens=1)
        began = time.perf_counter()
        times = [
            time.perf_counter()
            for _ in engine.stream(prompt, temperature=0, max_tokens=33, ignore_eos=True)
        ]
        firsts.append(times[0] - began)
        steps.append(statistics.median(b - a for a, b in pairwise(times)))
        ratios.append(firsts[-1] / steps[-1])
    print(f"prompt of {CACHED_LEN} tokens, cached")
    print(f"  first token {1e3 * statistics.median(firsts):.1f} ms", end=", ")
    print(f"decode step {1e3 * statistics.median(steps):.1f} ms", end=", ")
    print(f"ratio {statistics.median(ratios):.2f}")


def fork(engine: Engine, texts: Texts, runs: int) -> None:
    """A decode step of many samples, over a short and over a long prompt."""
    seconds: dict[int, list[float]] = {length: [] for length in FORK_LENS}
    for _ in range(runs):
        for length in FORK_LENS:
            seconds[length].append(decode_step(engine, texts.take(length)))
    print(f"decode step of {NUM_SAMPLES} samples")
    base = statistics.median(seconds[FORK_LENS[0]])
    for length, values in seconds.items():
        median = statistics.median(values)
        print(f"  prompt of {length:5} tokens {1e3 * median:8.1f} ms {median / base:6.2f}")


def decode_step(engine: Engine, prompt: list[int], num_steps: int = 32) -> float:
    """Seconds of one step, from the difference of a long and a short generation."""

    def generate(num_tokens: int) -> float:
        began = time.perf_counter()
        engine.generate(
            prompt, n=NUM_SAMPLES, temperature=0.8, max_tokens=num_tokens, ignore_eos=True
        )
        return time.perf_counter() - began

    generate(1)  # computes the prompt
    short = generate(2)
    return (generate(2 + num_steps) - short) / num_steps


if __name__ == "__main__":
    main()
