"""Constrained requests in the engine: right beside others, preempted, forced, late, aborted, refused."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from ramet.runtime.config import CacheConfig, EngineConfig, ModelOptions, SchedulerConfig
from ramet.runtime.engine import constrained
from ramet.runtime.engine.core import EngineCore
from ramet.runtime.engine.loading import load_core
from ramet.runtime.engine.messages import GenerateRequest
from ramet.runtime.errors import CapacityError, GrammarError
from ramet.runtime.request import FinishReason, RequestOutput, SamplingParams
from ramet.runtime.structured.constraint import Constraint
from ramet.runtime.structured.grammar import Grammar, Matcher
from ramet.runtime.structured.service import GrammarService

PATTERN = r"[0-9]{3}-(abc|abd)x"
SCHEMA = {
    "type": "object",
    "properties": {
        "ok": {"type": "boolean"},
        "n": {"type": "integer", "maximum": 99, "minimum": 0},
    },
    "required": ["ok", "n"],
}
TIME_LIMIT = 60.0


class Driver:
    """Runs a core to the end, and joins what it says of each request."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.outputs: dict[str, list[RequestOutput]] = {}

    def add(self, name: str, constraint: Constraint | None, size: int = 9, **params: Any) -> None:
        options: dict[str, Any] = {"temperature": 1.0, "seed": 5, "max_tokens": 60, **params}
        self.core.add(
            GenerateRequest(
                request_id=name,
                prompt_ids=[3 + (7 * i) % 200 for i in range(size)],
                params=SamplingParams(constraint=constraint, **options),
            )
        )

    def step(self) -> None:
        for output in self.core.step():
            self.outputs.setdefault(output.request_id, []).append(output)
        self.core.check_integrity()

    def run(self) -> None:
        give_up = time.monotonic() + TIME_LIMIT
        while self.core.has_work():
            assert time.monotonic() < give_up
            self.step()

    def text(self, name: str) -> str:
        data = bytes(i - 3 for i in self.tokens(name) if i >= 3)
        return data.decode("utf-8", "replace")

    def tokens(self, name: str) -> list[int]:
        return [i for output in self.outputs[name] for i in output.token_ids]

    def last(self, name: str) -> RequestOutput:
        return self.outputs[name][-1]


@pytest.fixture
def load(tiny_source: Any) -> Callable[..., Driver]:
    def make(num_blocks: int = 512, **scheduler: Any) -> Driver:
        config = EngineConfig(
            model=ModelOptions(
                model="tiny", max_model_len=128, num_threads=1, dtype="float32", kernels="sdpa"
            ),
            cache=CacheConfig(block_size=4, kv_cache_memory=num_blocks * 4 * 2 * 2 * 2 * 8 * 4),
            scheduler=SchedulerConfig(**{"max_num_seqs": 8, **scheduler}),
        )
        return Driver(load_core(config, tiny_source))

    return make


Load = Callable[..., Driver]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_output_matches_and_ends_where_the_grammar_does(load: Load, temperature: float) -> None:
    driver = load()
    driver.add("regex", Constraint.regex(PATTERN), temperature=temperature)
    driver.add("schema", Constraint.json_schema(SCHEMA), temperature=temperature)
    driver.add("choice", Constraint.choice(["red", "green"]), temperature=temperature)
    driver.run()
    assert re.fullmatch(PATTERN, driver.text("regex"))
    assert set(json.loads(driver.text("schema"))) == {"ok", "n"}
    assert driver.text("choice") in ("red", "green")
    for name in ("regex", "schema", "choice"):
        assert driver.last(name).finish_reason is FinishReason.STOP
        assert driver.last(name).num_output_tokens == len(driver.tokens(name))
    assert driver.last("regex").ends_with_text and not driver.last("regex").ended_by_token


def test_constrained_and_free_requests_beside_each_other_answer_as_alone(load: Load) -> None:
    jobs: list[tuple[str, Constraint | None, int]] = [
        ("free", None, 11),
        ("regex", Constraint.regex(r"([a-f]{2} ){6}"), 23),
        ("free too", None, 5),
        ("json", Constraint.json_schema(SCHEMA), 17),
    ]
    alone = {}
    for name, constraint, size in jobs:
        driver = load()
        driver.add(name, constraint, size, max_tokens=24)
        driver.run()
        alone[name] = driver.tokens(name)
    together = load()
    for name, constraint, size in jobs:
        together.add(name, constraint, size, max_tokens=24)
        together.step()
    together.run()
    assert {name: together.tokens(name) for name, _, _ in jobs} == alone


def test_forced_tokens_change_nothing_and_take_no_steps(load: Load) -> None:
    constraint = Constraint.regex(r"[ab]forced stretch[cd]")
    forced, sampled = load(), load()
    forced.add("x", constraint, presence_penalty=0.5)
    sampled.add("x", constraint, presence_penalty=0.5, logprobs=0)
    forced.run()
    sampled.run()
    assert forced.tokens("x") == sampled.tokens("x")
    assert len(sampled.outputs["x"]) == len(sampled.tokens("x"))
    assert len(forced.outputs["x"]) <= 3
    assert forced.core.stats().steps < sampled.core.stats().steps
    assert sum(len(o.logprobs) for o in sampled.outputs["x"]) == len(sampled.tokens("x"))


