"""The promises of the README, kept by a real server with the real model."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

pytestmark = pytest.mark.real_model

Messages = list[Any]


def ask(client: openai.OpenAI, messages: Messages, **options: Any) -> Any:
    return client.chat.completions.create(
        model="smollm2", messages=messages, temperature=0, **{"max_tokens": 32, **options}
    )


def user(text: str) -> Messages:
    return [{"role": "user", "content": text}]


def test_the_capital_of_france_is_paris(server: Any) -> None:
    answer = ask(server.client(), user("What is the capital of France?"))
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    completion = server.client().completions.create(
        model="smollm2", prompt="The capital of France is", max_tokens=3, temperature=0
    )
    assert completion.choices[0].text.startswith(" Paris")


def test_a_stream_gives_the_text_of_the_whole_answer(server: Any) -> None:
    client = server.client()
    question = user("Write one sentence about the sea, with an emoji.")
    whole = ask(client, question, max_tokens=48)
    stream = ask(
        client, question, max_tokens=48, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_a_conversation_computes_only_what_is_new_to_the_token(server: Any) -> None:
    client = server.client()
    messages: Messages = [{"role": "system", "content": f"You are a poet. {time.time_ns()}"}]
    reusable = 0
    for turn, question in enumerate(("Name a colour.", "Name another.", "And one more?")):
        messages = [*messages, *user(question)]
        answer = ask(client, messages, max_tokens=24)
        cached = answer.usage.prompt_tokens_details.cached_tokens
        if turn:
            assert cached == reusable
        messages = [
            *messages,
            {"role": "assistant", "content": answer.choices[0].message.content},
        ]
        # What the next prompt repeats: this one and the reply. Of the reply the end token was
        # sampled, but never run, so there is no KV of it to be found.
        reusable = answer.usage.prompt_tokens + answer.usage.completion_tokens - 1


def test_samples_share_the_prompt_and_differ(server: Any) -> None:
    client = server.client()
    before = server.metric("ramet_computed_tokens_total")
    answer = client.chat.completions.create(
        model="smollm2",
        messages=user("Tell me a very short story. " * 20 + str(time.time_ns())),
        n=4,
        max_tokens=8,
        temperature=1.0,
        seed=11,
    )
    assert [c.index for c in answer.choices] == [0, 1, 2, 3]
    assert len({c.message.content for c in answer.choices}) == 4
    computed = server.metric("ramet_computed_tokens_total") - before
    assert computed <= answer.usage.prompt_tokens + 3 * 16 + 4 * 8


def test_many_clients_with_secrets_hear_nothing_of_each_other(start: Any, smollm2: Path) -> None:
    """Shared and private prefixes under a KV cache so small that eviction and preemption happen."""
    tight = start(
        *(str(smollm2), "--served-model-name", "smollm2", "--max-model-len", "512"),
        *("--kv-cache-memory", str(1056 * 46080), "--max-num-seqs", "16"),
    )
    markers = [f"{word}{1000 + 37 * i}" for i, word in enumerate(SECRETS)]

    def prompt(marker: str) -> Messages:
        shared = "You keep the secret word of one user and repeat it when asked. " * 4
        return [
            {"role": "system", "content": shared},
            *user(f"My secret word is {marker}. " * 8 + "Repeat my secret word many times."),
        ]

    async def everybody(rounds: int) -> list[list[str]]:
        async with tight.async_client() as client:

            async def one(marker: str) -> str:
                answer = await client.chat.completions.create(
                    model="smollm2",
                    messages=prompt(marker),
                    temperature=0,
                    max_tokens=64,
                    extra_body={"ignore_eos": True},
                )
                return answer.choices[0].message.content or ""

            return [list(await asyncio.gather(*map(one, markers))) for _ in range(rounds)]

    answers = asyncio.run(everybody(2))
    assert tight.metric("ramet_preemptions_total") > 0, "the KV cache was not tight enough"
    assert tight.metric("ramet_evicted_blocks_total") > 0
    for texts in answers:
        for own, text in zip(markers, texts, strict=True):
            assert not [m for m in markers if m != own and m in text]
    told = sum(own in text for own, text in zip(markers, answers[0], strict=True))
    assert told >= len(markers) // 2, "the test proves nothing unless the secrets are told"
    tight.stop()


def test_a_client_that_leaves_stops_its_request(server: Any) -> None:
    client = server.client()
    endless: dict[str, Any] = {"max_tokens": 4000, "extra_body": {"ignore_eos": True}}
    for stream in (True, False):
        before = server.metric("ramet_aborts_total")
        if stream:
            events = ask(client, user("Count to one thousand."), stream=True, **endless)
            next(iter(events))
            events.close()
        else:
            with pytest.raises(openai.APITimeoutError):
                ask(client, user("Count to ten thousand."), timeout=1.5, **endless)
        deadline = time.monotonic() + 10
        while server.metric("ramet_aborts_total") == before or server.metric(
            "ramet_requests_running"
        ):
            assert time.monotonic() < deadline, "the request still runs"
            time.sleep(0.05)


def test_health_answers_while_the_engine_computes(server: Any) -> None:
    client = server.client()
    events = ask(client, user("Go on. " * 1500), max_tokens=2, stream=True)
    for _ in range(5):
        assert httpx.get(f"{server.url}/health", timeout=5).status_code == 200
    assert list(events)


def test_sigterm_lets_running_requests_finish(start: Any, smollm2: Path) -> None:
    server = start(str(smollm2), "--kv-cache-memory", "512MiB", "--served-model-name", "smollm2")
    stream = ask(
        server.client(),
        user("Count to one hundred."),
        max_tokens=60,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    first = next(iter(stream))
    os.kill(server.process.pid, signal.SIGTERM)
    deadline = time.monotonic() + 10
    while httpx.get(f"{server.url}/ready").status_code != 503:
        assert time.monotonic() < deadline
    with pytest.raises(openai.InternalServerError) as refused:
        ask(server.client(), user("Hello"))
    assert refused.value.status_code == 503
    rest = list(stream)
    assert first.choices and rest[-1].choices[0].finish_reason == "length"
    assert server.process.wait(60) == 0


def test_the_server_outlives_its_engine(start: Any, smollm2: Path) -> None:
    server = start(str(smollm2), "--kv-cache-memory", "512MiB", "--served-model-name", "smollm2")
    stream = ask(
        server.client(),
        user("Count to one thousand."),
        max_tokens=4000,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    next(iter(stream))
    (engine,) = children(server.process.pid)
    os.kill(engine, signal.SIGKILL)
    with pytest.raises(openai.APIError):
        list(stream)
    deadline = time.monotonic() + 120
    while httpx.get(f"{server.url}/ready").status_code != 200:
        assert time.monotonic() < deadline, "the engine did not come back"
        time.sleep(0.2)
    assert (
        "Paris"
        in ask(server.client(), user("What is the capital of France?")).choices[0].message.content
    )
    assert children(server.process.pid) != [engine]
    assert server.stop() == 0


def children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


SECRETS = (
    "ZEBRA LANTERN COMET WALNUT HARBOR FALCON MARBLE TULIP "
    "GRANITE OYSTER VIOLET CANYON PEPPER MEADOW ANCHOR SADDLE"
).split()
