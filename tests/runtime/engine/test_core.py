"""The engine by equality: whatever else happens to a request, its answer is the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ramet.runtime.config import CacheConfig, EngineConfig, ModelOptions, SchedulerConfig
from ramet.runtime.engine.core import EngineCore
from ramet.runtime.engine.loading import load_core
from ramet.runtime.engine.messages import GenerateRequest
from ramet.runtime.request import FinishReason, RequestOutput, RequestStatus, SamplingParams
from ramet.runtime.scheduler import ScheduleBatch

BYTES_PER_TOKEN = 2 * 2 * 2 * 8 * 4  # keys and values, layers, kv heads, head_dim, float32


def prompt(seed: int, size: int) -> list[int]:
    return random.Random(seed).choices(range(3, 259), k=size)


@dataclass
class Driver:
    """Runs a core and collects what it says, checking it after every step."""

    core: EngineCore
    answers: dict[str, list[RequestOutput]] = field(default_factory=dict)

    def add(self, request_id: str, prompt_ids: list[int], **params: Any) -> None:
        fields = {k: params.pop(k) for k in ("namespace", "priority", "timeout") if k in params}
        options: dict[str, Any] = {
            "temperature": 0.0,
            "max_tokens": 8,
            "ignore_eos": True,
            **params,
        }
        self.core.add(
            GenerateRequest(
                request_id=request_id,
                prompt_ids=prompt_ids,
                params=SamplingParams(**options),
                **fields,
            )
        )

    def step(self) -> list[RequestOutput]:
        outputs = self.core.step()
        for output in outputs:
            self.answers.setdefault(output.request_id, []).append(output)
        self.core.check_integrity()
        stats = self.core.stats()
        held = stats.blocks_cached + stats.blocks_private + stats.quarantined_blocks
        assert stats.blocks_free + held == stats.blocks_total
        return outputs

    def run(self, max_steps: int = 3000) -> None:
        for _ in range(max_steps):
            if not self.core.has_work():
                return
            self.step()
        raise AssertionError("not finished")

    def tokens(self, request_id: str) -> list[int]:
        return [t for output in self.answers[request_id] for t in output.token_ids]

    def last(self, request_id: str) -> RequestOutput:
        return self.answers[request_id][-1]

    def generate(self, prompt_ids: list[int], **params: Any) -> list[int]:
        request_id = f"solo-{len(self.answers)}"
        self.add(request_id, prompt_ids, **params)
        self.run()
        return self.tokens(request_id)


@pytest.fixture
def load(tiny_source: Any) -> Callable[..., Driver]:
    def make(
        num_tokens: int = 4096,
        block_size: int = 4,
        max_model_len: int = 512,
        prefix_cache: bool = True,
        **scheduler: Any,
    ) -> Driver:
        options = {"max_num_seqs": 8, "max_num_batched_tokens": 64, **scheduler}
        config = EngineConfig(
            model=ModelOptions(
                model="tiny", dtype="float32", max_model_len=max_model_len, num_threads=1
            ),
            cache=CacheConfig(
                block_size=block_size,
                kv_cache_memory=num_tokens * BYTES_PER_TOKEN,
                enable_prefix_cache=prefix_cache,
            ),
            scheduler=SchedulerConfig(**options),
        )
        return Driver(load_core(config, tiny_source))

    return make


Load = Callable[..., Driver]
SAMPLED = {"temperature": 1.0, "top_p": 0.95, "seed": 7}


@pytest.mark.parametrize("params", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_a_warm_cache_changes_nothing(load: Load, params: dict[str, Any]) -> None:
    cached, uncached = load(), load(prefix_cache=False)
    history = prompt(1, 37)
    for turn in range(4):
        warm = cached.generate(history, max_tokens=11, **params)
        assert warm == uncached.generate(history, max_tokens=11, **params)
        history = history + warm + prompt(turn, 5)
    assert cached.core.stats().prefix_hit_tokens > 100
    assert uncached.core.stats().prefix_hit_tokens == 0


@pytest.mark.parametrize("params", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_a_batch_gives_what_each_request_gives_alone(load: Load, params: dict[str, Any]) -> None:
    prompts = [prompt(i, 3 + 11 * i) for i in range(8)]
    alone = [load().generate(p, **params) for p in prompts]
    together = load()
    for i, p in enumerate(prompts):
        together.add(str(i), p, **params)
        together.step()
    together.run()
    assert [together.tokens(str(i)) for i in range(8)] == alone


@pytest.mark.parametrize("chunk", [8, 13, 31])
def test_chunks_give_what_the_whole_prompt_gives(load: Load, chunk: int) -> None:
    whole = load(max_num_batched_tokens=512).generate(prompt(5, 200))
    assert load(max_num_batched_tokens=chunk).generate(prompt(5, 200)) == whole


@pytest.mark.parametrize("params", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_preempted_requests_give_what_they_would_have_given(
    load: Load, params: dict[str, Any]
) -> None:
    prompts = [prompt(1, 10) + prompt(i, 10 + i) for i in range(8)]
    roomy, tight = load(), load(num_tokens=132, max_model_len=128)
    for driver in (roomy, tight):
        for i, p in enumerate(prompts):
            driver.add(str(i), p, max_tokens=60, **params)
        driver.run()
    stats = tight.core.stats()
    assert stats.preemptions > 0 and stats.evicted_blocks > 0, "the pool was not tight enough"
    assert roomy.core.stats().preemptions == 0
    for i in range(8):
        assert tight.tokens(str(i)) == roomy.tokens(str(i))
        assert len(tight.tokens(str(i))) == 60
        assert tight.last(str(i)).num_cached_tokens <= len(prompts[i])


def test_samples_of_one_prompt_differ_share_blocks_and_repeat(load: Load) -> None:
    driver = load()
    for i in range(8):
        driver.add(str(i), prompt(1, 42), temperature=1.0, seed=100 + i, max_tokens=10)
    driver.run()
    texts = [tuple(driver.tokens(str(i))) for i in range(8)]
    assert len(set(texts)) == 8
    assert driver.core.stats().computed_tokens == 42 + 7 + 8 * 9
    for i in (0, 5):
        assert (
            tuple(load().generate(prompt(1, 42), temperature=1.0, seed=100 + i, max_tokens=10))
            == texts[i]
        )


def test_turn_by_turn_only_new_tokens_are_computed(load: Load) -> None:
    driver = load(block_size=16)
    history = prompt(1, 45)
    reusable = 0
    for turn in range(5):
        before = driver.core.stats().computed_tokens
        answer = driver.generate(history, max_tokens=7)
        output = list(driver.answers.values())[-1][-1]
        assert output.num_cached_tokens == reusable
        assert driver.core.stats().computed_tokens - before == len(history) - reusable + 6
        # The last token of an answer was sampled but never run, so its KV does not exist.
        reusable = len(history) + 6
        history = history + answer + prompt(turn, 9)


@pytest.mark.parametrize("reason", ["eos", "stop token", "length", "context"])
def test_each_end_is_reported_as_what_it_is(load: Load, reason: str) -> None:
    free = load().generate(prompt(3, 20), max_tokens=30)
    first = next(i for i, t in enumerate(free) if t not in free[:i] and i > 3)
    driver = load(max_model_len=30 if reason == "context" else 512)
    params: dict[str, Any] = {"max_tokens": 30}
    if reason == "stop token":
        params["stop_token_ids"] = (free[first],)
    elif reason == "eos":
        params |= {"ignore_eos": False, "logit_bias": {2: 100.0}, "min_tokens": 4}
    elif reason == "length":
        params["max_tokens"] = 5
    tokens = driver.generate(prompt(3, 20), **params)
    last = list(driver.answers.values())[-1][-1]
    expected = {
        "eos": (FinishReason.STOP, None, 5),
        "stop token": (FinishReason.STOP, free[first], first + 1),
        "length": (FinishReason.LENGTH, None, 5),
        "context": (FinishReason.LENGTH, None, 10),
    }[reason]
    assert (last.finish_reason, last.stop_reason, len(tokens)) == expected


def test_a_stop_string_ends_the_request_at_the_token_that_completes_it(load: Load) -> None:
    bias = {i: -100.0 for i in range(131, 259)} | {i: -100.0 for i in range(3, 36)}
    free = load().generate(prompt(3, 20), logit_bias=bias, max_tokens=30)
    text = "".join(chr(t - 3) for t in free)
    stop = text[10:13]
    end = text.find(stop) + 3
    driver = load()
    tokens = driver.generate(prompt(3, 20), logit_bias=bias, max_tokens=30, stop=(stop,))
    last = list(driver.answers.values())[-1][-1]
    assert tokens == free[:end]
    assert (last.finish_reason, last.stop_reason) == (FinishReason.STOP, stop)


def test_max_tokens_zero_computes_the_prompt_and_samples_nothing(load: Load) -> None:
    driver = load()
    assert driver.generate(prompt(1, 20), max_tokens=0) == []
    assert driver.last("solo-0").finish_reason is FinishReason.LENGTH
    assert driver.core.stats().computed_tokens == 20


def test_prompt_logprobs_are_the_same_cold_and_warm_whole_and_chunked(load: Load) -> None:
    results = []
    for driver in (load(max_num_batched_tokens=256), load(max_num_batched_tokens=16)):
        for name in ("cold", "warm"):
            driver.add(name, prompt(2, 50), prompt_logprobs=3, logprobs=2, max_tokens=4)
            driver.run()
            scored = [lp for output in driver.answers[name] for lp in output.prompt_logprobs]
            assert [lp.token_id for lp in scored] == prompt(2, 50)[1:]
            assert driver.last(name).num_cached_tokens == 0
            results.append([lp.logprob for lp in scored])
            sampled = [lp for output in driver.answers[name] for lp in output.logprobs]
            assert [lp.token_id for lp in sampled] == driver.tokens(name)
            assert all(lp.rank == 1 and lp.logprob == lp.top_logprobs[0] for lp in sampled)
    for other in results[1:]:
        assert other == pytest.approx(results[0], abs=1e-4)


@pytest.mark.parametrize("start", [1, 2, 33, 50, 60])
def test_prompt_logprobs_from_a_position_on_leave_the_prefix_to_the_cache(
    load: Load, start: int
) -> None:
    driver = load(max_num_batched_tokens=16)
    driver.add("all", prompt(2, 50), prompt_logprobs=0, max_tokens=0)
    driver.run()
    everything = [lp for output in driver.answers["all"] for lp in output.prompt_logprobs]
    options = {"prompt_logprobs": 0, "prompt_logprobs_start": start, "max_tokens": 0}
    for name in ("left", "right"):
        driver.add(name, prompt(2, 50), **options)
    driver.run()
    for name in ("left", "right"):
        scored = [lp for output in driver.answers[name] for lp in output.prompt_logprobs]
        assert [lp.logprob for lp in scored] == pytest.approx(
            [lp.logprob for lp in everything[start - 1 :]], abs=1e-4
        )
        assert driver.last(name).num_cached_tokens == min(start, 50) - 1


def test_a_prompt_that_is_preempted_while_it_is_scored_is_scored_once(load: Load) -> None:
    driver = load(num_tokens=132, max_model_len=128, max_num_batched_tokens=8)
    for i in range(5):
        driver.add(f"old-{i}", prompt(i, 5), max_tokens=60)
    for _ in range(3):
        driver.step()
    driver.add("scored", prompt(9, 40), prompt_logprobs=1, max_tokens=2)
    live, num_scored = driver.core._live["scored"], 0
    while driver.core.stats().preemptions == 0:
        num_scored = len(live.scored)
        driver.step()
    assert 0 < num_scored < 39 and live.request.status is RequestStatus.PREEMPTED
    driver.run()
    scored = [lp for output in driver.answers["scored"] for lp in output.prompt_logprobs]
    assert [lp.token_id for lp in scored] == prompt(9, 40)[1:]
    roomy = load()
    roomy.add("scored", prompt(9, 40), prompt_logprobs=1, max_tokens=2)
    roomy.run()
    alone = [lp.logprob for output in roomy.answers["scored"] for lp in output.prompt_logprobs]
    assert [lp.logprob for lp in scored] == pytest.approx(alone, abs=1e-4)


@pytest.mark.parametrize("max_tokens", [0, 4])
def test_a_prompt_with_broken_scores_ends_with_an_error_and_alone(
    load: Load, monkeypatch: pytest.MonkeyPatch, max_tokens: int
) -> None:
    wanted = load().generate(prompt(1, 10), max_tokens=12)
    driver = load()
    driver.add("good", prompt(1, 10), max_tokens=12)
    driver.step()
    driver.add("bad", prompt(2, 20), prompt_logprobs=1, max_tokens=max_tokens)
    run = driver.core._runner.run

    def broken(batch: ScheduleBatch) -> torch.Tensor:
        logits, row = run(batch).clone(), 0
        for item in batch.scheduled:
            if item.scores_prompt:
                logits[row + 3] = torch.nan
            row += item.num_new_tokens if item.scores_prompt else item.samples
        return logits

    monkeypatch.setattr(driver.core._runner, "run", broken)
    driver.run()
    last = driver.last("bad")
    assert last.finish_reason is FinishReason.ERROR and "not finite" in (last.error or "")
    assert not last.prompt_logprobs and driver.tokens("good") == wanted


def test_an_abort_frees_everything_within_one_step(load: Load) -> None:
    driver = load()
    for i in range(4):
        driver.add(str(i), prompt(i, 40), max_tokens=100)
    for _ in range(6):
        driver.step()
    driver.core.abort(["1", "3", "nobody"])
    outputs = driver.step()
    ended = {o.request_id: o.finish_reason for o in outputs if o.finished}
    assert ended == {"1": FinishReason.ABORT, "3": FinishReason.ABORT}
    driver.core.abort(["0", "2"])
    driver.step()
    stats = driver.core.stats()
    assert stats.num_running == stats.blocks_private == stats.blocks_pinned == 0
    assert stats.aborts == 4
    assert not driver.core.has_work()


def test_an_abort_leaves_the_others_alone(load: Load) -> None:
    alone = load().generate(prompt(9, 40), max_tokens=20)
    driver = load()
    driver.add("kept", prompt(9, 40), max_tokens=20)
    driver.add("dropped", prompt(9, 40) + [5], max_tokens=20)
    for _ in range(4):
        driver.step()
    driver.core.abort(["dropped"])
    driver.run()
    assert driver.tokens("kept") == alone


def test_a_request_ends_at_its_time_limit(load: Load) -> None:
    driver = load()
    now = 0.0
    driver.core._clock = lambda: now
    driver.add("late", prompt(1, 10), max_tokens=200, timeout=5.0)
    driver.add("free", prompt(2, 10), max_tokens=10)
    driver.step()
    now = 5.5
    driver.step()
    assert driver.last("late").finish_reason is FinishReason.ABORT
    assert "time limit" in (driver.last("late").error or "")
    driver.run()
    assert len(driver.tokens("free")) == 10


def test_a_request_ends_at_its_time_limit_while_it_waits(load: Load) -> None:
    driver = load(max_num_seqs=1)
    now = 0.0
    driver.core._clock = lambda: now
    driver.add("runs", prompt(1, 10), max_tokens=40)
    driver.add("waits", prompt(2, 10), max_tokens=4, timeout=5.0)
    driver.step()
    assert driver.core.stats().num_waiting == 1
    now = 5.5
    driver.step()
    assert driver.last("waits").finish_reason is FinishReason.ABORT
    assert driver.core.stats().num_waiting == 0
    driver.run()
    assert len(driver.tokens("runs")) == 40


@pytest.mark.parametrize("fields", [{"priority": "high"}, {"timeout": float("nan")}])
def test_a_request_that_cannot_be_taken_leaves_nothing_and_the_engine_goes_on(
    load: Load, fields: dict[str, Any]
) -> None:
    wanted = load().generate(prompt(1, 10))
    driver = load()
    driver.add("good", prompt(1, 10), timeout=100.0)
    driver.add("bad", prompt(2, 10), **fields)
    driver.run()
    assert driver.last("bad").finish_reason is FinishReason.ERROR
    assert driver.tokens("good") == wanted
    driver.add("bad", prompt(1, 10))
    driver.run()
    assert driver.tokens("bad") == wanted


@pytest.mark.parametrize(
    ("prompt_ids", "params", "message"),
    [
        ([], {}, "no tokens"),
        ([5, -1], {}, "token id -1"),
        ([5, 259], {}, "token id 259"),
        ([5] * 513, {}, "513 input tokens"),
        ([5], {"logit_bias": {259: 1.0}}, "logit_bias has token id 259"),
        ([5], {"stop_token_ids": (-1,)}, "stop_token_ids has token id -1"),
    ],
)
def test_a_bad_request_is_an_error_and_disturbs_nobody(
    load: Load, prompt_ids: list[int], params: dict[str, Any], message: str
) -> None:
    driver = load()
    driver.add("good", prompt(1, 10))
    driver.step()
    driver.add("bad", prompt_ids, **params)
    driver.run()
    assert driver.last("bad").finish_reason is FinishReason.ERROR
    assert message in (driver.last("bad").error or "")
    assert len(driver.tokens("good")) == 8


def test_an_id_that_is_live_already_is_refused(load: Load) -> None:
    driver = load()
    driver.add("a", prompt(1, 10))
    driver.step()
    driver.add("a", prompt(2, 10))
    errors = [o for o in driver.step() if o.finish_reason is FinishReason.ERROR]
    assert errors and "live already" in (errors[0].error or "")
    driver.run()


def test_a_step_that_fails_ends_its_requests_and_the_engine_goes_on(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = load()
    driver.generate(prompt(1, 30))
    driver.add("hit", prompt(1, 30), max_tokens=5)
    with monkeypatch.context() as broken:

        def fail(batch: object) -> None:
            raise RuntimeError("the device is on fire")

        broken.setattr(driver.core._runner, "run", fail)
        driver.step()
    assert driver.last("hit").finish_reason is FinishReason.ERROR
    assert "on fire" in (driver.last("hit").error or "")
    assert driver.generate(prompt(1, 30)) == load().generate(prompt(1, 30))


def test_nothing_that_a_failed_step_left_behind_is_ever_hit(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, reference = load(), load(prefix_cache=False)
    history = prompt(1, 30)
    history += driver.generate(history, max_tokens=5)
    driver.add("lost", history + prompt(2, 6))
    with monkeypatch.context() as broken:

        def fail(batch: object) -> None:
            driver.core.reset_prefix_cache()  # as eviction would: the block that was copied goes
            raise RuntimeError("the device is on fire")

        broken.setattr(driver.core._runner, "run", fail)
        driver.step()
    assert driver.last("lost").finish_reason is FinishReason.ERROR
    assert driver.last("lost").num_cached_tokens == 34, "the match must end inside a block"
    for extra in (prompt(2, 6), prompt(3, 6)):
        assert driver.generate(history + extra) == reference.generate(history + extra)


def test_the_engine_seed_decides_what_unseeded_requests_sample(load: Load) -> None:
    first = load().generate(prompt(1, 10), temperature=1.0)
    again = load().generate(prompt(1, 10), temperature=1.0)
    assert first == again
    driver = load()
    assert driver.generate(prompt(1, 10), temperature=1.0) != driver.generate(
        prompt(1, 10), temperature=1.0
    ), "two unseeded requests of one engine draw differently"


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_random_traffic_never_changes_an_answer(load: Load, data: st.DataObject) -> None:
    driver = load(num_tokens=120, max_model_len=100, max_num_batched_tokens=24, max_num_seqs=4)
    reference = load(prefix_cache=False)
    wanted: dict[str, Sequence[int]] = {}
    for number in range(data.draw(st.integers(3, 9))):
        shared = prompt(1, data.draw(st.integers(0, 40)))
        own = prompt(number, data.draw(st.integers(1, 20)))
        params = data.draw(st.sampled_from([{}, SAMPLED, {"repetition_penalty": 1.3}]))
        max_tokens = data.draw(st.integers(1, 30))
        name = str(number)
        driver.add(name, shared + own, max_tokens=max_tokens, **params)
        wanted[name] = reference.generate(shared + own, max_tokens=max_tokens, **params)
        for _ in range(data.draw(st.integers(0, 6))):
            if driver.core.has_work():
                driver.step()
        if data.draw(st.integers(0, 5)) == 0:
            driver.core.abort([name])
    driver.run()
    for name, tokens in wanted.items():
        if driver.last(name).finish_reason is not FinishReason.ABORT:
            assert driver.tokens(name) == tokens
        else:
            assert driver.tokens(name) == tokens[: len(driver.tokens(name))]


def test_damaged_accounting_is_quarantined_and_answers_stay_right(load: Load) -> None:
    wanted = load().generate(prompt(1, 40), max_tokens=12)
    driver = load()
    driver.generate(prompt(1, 40), max_tokens=4)
    allocator = driver.core._cache._allocator
    block = next(b for b, refs in enumerate(allocator._tree_refs) if refs)
    allocator._tree_refs[block] += 3  # as a bug would leave it
    driver.core._audited -= 1000
    driver.core.rest()
    assert driver.core.stats().quarantined_blocks > 0
    assert driver.generate(prompt(1, 40), max_tokens=12) == wanted


def test_with_blocks_in_quarantine_only_what_does_not_fit_any_more_ends(load: Load) -> None:
    wanted = load().generate(prompt(2, 10), max_tokens=30)
    driver = load(num_tokens=132, max_model_len=128)
    driver.generate(prompt(5, 60), max_tokens=4)
    allocator = driver.core._cache._allocator
    for block in [b for b, refs in enumerate(allocator._tree_refs) if refs][:10]:
        allocator._tree_refs[block] += 3  # as a bug would leave it
    driver.core._audited -= 1000
    driver.core.rest()
    assert driver.core.stats().quarantined_blocks == 10
    driver.add("grows", prompt(1, 40), max_tokens=80)
    driver.add("small", prompt(2, 10), max_tokens=30)
    driver.add("big", prompt(3, 120), max_tokens=4)
    driver.run(500)
    assert driver.tokens("small") == wanted
    for name in ("grows", "big"):
        assert driver.last(name).finish_reason is FinishReason.ERROR
        assert "does not fit" in (driver.last(name).error or "")
    assert driver.generate(prompt(2, 10), max_tokens=30) == wanted


@pytest.mark.parametrize("counter", ["_private", "_pins", "_tree_refs"])
@pytest.mark.parametrize("end", ["abort", "finish"])
def test_damage_met_while_a_request_ends_is_quarantined_and_takes_nobody_with_it(
    load: Load, counter: str, end: str
) -> None:
    wanted = load().generate(prompt(9, 40), max_tokens=20)
    driver = load()
    driver.add("other", prompt(9, 40), max_tokens=20)
    driver.add("damaged", prompt(1, 30), max_tokens=8)
    for _ in range(3):
        driver.step()
    (damaged,) = (r for r in driver.core.scheduler.running if r.request_id == "damaged")
    block = damaged.block_table[-1 if counter == "_private" else 0]
    getattr(driver.core._cache._allocator, counter)[block] -= 1
    if end == "abort":
        driver.core.abort(["damaged"])
    for _ in range(60):
        if not driver.core.has_work():
            break
        for output in driver.core.step():
            driver.answers.setdefault(output.request_id, []).append(output)
    assert driver.last("damaged").finished
    assert driver.tokens("other") == wanted
    driver.core._audited -= 1000
    driver.core.rest()
    driver.core.check_integrity()
    assert driver.generate(prompt(9, 40), max_tokens=20) == wanted
