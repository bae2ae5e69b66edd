"""How long a new constraint takes beside others that never end to compile, and what streams feel of it.

    python -m ramet.bench.constraints [MODEL] [--port 8098] [--runs 3]

A server of its own decodes 8 streams. For comparison 32 requests without a constraint come one after the
other, and 32 with cheap constraints that it has not seen before. Then six come at once that take seconds to
compile ("bombs", which end as errors: 400, or 503 where their turn never came), and right behind them eight
cheap ones again; later six bombs whose patterns count no further than those of people do. Shown are the time
to the first token of the cheap ones, and the time between tokens of the streams, alone and beside each: any
request makes its steps longer, which is what the cheap ones have to be compared with.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from itertools import count
from typing import Any

import aiohttp

from .overhead import model_name, server

NUM_STREAMS, STREAM_LEN = 8, 700
NUM_BOMBS, NUM_CHEAP, NUM_COMPARED = 6, 8, 32
QUIET_SECONDS = 3.0


class Load:
    """What one run sends, and the times that it sees."""

    def __init__(self, session: aiohttp.ClientSession, url: str, model: str) -> None:
        self._session, self._url, self._model = session, url, model
        self._numbers = count(time.time_ns() % 10**6)
        self.tokens: list[list[float]] = []

    async def stream(self) -> None:
        """Decode one answer after another, noting when each token comes."""
        while True:
            await self._answer()

    async def _answer(self) -> None:
        times: list[float] = []
        self.tokens.append(times)
        body = self._body(max_tokens=STREAM_LEN, stream=True)
        async with self._session.post(f"{self._url}/v1/completions", json=body) as response:
            response.raise_for_status()
            async for line in response.content:
                if line.startswith(b"data: {"):
                    times.append(time.perf_counter())

    async def bomb(self, *, counts_far: bool = True) -> float:
        """Send what takes seconds to compile; returns the seconds until it was refused."""
        number = next(self._numbers)
        end = f"c{{{number}}}" if counts_far else f"c{number}"
        parts = [{"type": "string", "pattern": f"(a|b).{{{i}}}{end}"} for i in range(1, 40)]
        seconds, status = await self._one(guided_json={"allOf": parts})
        if status not in (400, 503):
            raise RuntimeError(f"a bomb was answered with {status}")
        return seconds

    async def cheap(self) -> float:
        """Send a small schema that is new; returns the seconds until its first token."""
        name = f"field_{next(self._numbers)}"
        schema = {"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]}
        return (await self._one(guided_json=schema))[0]

    async def plain(self) -> float:
        """The same without a constraint."""
        return (await self._one())[0]

    async def _one(self, **fields: Any) -> tuple[float, int]:
        body = self._body(max_tokens=1, **fields)
        began = time.perf_counter()
        async with self._session.post(f"{self._url}/v1/completions", json=body) as response:
            await response.read()
            return time.perf_counter() - began, response.status

    def _body(self, **fields: Any) -> dict[str, Any]:
        prompt = f"Request {next(self._numbers)}: tell me about the sea and its weather."
        return {
            "model": self._model,
            "prompt": prompt,
            "temperature": 0,
            "ignore_eos": True,
        } | fields


async def run(url: str) -> dict[str, float]:
    """One run; seconds by name."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        load = Load(session, url, await model_name(url))
        streams = [asyncio.create_task(load.stream()) for _ in range(NUM_STREAMS)]
        await asyncio.sleep(1)
        quiet_from = time.perf_counter()
        await asyncio.sleep(QUIET_SECONDS)
        quiet_until = time.perf_counter()
        plain = [await load.plain() for _ in range(NUM_COMPARED)]
        plain_until = time.perf_counter()
        before = [await load.cheap() for _ in range(NUM_COMPARED)]
        before_until = time.perf_counter()
        await asyncio.sleep(0.5)
        began = time.perf_counter()
        bombs = [asyncio.create_task(load.bomb()) for _ in range(NUM_BOMBS)]
        await asyncio.sleep(0.02)
        cheap = [await load.cheap() for _ in range(NUM_CHEAP)]
        cheap_until = time.perf_counter()
        bomb_seconds = await asyncio.gather(*bombs)
        ended = time.perf_counter()
        near = [asyncio.create_task(load.bomb(counts_far=False)) for _ in range(NUM_BOMBS)]
        await asyncio.sleep(2)
        near_until = time.perf_counter()
        for task in (*streams, *near):
            task.cancel()
        await asyncio.gather(*streams, *near, return_exceptions=True)
    return {
        "cheap without bombs, median": statistics.median(before),
        "first cheap": cheap[0],
        "cheap, median": statistics.median(cheap),
        "cheap, longest": max(cheap),
        "all cheap": cheap_until - began,
        "without constraint, median": statistics.median(plain),
        "last bomb refused": max(bomb_seconds),
        **_felt(load, "alone", quiet_from, quiet_until),
        **_felt(load, "beside plain requests", quiet_until, plain_until),
        **_felt(load, "beside cheap ones", plain_until, before_until),
        **_felt(load, "beside both", began, cheap_until),
        **_felt(load, "beside bombs", cheap_until, ended),
        **_felt(load, "2 s after other bombs", ended, near_until),
    }


def _felt(load: Load, company: str, first: float, last: float) -> dict[str, float]:
    values = gaps(load.tokens, first, last)
    return {
        f"tokens {company}, median": statistics.median(values),
        f"tokens {company}, p99": percentile(values, 99),
    }


def gaps(tokens: list[list[float]], first: float, last: float) -> list[float]:
    """Seconds between tokens of one stream, within a time."""
    return [
        after - before
        for times in tokens
        for before, after in zip(times, times[1:], strict=False)
        if first <= before and after <= last
    ]


def percentile(values: list[float], percent: int) -> float:
    """Such that so many percent are not above it."""
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)]


def main() -> None:
    """Print medians over the runs, and every run as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2-135m-instruct", metavar="MODEL")
    parser.add_argument("--port", type=int, default=8098, help="of the server to be started")
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    with server(arguments.model, arguments.port) as url:
        runs = [asyncio.run(run(url)) for _ in range(arguments.runs)]
    for name in runs[0]:
        values = [1e3 * seconds[name] for seconds in runs]
        print(f"{name:<38}{statistics.median(values):8.1f} ms   ", end="")
        print(json.dumps([round(value, 1) for value in values]))


if __name__ == "__main__":
    main()
