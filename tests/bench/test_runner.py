"""Each workload sends what its numbers say, and failures are results."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ramet.bench.client import Client, first_model, open_session, server_token_counter
from ramet.bench.protocol import Result, ServerError, Target
from ramet.bench.runner import Run
from ramet.bench.text import TextSource
from ramet.bench.workloads import PRESETS, Workload, num_expected

if TYPE_CHECKING:
    from .conftest import FakeServer


async def measure(
    server: FakeServer, load: Workload, *, seed: str = "0", endpoint: str = "completions"
) -> list[Result]:
    """Run a workload once against the fake server."""
    target = Target(url=server.url, model="fake-model", endpoint=endpoint)
    async with open_session(None) as session:
        count = await server_token_counter(session, target)
        assert count is not None
        client = Client(session, target, timeout=20)
        results, wall = await Run(load, client, TextSource(count), seed).measure()
    assert wall > 0
    return results


def prompts(server: FakeServer) -> list[str]:
    return [body["prompt"] for body in server.bodies]


def small(name: str) -> Workload:
    """A preset, its lengths cut so that a run takes milliseconds."""
    load = PRESETS[name]
    return replace(load, output_len=min(load.output_len, 3), shared_len=min(load.shared_len, 40))


@pytest.mark.parametrize("name", sorted(PRESETS))
async def test_preset_sends_as_many_requests_as_it_says(server: FakeServer, name: str) -> None:
    load = small(name)
    results = await measure(server, load)
    assert [result.error for result in results] == [None] * num_expected(load)
    assert {result.num_output_tokens for result in results} == {load.output_len * load.num_samples}
    assert all(result.num_cached_tokens == result.num_prompt_tokens - 1 for result in results)


async def test_independent_prompts_share_nothing_and_have_their_length(server: FakeServer) -> None:
    load = Workload(kind="independent", num_requests=6, prompt_len=20, output_len=1)
    results = await measure(server, load)
    assert len(set(prompts(server))) == 6
    assert {result.num_prompt_tokens for result in results} == {20}


async def test_shared_prefix_is_the_same_for_all(server: FakeServer) -> None:
    load = Workload(kind="shared-prefix", num_requests=4, shared_len=50, prompt_len=5, output_len=1)
    await measure(server, load)
    heads = {text.split("\n\nQuestion: ")[0] for text in prompts(server)}
    assert len(heads) == 1
    assert len(set(prompts(server))) == 4


async def test_conversations_repeat_the_history_with_the_servers_answers(
    server: FakeServer,
) -> None:
    load = Workload(
        kind="conversations", num_requests=1, num_turns=3, shared_len=9, prompt_len=5, output_len=2
    )
    await measure(server, load)
    first, second, third = prompts(server)
    assert second.startswith(first + "w0 w1 \nUser: ")
    assert third.startswith(second + "w0 w1 \nUser: ")


async def test_fork_asks_for_samples_at_once_or_apart(server: FakeServer) -> None:
    load = Workload(kind="fork", prompt_len=9, output_len=1, num_samples=4, temperature=0.8)
    await measure(server, load)
    assert [body["n"] for body in server.bodies] == [4]
    server.bodies.clear()
    apart = replace(load, separate_samples=True)
    assert len(await measure(server, apart)) == num_expected(apart) == 4
    assert len(set(prompts(server))) == 1
    assert len({body["seed"] for body in server.bodies}) == 4


async def test_tree_extends_every_answer(server: FakeServer) -> None:
    load = Workload(kind="tree", shared_len=9, prompt_len=3, output_len=1, branching=2, depth=2)
    await measure(server, load)
    texts = prompts(server)
    roots = [text for text in texts if "w0" not in text]
    assert len(roots) == 2
    for root in roots:
        assert sum(text.startswith(root + "w0 \n") for text in texts) == 2


async def test_concurrency_is_a_bound(server: FakeServer) -> None:
    server.delay = 0.01
    load = Workload(kind="independent", num_requests=9, prompt_len=5, output_len=2, concurrency=3)
    await measure(server, load)
    assert server.most_in_flight == 3


async def test_poisson_arrivals_take_their_time(server: FakeServer) -> None:
    load = Workload(
        kind="independent", num_requests=10, prompt_len=5, output_len=1, request_rate=50.0
    )
    began = time.perf_counter()
    await measure(server, load)
    assert time.perf_counter() - began > 0.05


async def test_waiting_in_the_client_counts_when_arrivals_are_timed(server: FakeServer) -> None:
    server.delay = 0.05
    load = Workload(
        kind="independent",
        num_requests=4,
        prompt_len=5,
        output_len=1,
        request_rate=1e6,
        concurrency=1,
    )
    results = await measure(server, load)
    assert max(result.ttft for result in results) > 0.1


async def test_equal_seeds_send_equal_text(server: FakeServer) -> None:
    load = Workload(kind="independent", num_requests=2, prompt_len=9, output_len=1)
    for seed in ("1", "1", "2"):
        await measure(server, load, seed=seed)
    sent = prompts(server)
    assert sorted(sent[:2]) == sorted(sent[2:4])
    assert not set(sent[:2]) & set(sent[4:])


async def test_refusals_are_results(server: FakeServer) -> None:
    server.fail_every = 3
    load = Workload(kind="independent", num_requests=9, prompt_len=5, output_len=1)
    results = await measure(server, load)
    errors = [result.error for result in results if result.error is not None]
    assert errors == ["HTTP 503: too busy"] * 3


@pytest.mark.parametrize("fault", ["cut_short", "error_event"])
async def test_broken_streams_are_results(server: FakeServer, fault: str) -> None:
    setattr(server, fault, True)
    load = Workload(kind="conversations", num_turns=3, prompt_len=5, output_len=2)
    results = await measure(server, load)
    assert len(results) == 1, "the turns after a failure are not sent"
    assert results[0].error is not None


async def test_a_slow_answer_times_out(server: FakeServer) -> None:
    server.delay = 5.0
    async with open_session(None) as session:
        client = Client(session, Target(url=server.url, model="m"), timeout=0.05)
        load = Workload(kind="independent", prompt_len=5, output_len=2)

        async def count(text: str) -> int:
            return len(text.split())

        results, _ = await Run(load, client, TextSource(count), "0").measure()
    assert results[0].error == "no complete answer in 0.05 s"


async def test_a_server_that_is_not_there_is_a_result() -> None:
    async with open_session(None) as session:
        target = Target(url="http://127.0.0.1:9", model="m")
        with pytest.raises(ServerError, match="lists no model"):
            await first_model(session, target.url)
        assert await server_token_counter(session, target) is None


async def test_chat_endpoint_is_measured_too(server: FakeServer) -> None:
    load = Workload(kind="independent", prompt_len=5, output_len=4)
    results = await measure(server, load, endpoint="chat")
    assert results[0].texts == ["w0 w1 w2 w3 "]
    assert len(results[0].gaps) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "nonsense"},
        {"kind": "tree", "request_rate": 1.0},
        {"kind": "independent", "concurrency": 0},
        {"kind": "independent", "shared_len": -1},
        {"kind": "independent", "output_len": 0},
    ],
)
def test_numbers_that_make_no_workload_raise(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Workload(**wrong)  # type: ignore[arg-type]
