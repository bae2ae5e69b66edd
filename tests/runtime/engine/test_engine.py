"""The library's face, over the fake core and over a tiny real model."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from ramet.runtime import (
    CacheConfig,
    Completion,
    Engine,
    EngineConfig,
    ModelOptions,
    SchedulerConfig,
)
from ramet.runtime.engine.loading import load_core
from ramet.runtime.errors import (
    CapacityError,
    ContextLengthExceeded,
    DeadlineExceeded,
    EngineDead,
    EngineError,
    GrammarError,
    InvalidRequest,
    QueueFull,
    RequestError,
)
from ramet.runtime.request import FinishReason, SamplingParams
from ramet.runtime.structured.constraint import Constraint
from ramet.runtime.structured.grammar import Grammar
from ramet.runtime.structured.service import GrammarService
from ramet.runtime.text.tokenizer import Tokenizer

pytestmark = pytest.mark.timeout(60)

COUNT, ERROR, NEVER = 900, 904, 905
END = 2  # the tiny tokenizer's <|im_end|>
HELLO = "héllo 👋 "


@pytest.fixture(scope="session")
def tokenizer(tiny_source: Any) -> Tokenizer:
    """One token per byte: id 3 + byte."""
    return Tokenizer(tiny_source.tokenizer())


@pytest.fixture
def core(fake_core: Any) -> Any:
    """The core behind `engine`."""
    return fake_core.FakeCore()


@pytest.fixture
def engine(core: Any, tokenizer: Tokenizer) -> Iterator[Engine]:
    """An engine that answers a prompt with the prompt, again and again."""
    with Engine.from_core(lambda: core, tokenizer) as one:
        yield one


@pytest.fixture(scope="module")
def tiny(tiny_source: Any, tokenizer: Tokenizer) -> Iterator[Engine]:
    """A real, if random, model."""
    config = EngineConfig(
        model=ModelOptions(model="tiny", num_threads=1),
        cache=CacheConfig(kv_cache_memory=1 << 20),
    )
    with Engine.from_core(lambda: load_core(config, tiny_source), tokenizer) as one:
        yield one


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)


def test_a_text_is_completed(engine: Engine, tokenizer: Tokenizer) -> None:
    num_bytes = len(HELLO.encode())
    completion = engine.generate(HELLO, max_tokens=2 * num_bytes)
    assert completion == Completion(
        text=HELLO * 2,
        token_ids=tuple(tokenizer.encode(HELLO, add_special_tokens=False) * 2),
        finish_reason=FinishReason.LENGTH,
        stop_reason=None,
        logprobs=None,
        prompt_logprobs=None,
        num_prompt_tokens=num_bytes,
        num_cached_tokens=num_bytes - 1,
    )


def test_token_ids_are_taken_as_they_are(engine: Engine) -> None:
    completion = engine.generate([3 + 65, 3 + 66], SamplingParams(max_tokens=3))
    assert completion.text == "ABA"


def test_log_probabilities_are_there_if_asked_for(engine: Engine) -> None:
    completion = engine.generate([68, 69], max_tokens=3, logprobs=0)
    assert completion.logprobs is not None
    assert [entry.token_id for entry in completion.logprobs] == [68, 69, 68]


def test_a_list_of_prompts_gives_a_list_in_the_same_order(engine: Engine) -> None:
    completions = engine.generate(["ab", "cde", "f"], max_tokens=3)
    assert [c.text for c in completions] == ["aba", "cde", "fff"]
    assert [c.text for c in engine.generate([[70], [71]], max_tokens=1)] == ["C", "D"]


def test_with_n_there_is_a_list_with_all_samples_of_a_prompt_together(engine: Engine) -> None:
    assert [c.text for c in engine.generate(["a", "b"], n=2, max_tokens=1)] == list("aabb")
    assert [c.text for c in engine.generate("a", n=1, max_tokens=1)] == ["a"]


async def test_the_async_face_gives_the_same(engine: Engine) -> None:
    one, many = await asyncio.gather(
        engine.agenerate(HELLO, max_tokens=20), engine.agenerate(["ab", "c"], n=2, max_tokens=2)
    )
    assert one == engine.generate(HELLO, max_tokens=20)
    assert [c.text for c in many] == ["ab", "ab", "cc", "cc"]


def test_a_stream_yields_whole_characters_and_ends_with_the_completion(engine: Engine) -> None:
    stream = engine.stream(HELLO, max_tokens=28)
    assert not stream.completion
    pieces = list(stream)
    assert "👋" in pieces
    whole = engine.generate(HELLO, max_tokens=28)
    assert stream.completion == whole
    assert "".join(pieces) == whole.text
    assert list(stream) == []


async def test_an_async_stream_yields_the_same(engine: Engine) -> None:
    stream = engine.astream(HELLO, max_tokens=28)
    pieces = [piece async for piece in stream]
    assert pieces == list(engine.stream(HELLO, max_tokens=28))
    assert stream.completion is not None
    assert stream.completion.text == "".join(pieces)


@pytest.mark.parametrize("leave", ["break", "close", "with", "drop"])
def test_leaving_a_stream_early_aborts_its_request(engine: Engine, core: Any, leave: str) -> None:
    stream = engine.stream("abc", max_tokens=None)
    assert next(stream) == "a"
    if leave == "close":
        stream.close()
    elif leave == "with":
        with stream:
            next(stream)
    elif leave == "break":
        for _ in stream:
            break
    del stream
    gc.collect()
    until(lambda: core.num_aborts == 1 and not core.live)


async def test_leaving_an_async_stream_early_aborts_its_request(engine: Engine, core: Any) -> None:
    async with engine.astream("abc", max_tokens=None) as stream:
        assert await anext(stream) == "a"
    await asyncio.to_thread(until, lambda: core.num_aborts == 1 and not core.live)
    assert [piece async for piece in stream] == []


async def test_cancelling_a_task_aborts_its_requests(engine: Engine, core: Any) -> None:
    generating = asyncio.create_task(engine.agenerate([[NEVER], [NEVER]], max_tokens=5))
    streaming = asyncio.create_task(anext(engine.astream([NEVER])))
    await asyncio.to_thread(until, lambda: len(core.live) == 3)
    generating.cancel()
    streaming.cancel()
    for task in (generating, streaming):
        with pytest.raises(asyncio.CancelledError):
            await task
    await asyncio.to_thread(until, lambda: core.num_aborts == 3 and not core.live)


def test_a_loop_that_is_closed_aborts_what_it_left_running(engine: Engine, core: Any) -> None:
    kept: list[Any] = []

    async def begin() -> None:
        kept.append(engine.astream([COUNT], max_tokens=None))

    asyncio.run(begin())
    until(lambda: core.num_aborts == 1 and not core.live)


def test_threads_and_loops_share_one_engine(engine: Engine) -> None:
    results: dict[int, str] = {}

    def work(i: int) -> None:
        prompt = [3 + 65 + i]
        if i % 2:
            results[i] = engine.generate(prompt, max_tokens=20).text
        else:
            results[i] = asyncio.run(engine.agenerate(prompt, max_tokens=20)).text

    threads = [threading.Thread(target=work, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert results == {i: chr(65 + i) * 20 for i in range(12)}


def test_an_error_of_the_engine_is_raised_and_ends_the_rest_of_the_call(
    engine: Engine, core: Any
) -> None:
    with pytest.raises(EngineError, match="asked to fail"):
        engine.generate([[NEVER], [ERROR]], max_tokens=5)
    until(lambda: core.num_aborts == 1 and not core.live)


def test_a_time_limit_that_passed_is_told_apart(engine: Engine, core: Any) -> None:
    def abort_later() -> None:
        until(lambda: bool(core.live))
        time.sleep(0.1)
        engine._thread.abort(list(core.live))

    thread = threading.Thread(target=abort_later)
    thread.start()
    with pytest.raises(DeadlineExceeded, match="0.05 seconds"):
        engine.generate([NEVER], timeout=0.05)
    thread.join()


def test_closing_the_engine_ends_who_waits(core: Any, tokenizer: Tokenizer) -> None:
    engine = Engine.from_core(lambda: core, tokenizer)
    stream = engine.stream([NEVER])
    engine.close()
    with pytest.raises(EngineDead, match="closed"):
        next(stream)
    with pytest.raises(EngineDead, match="closed"):
        engine.generate("a")


def test_parameters_are_checked_before_anything_runs(engine: Engine, core: Any) -> None:
    for bad, error in (
        ({"temprature": 1}, TypeError),
        ({"n": 0}, InvalidRequest),
        ({"top_p": 2.0}, InvalidRequest),
        ({"stop_token_ids": [1000]}, InvalidRequest),
        ({"params": SamplingParams(), "top_k": 3}, TypeError),
    ):
        with pytest.raises(error):
            engine.generate("a", **bad)
    with pytest.raises(TypeError, match="'n'"):
        engine.stream("a", n=2)
    with pytest.raises(TypeError, match="'n'"):
        engine.chat([{"role": "user", "content": "x"}], n=2)
    assert core.num_steps == 0


@pytest.mark.parametrize("prompt", ["", [], [-1], [1000]])
def test_a_prompt_without_tokens_or_with_unknown_ones_is_refused(
    engine: Engine, prompt: Any
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        engine.generate(prompt)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("bad", [Constraint.regex("("), Constraint.json_schema({"enum": []})])
def test_a_constraint_that_cannot_be_used_is_an_error_of_its_own(
    tiny: Engine, bad: Constraint
) -> None:
    with pytest.raises(GrammarError, match="cannot be used") as caught:
        tiny.generate("x", constraint=bad)
    assert caught.value.param == "constraint"
    assert tiny.generate("x", constraint=Constraint.regex("ab")).text == "ab"


def test_a_machine_that_is_too_busy_for_a_constraint_is_no_fault_of_it(
    tiny: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy: Future[Grammar] = Future()
    busy.set_exception(CapacityError("The machine was too busy."))
    monkeypatch.setattr(GrammarService, "get", lambda *_: busy)
    with pytest.raises(CapacityError, match="too busy") as caught:
        tiny.generate("x", constraint=Constraint.regex("ab"))
    assert caught.value.retryable


def test_a_prompt_must_leave_room_for_output(engine: Engine) -> None:
    limit = engine.info.max_model_len
    with pytest.raises(ContextLengthExceeded, match=f"{limit} tokens"):
        engine.generate([68] * limit)
    assert engine.generate([68] * (limit - 1), max_tokens=1).text == "A"


def test_a_chat_is_rendered_with_the_models_template(engine: Engine, tokenizer: Tokenizer) -> None:
    messages = [{"role": "user", "content": "hi"}]
    prompt_ids = engine.render_chat(messages)
    assert tokenizer.decode(prompt_ids, skip_special_tokens=False) == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    completion = engine.chat(messages, max_tokens=8)
    assert completion.text == "user\nhi"
    assert completion.num_prompt_tokens == len(prompt_ids)
    assert asyncio.run(engine.achat(messages, max_tokens=8)) == completion
    opened = engine.render_chat(
        [*messages, {"role": "assistant", "content": "yes, "}], continue_final_message=True
    )
    assert tokenizer.decode(opened, skip_special_tokens=True).endswith("yes, ")


def test_a_real_model_gives_the_same_alone_together_and_streamed(tiny: Engine) -> None:
    prompts = ["one", "two and more", "three"]
    together = tiny.generate(prompts, temperature=0, max_tokens=12)
    for prompt, completion in zip(prompts, together, strict=True):
        alone = tiny.generate(prompt, temperature=0, max_tokens=12)
        assert (alone.text, alone.token_ids) == (completion.text, completion.token_ids)
        assert alone.num_cached_tokens == len(prompt) - 1
        assert "".join(tiny.stream(prompt, temperature=0, max_tokens=12)) == alone.text


def test_a_seed_fixes_every_sample_and_samples_differ(tiny: Engine) -> None:
    first = tiny.generate("seed", n=4, seed=9, max_tokens=16)
    again = tiny.generate("seed", n=4, seed=9, max_tokens=16)
    assert [c.token_ids for c in first] == [c.token_ids for c in again]
    assert len({c.token_ids for c in first}) == 4


def test_a_pattern_ends_the_text_with_the_token_that_completes_it(tiny: Engine) -> None:
    only_a: dict[str, Any] = {
        "logit_bias": {3 + ord("a"): 100.0},
        "temperature": 0,
        "max_tokens": 9,
    }
    answer = tiny.generate("x", stop_regex=("b.", "a{3}"), **only_a)
    assert answer.text == "aaa" and answer.stop_reason == "a{3}"
    assert answer.finish_reason is FinishReason.STOP and len(answer.token_ids) == 3
    late = tiny.generate("x", stop_regex="a{3}", min_tokens=5, **only_a)
    assert late.text == "aaaaa"
    plain = tiny.generate("x", stop_regex="aa", **only_a)
    assert plain.text == "" and plain.stop_reason == "aa"
    with tiny.stream("x", stop_regex="a{2}", stop="aaaa", **only_a) as stream:
        assert "".join(stream) == "aa"
    with pytest.raises(InvalidRequest, match="stop_regex: .*lookaround") as caught:
        tiny.generate("x", stop_regex="(?=a)a")
    assert caught.value.param == "stop_regex"
    with pytest.raises(InvalidRequest, match="'a.' is in stop and in stop_regex") as caught:
        tiny.generate("x", stop=["b", "a."], stop_regex="a.")
    assert caught.value.param == "stop_regex"
    assert tiny.generate("x", stop="aa", stop_regex="aa", **only_a).stop_reason == "aa"


def test_a_stop_string_ends_the_text_before_it(tiny: Engine) -> None:
    whole = tiny.generate("stop", temperature=0, max_tokens=40, ignore_eos=True).text
    stop = whole[5:7]
    completion = tiny.generate("stop", temperature=0, max_tokens=40, ignore_eos=True, stop=stop)
    assert completion.text == whole[: whole.index(stop)]
    assert (completion.finish_reason, completion.stop_reason) == (FinishReason.STOP, stop)
    kept = tiny.generate(
        "stop",
        temperature=0,
        max_tokens=40,
        ignore_eos=True,
        stop=stop,
        include_stop_str_in_output=True,
    )
    assert kept.text == completion.text + stop


def test_an_end_token_is_counted_and_not_shown(tiny: Engine) -> None:
    completion = tiny.generate("end", max_tokens=9, logit_bias={END: 100.0}, temperature=0)
    assert (completion.text, completion.token_ids) == ("", (END,))
    assert (completion.finish_reason, completion.stop_reason) == (FinishReason.STOP, None)


def test_prompt_log_probabilities_have_one_entry_per_token_but_the_first(tiny: Engine) -> None:
    completion = tiny.generate("prompt", max_tokens=1, prompt_logprobs=2)
    assert completion.prompt_logprobs is not None
    assert len(completion.prompt_logprobs) == len("prompt") - 1


def test_a_prompt_of_several_samples_is_scored_once(tiny: Engine) -> None:
    prompt = "a prompt that several samples share, and that is scored"
    scored: dict[str, Any] = {"prompt_logprobs": 1, "prompt_logprobs_start": 5}
    scored |= {"max_tokens": 3, "seed": 1}
    alone = tiny.generate(prompt, **scored)
    tiny.reset_prefix_cache()
    before = tiny.stats.computed_tokens
    samples = tiny.generate([prompt, "b" + prompt], n=3, **scored)
    num_computed = tiny.stats.computed_tokens - before
    assert [one.prompt_logprobs for one in samples[:3]] == [alone.prompt_logprobs] * 3
    assert samples[0].token_ids == alone.token_ids and len(samples) == 6
    assert samples[3].prompt_logprobs == samples[5].prompt_logprobs != alone.prompt_logprobs
    assert num_computed < 2 * len(prompt) + 6 * 4


def test_resetting_the_cache_forgets_prefixes(tiny: Engine) -> None:
    tiny.generate("a prefix of some length", max_tokens=1)
    tiny.reset_prefix_cache()
    assert tiny.generate("a prefix of some length", max_tokens=1).num_cached_tokens == 0
    assert tiny.stats.blocks_total == tiny.info.num_blocks


def test_more_requests_than_may_wait_are_refused_all_or_none(
    core: Any, tokenizer: Tokenizer
) -> None:
    with Engine.from_core(lambda: core, tokenizer, max_live=3) as engine:
        assert engine.max_live == 3
        stream = engine.stream([NEVER, 5])
        with pytest.raises(QueueFull, match="max_queue_len"):
            engine.generate([5], n=3, max_tokens=1)
        assert len(engine.generate([5], n=2, max_tokens=1)) == 2
        stream.close()
        until(lambda: not core.live)
        assert len(engine.generate([5], n=3, max_tokens=1)) == 3


def test_the_bound_is_the_schedulers() -> None:
    config = EngineConfig(scheduler=SchedulerConfig(max_num_seqs=4, max_queue_len=6))
    assert config.scheduler.max_live == 10


def test_a_prefix_is_retained_for_a_session_and_released(tiny: Engine) -> None:
    ids = list(range(3, 40))
    tiny.generate(ids, max_tokens=1)
    tiny.retain(ids, "mine", 30)
    until(lambda: tiny.stats.blocks_retained == 2)
    tiny.release("mine")
    until(lambda: tiny.stats.blocks_retained == 0)
    tiny.retain(ids, "mine", 0.05)
    until(lambda: tiny.stats.retentions_expired == 1)  # though nothing wakes the engine
    tiny.generate(ids, max_tokens=1, session="mine", retain=30)
    assert tiny.stats.blocks_retained == 2
    tiny.release("mine")
    for arguments in ((ids, "s", 0.0), (ids, "s", 1e6), (ids, "", 1.0), ([], "s", 1.0)):
        with pytest.raises(RequestError):
            tiny.retain(*arguments)
    with pytest.raises(ContextLengthExceeded):
        tiny.retain([5] * 10_000, "s")