def test_stops_and_limits_hold_inside_a_forced_stretch(load: Load) -> None:
    driver = load()
    constraint = Constraint.regex(r"[ab]forced stretch")
    driver.add("limit", constraint, max_tokens=5)
    driver.add("string", constraint, stop=("ced",))
    driver.add("token", constraint, stop_token_ids=(3 + ord("c"),))
    driver.add("exact", constraint, max_tokens=15)
    driver.run()
    assert driver.text("limit")[1:] == "forc"
    assert driver.last("limit").finish_reason is FinishReason.LENGTH
    assert driver.text("string")[1:] == "forced" and driver.last("string").stop_reason == "ced"
    assert driver.text("token")[1:] == "forc"
    assert driver.last("token").stop_reason == 3 + ord("c") and driver.last("token").ended_by_token
    assert driver.last("exact").finish_reason is FinishReason.STOP
    assert driver.text("exact")[1:] == "forced stretch"


def test_where_only_the_end_is_legal_an_end_comes_whatever_else_is_asked(load: Load) -> None:
    driver = load()
    for pattern, texts in (("", {""}), ("a?", {"", "a"}), ("ab", {"ab"})):
        driver.add(pattern, Constraint.regex(pattern), ignore_eos=True, min_tokens=0)
        driver.run()
        assert driver.text(pattern) in texts
        assert driver.last(pattern).finish_reason is FinishReason.STOP


def test_a_bias_does_not_lift_the_mask(load: Load) -> None:
    driver = load()
    driver.add("x", Constraint.regex("[ab]{4}"), logit_bias={3 + ord("z"): 100.0})
    driver.run()
    assert re.fullmatch("[ab]{4}", driver.text("x"))


def test_a_preempted_request_goes_on_in_its_grammar(load: Load) -> None:
    pattern = r"([0-9a-f]{2},){12}"
    roomy, tight = load(), load(num_blocks=36)
    for driver in (roomy, tight):
        for i in range(4):
            driver.add(str(i), Constraint.regex(pattern), size=10 + i, seed=i)
        driver.run()
    assert tight.core.stats().preemptions > 0
    for i in range(4):
        assert re.fullmatch(pattern, tight.text(str(i)))
        assert tight.tokens(str(i)) == roomy.tokens(str(i))


def test_a_bad_constraint_ends_its_own_request_as_invalid(load: Load) -> None:
    driver = load()
    driver.add("bad", Constraint.regex("("))
    driver.add("good", Constraint.regex("ab"))
    driver.add("free", None, max_tokens=4)
    driver.run()
    last = driver.last("bad")
    assert (last.finish_reason, last.invalid) == (FinishReason.ERROR, True)
    assert "unclosed group" in (last.error or "") and not last.overloaded
    assert driver.text("good") == "ab" and len(driver.tokens("free")) == 4


def test_a_constraint_that_the_machine_is_too_busy_for_is_not_invalid(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = load()
    busy: Future[Grammar] = Future()
    busy.set_exception(CapacityError("The machine was too busy."))
    monkeypatch.setattr(GrammarService, "get", lambda *_: busy)
    driver.add("late", Constraint.regex("ab"))
    driver.run()
    last = driver.last("late")
    assert (last.invalid, last.overloaded) == (False, True)
    assert last.error == "The machine was too busy."


def test_others_run_while_a_grammar_compiles_and_an_abort_leaves_nothing_behind(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = load()
    never: Future[Grammar] = Future()
    monkeypatch.setattr(driver.core._constrained._grammars, "get", lambda constraint: never)
    driver.add("waits", Constraint.regex("a"))
    driver.add("free", None, max_tokens=3)
    for _ in range(6):
        driver.step()
    assert len(driver.tokens("free")) == 3 and "waits" not in driver.outputs
    assert driver.core.has_work() and driver.core.stats().num_waiting == 1
    driver.core.abort(["waits"])
    driver.run()
    assert driver.last("waits").finish_reason is FinishReason.ABORT
    assert driver.core.stats().num_waiting == 0


def test_a_request_whose_grammar_is_slow_misses_steps_alone(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = Matcher.advance

    def dawdle(matcher: Matcher, token_id: int) -> None:
        time.sleep(0.03)
        advance(matcher, token_id)

    driver = load()
    driver.add("x", Constraint.regex("[ab]{5}(cd|ce)"))
    driver.run()
    expected = driver.tokens("x")
    monkeypatch.setattr(Matcher, "advance", dawdle)
    monkeypatch.setattr(constrained, "GRACE_SECONDS", 0.001)
    slow = load()
    slow.add("x", Constraint.regex("[ab]{5}(cd|ce)"))
    while "x" not in slow.outputs:
        slow.step()
    slow.add("free", None, max_tokens=10, ignore_eos=True)
    while "free" not in slow.outputs or not slow.last("free").finished:
        slow.step()
    assert not slow.last("x").finished
    slow.run()
    assert slow.tokens("x") == expected
    assert slow.last("x").finish_reason is FinishReason.STOP


def test_a_grammar_that_breaks_on_the_way_ends_its_own_request(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = Matcher.advance

    def break_at_x(matcher: Matcher, token_id: int) -> None:
        if token_id == 3 + ord("x"):
            raise GrammarError("The grammar grew too complex.")
        advance(matcher, token_id)

    monkeypatch.setattr(Matcher, "advance", break_at_x)
    driver = load()
    driver.add("breaks", Constraint.regex("[ab]{2}x[ab]"))
    driver.add("free", None, max_tokens=8, ignore_eos=True)
    driver.run()
    assert driver.last("breaks").finish_reason is FinishReason.ERROR
    assert driver.last("breaks").invalid and "too complex" in (driver.last("breaks").error or "")
    assert len(driver.tokens("free")) == 8
