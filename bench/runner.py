"""Runs a workload: draws its text, then sends it, and keeps every result.

Each kind is a small asyncio program over `send`. All text is drawn before the clock starts,
except that conversations and trees also contain the server's own answers.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

from .client import Client
from .protocol import Prompt, Result
from .text import TextSource
from .workloads import Workload

_SAMPLE_SEED = 1234


class Run:
    """One run of a workload: draws its text, then sends it.

    Args:
        workload: what to send.
        client: where to.
        text: where the text comes from.
        seed: names the run; equal seeds send equal text, different ones share nothing.
    """

    def __init__(self, workload: Workload, client: Client, text: TextSource, seed: str) -> None:
        self._workload = workload
        self._client = client
        self._text = text
        self._seed = seed
        limit = workload.concurrency
        self._slots = asyncio.Semaphore(limit) if limit else None
        self._results: list[Result] = []

    async def measure(self) -> tuple[list[Result], float]:
        """Run it once. Returns every result, failures included, and the seconds it took."""
        prepare = {
            "independent": self._requests,
            "shared-prefix": self._requests,
            "conversations": self._conversations,
            "fork": self._fork,
            "tree": self._tree,
        }[self._workload.kind]
        start = await prepare()
        began = time.perf_counter()
        await start()
        return self._results, time.perf_counter() - began

    async def _send(
        self, text: str, *, due: float | None = None, num_samples: int = 1, sample: int = 0
    ) -> Result:
        load = self._workload
        prompt = Prompt(
            text=text,
            max_tokens=load.output_len,
            num_samples=num_samples,
            temperature=load.temperature,
            seed=_SAMPLE_SEED + sample if load.temperature > 0 else None,
            due=due,
        )
        if self._slots is None:
            result = await self._client.send(prompt)
        else:
            async with self._slots:
                result = await self._client.send(prompt)
        self._results.append(result)
        return result

    async def _piece(self, num_tokens: int, *key: object) -> str:
        name = ":".join(map(str, (self._workload.kind, self._seed, *key)))
        return await self._text.piece(num_tokens, name)

    async def _requests(self) -> Callable[[], Awaitable[None]]:
        load = self._workload
        head = ""
        if load.shared_len:
            head = await self._piece(load.shared_len, "shared") + "\n\nQuestion: "
        texts = [head + await self._piece(load.prompt_len, i) for i in range(load.num_requests)]
        offsets = self._arrivals()

        async def at(text: str, offset: float, began: float) -> None:
            due = began + offset
            await sleep_until(due)
            await self._send(text, due=due)

        async def start() -> None:
            if offsets is None:
                await asyncio.gather(*map(self._send, texts))
            else:
                began = time.perf_counter()
                await asyncio.gather(
                    *(at(text, offset, began) for text, offset in zip(texts, offsets, strict=True))
                )

        return start

    def _arrivals(self) -> list[float] | None:
        rate = self._workload.request_rate
        if rate is None:
            return None
        rng = random.Random(f"arrivals:{self._seed}")
        now, offsets = 0.0, []
        for _ in range(self._workload.num_requests):
            offsets.append(now)
            now += rng.expovariate(rate)
        return offsets

    async def _conversations(self) -> Callable[[], Awaitable[None]]:
        load = self._workload
        head = await self._piece(load.shared_len, "shared") if load.shared_len else ""
        turns = [
            [await self._piece(load.prompt_len, i, turn) for turn in range(load.num_turns)]
            for i in range(load.num_requests)
        ]

        async def talk(questions: list[str]) -> None:
            history = head
            for question in questions:
                history += f"\nUser: {question}\nAssistant:"
                result = await self._send(history)
                if result.error is not None:
                    return
                history += result.texts[0]

        async def start() -> None:
            await asyncio.gather(*map(talk, turns))

        return start

    async def _fork(self) -> Callable[[], Awaitable[None]]:
        load = self._workload
        texts = [await self._piece(load.prompt_len, i) for i in range(load.num_requests)]

        async def start() -> None:
            if load.separate_samples:
                pairs = [(text, sample) for text in texts for sample in range(load.num_samples)]
                await asyncio.gather(*(self._send(text, sample=sample) for text, sample in pairs))
            else:
                samples = load.num_samples
                await asyncio.gather(*(self._send(text, num_samples=samples) for text in texts))

        return start

    async def _tree(self) -> Callable[[], Awaitable[None]]:
        load = self._workload
        root = await self._piece(load.shared_len, "shared") if load.shared_len else ""
        thoughts: dict[tuple[int, ...], str] = {}
        level: list[tuple[int, ...]] = [()]
        for _ in range(load.depth):
            level = [(*path, child) for path in level for child in range(load.branching)]
            for path in level:
                thoughts[path] = await self._piece(load.prompt_len, *path)

        async def grow(context: str, path: tuple[int, ...]) -> None:
            if len(path) == load.depth:
                return
            children = [(*path, child) for child in range(load.branching)]
            await asyncio.gather(*(think(context, child) for child in children))

        async def think(context: str, path: tuple[int, ...]) -> None:
            text = f"{context}\n{thoughts[path]}"
            result = await self._send(text)
            if result.error is None:
                await grow(text + result.texts[0], path)

        async def start() -> None:
            await grow(root, ())

        return start


async def sleep_until(moment: float) -> None:
    """Wait until `time.perf_counter()` reaches `moment`; return at once if it has."""
    delay = moment - time.perf_counter()
    if delay > 0:
        await asyncio.sleep(delay)
