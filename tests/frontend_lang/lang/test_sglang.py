"""Names, arguments and layouts that programs written for SGLang's frontend rely on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import ramet as sgl
from ramet import ProgramError, Unsupported, UsageError


@pytest.mark.parametrize("kind", [int, "int", float, "float"])
def test_what_follows_a_number_ends_it_and_the_callers_stops_stay(backend: Any, kind: Any) -> None:
    backend.reply = lambda prompt: "24 hours"

    @sgl.function
    def program(s: sgl.State) -> None:
        s += "A day has " + sgl.gen("hours", dtype=kind, stop="h") + "."

    state = program.run()
    assert state["hours"] == "24" and state.text() == "A day has 24."
    params = backend.requests[0].params
    assert params.stop[:2] == ("h", "." if "int" in str(kind) else " ")
    assert {" ", "\n", ",", "}"} <= set(params.stop)
    for text in ("24", "-3", "24 hours", "24,", "24\n"):
        assert re.fullmatch(params.regex, text)
    for text in ("", "hours", " 24", "24h"):
        assert not re.fullmatch(params.regex, text)


@pytest.mark.parametrize("kind", [list, "list", None.__class__])
def test_other_types_have_no_regex(kind: Any) -> None:
    with pytest.raises(UsageError, match="dtype must be"):
        sgl.gen("x", dtype=kind)


def test_arguments_may_be_given_by_position(backend: Any) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        s += sgl.gen("a", 5, 2, 3, "x") + sgl.gen_int("b", 4, 2) + sgl.gen_string("c", 6, 1, ["y"])

    program.run()
    got = [(r.params.max_tokens, r.params.min_tokens, r.params.n) for r in backend.requests]
    assert got == [(5, 2, 3), (4, None, 2), (6, None, 1)]
    assert [r.params.stop for r in backend.requests[::2]] == [("x",), ("y",)]


def test_a_runs_parameters_have_sglangs_names_too(backend: Any) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        s += sgl.gen("x")

    state = program.run(n=2, min_new_tokens=1, return_logprob=True, return_text_in_logprobs=True)
    assert state["x"] == ["ok", "ok"] and backend.requests[0].params.logprobs == 0
    program.run(stop_regex="x.", logprob_start_len=0)
    params = backend.requests[1].params
    assert params.stop_regex == ("x.",) and params.logprob_start_len == 0
    program.run(stop_regex="")
    assert backend.requests[2].params.stop_regex == ()
    assert params.scored_from is None  # Without return_logprob it means nothing, as there.


@pytest.mark.parametrize("how", [{"regex": "a+"}, {"dtype": bool}, {"json_schema": "{}"}])
def test_a_form_survives_the_runs_parameters_and_a_fork(backend: Any, how: dict[str, Any]) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        s += sgl.gen("x", **how)
        (branch,) = s.fork(1)
        branch += sgl.gen("y", **how)

    program.run(temperature=0.5, stop="!")
    first, second = (request.params for request in backend.requests)
    assert first == second and first.constraint is not None and first.temperature == 0.5


def test_a_choice_takes_no_limit(backend: Any) -> None:
    with pytest.raises(UsageError, match="scored, not sampled"):
        sgl.gen("x", 5, choices=["a", "b"])


def test_facts_have_sglangs_layout(backend: Any) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        s += "a" + sgl.gen("x", return_logprob=True, top_logprobs_num=2)
        s += sgl.select("y", ["b", "c"])

    state = program.run()
    facts = state.get_meta_info("x")
    assert facts["output_token_logprobs"] == [(-0.5, 111, "o"), (-0.5, 107, "k")]
    assert facts["output_top_logprobs"][1] == [(-0.5, 107, "k")] * 2
    assert facts["output_token_logprobs_length"] == 2
    assert state.get_meta_info("y")["input_token_logprobs"] == [[(-1.0, 0, "t")]] * 2


async def test_who_follows_gets_the_log_probabilities_of_each_piece(backend: Any) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        s += "a" + sgl.gen("x", return_logprob=True)

    state = program.run(stream=True)
    seen = [pair async for pair in state.text_async_iter("x", return_meta_data=True)]
    assert [text for text, _ in seen] == ["o", "k"]
    assert [facts["output_token_logprobs"] for _, facts in seen] == [
        [(-0.5, 111, "o")],
        [(-0.5, 107, "k")],
    ]
    assert [facts["completion_tokens"] for _, facts in seen] == [1, 2]


def test_without_tokens_a_gen_looks_at_what_would_come(backend: Any) -> None:
    backend.reply = lambda prompt: "z"

    @sgl.function
    def program(s: sgl.State) -> None:
        s += "ab" + sgl.gen("look", max_tokens=0, top_logprobs_num=3)
        s += "c" + sgl.gen("x")

    state = program.run(stream=True)
    assert "".join(state.text_iter()) == state.text() == "abcz"
    assert state["look"] == ""
    assert [text for _, _, text in state.meta("look")["output_top_logprobs"][0]] == ["z"] * 3
    assert backend.requests[1].prompt.ids == tuple(b"ab")


def test_a_states_variables_are_found_under_sglangs_names(backend: Any) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        s += sgl.gen("x") + sgl.gen("y")

    state = program.run()
    assert state.variables == {"x": "ok", "y": "ok"}
    assert state.stream_executor.variables.keys() == {"x", "y"}
    assert state.stream_executor.text() == "okok"


def test_a_program_keeps_its_function_and_its_speculation_when_bound() -> None:
    def body(s: sgl.State, a: str) -> None:
        s += a

    program = sgl.function(body, num_api_spec_tokens=32)
    bound = program.bind(a="x").bind(a="y")
    assert program.func is bound.func is body
    assert bound.num_api_spec_tokens == 32
    with pytest.raises(UsageError, match="at least 1"):
        sgl.function(num_api_spec_tokens=0)


def test_thinking_is_kept_out_of_the_conversation_and_in_the_tokens(backend: Any) -> None:
    thoughts = iter(["<think>hm</think>\n\nyes", "no thought"])
    backend.reply = lambda prompt: next(thoughts)

    @sgl.function
    def program(s: sgl.State) -> None:
        s += sgl.user("q")
        s += sgl.assistant(sgl.separate_reasoning(sgl.gen("x", n=2), model_type="qwen3"))
        s += sgl.user("r")

    state = program.run()
    assert state["x"] == ["yes", "no thought"] and state["x_reasoning_content"] == ["hm", ""]
    assert state.messages()[1] == {"role": "assistant", "content": "yes"}
    assert "<think>hm</think>" in state.text()


@pytest.mark.parametrize("attachment", [sgl.image, sgl.video])
def test_pictures_are_refused_before_anything_is_sent(backend: Any, attachment: Any) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        s += sgl.user(attachment("cat.png") + "What is it?")
        s += sgl.assistant(sgl.gen("x"))

    with pytest.raises(UsageError, match="not supported: the models served here read text"):
        program.run()
    assert backend.requests == []


def test_what_every_run_begins_with_is_computed_ahead(backend: Any) -> None:
    @sgl.function
    def program(s: sgl.State, shots: str, question: str) -> None:
        s += sgl.system("Be brief.")
        s += sgl.user(shots + "Q: " + question) + sgl.assistant(sgl.gen("x"))

    bound = program.bind(shots="Q: 1? A: 1. ")
    num_tokens = bound.cache()
    (request,) = backend.requests
    start = "<system>Be brief.</system>\n<user>Q: 1? A: 1. Q: "
    assert request.prompt.whole == start and num_tokens == len(start)
    assert request.params.max_tokens == 0
    assert bound.run(question="2?").meta("x")["cached_tokens"] == len(start)


def test_a_program_without_a_constant_start_sends_nothing(backend: Any) -> None:
    @sgl.function
    def program(s: sgl.State, question: str) -> None:
        s += question + sgl.gen("x")

    @sgl.function
    async def waits(s: sgl.State) -> None:
        s += "x"

    assert program.cache() == 0 and backend.requests == []
    with pytest.raises(UsageError, match="async"):
        waits.cache()


def test_a_text_api_has_nothing_to_fill(backend: Any) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        s += "x" + sgl.gen("x")

    with pytest.raises(Unsupported, match="no cache"):
        program.cache(sgl.OpenAI("m", "http://127.0.0.1:9/v1"))


def test_backends_take_sglangs_names_for_the_model() -> None:
    with pytest.raises(UsageError, match="the same"):
        sgl.Runtime("a", model_path="b")
    with pytest.raises(UsageError, match="model_name"):
        sgl.OpenAI(base_url="http://127.0.0.1:9/v1")
    with pytest.raises(UsageError, match="model_name"):
        sgl.OpenAI("a", "http://127.0.0.1:9/v1", model_name="b")


def test_a_joins_lists_nest_as_branches_do(backend: Any) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        outer = s.fork(2)
        inner = [branch.fork(3) for branch in outer]
        for group in inner:
            group += sgl.gen("x")
        for group in (*inner, outer):
            group.join()

    assert program.run()["x"] == [["ok"] * 3] * 2


def test_the_same_branch_again_in_a_loop_keeps_the_first_value(backend: Any) -> None:
    answers = iter("abc")
    backend.reply = lambda prompt: next(answers)

    @sgl.function
    def program(s: sgl.State) -> None:
        for turn in range(3):
            s += f"{turn}:"
            aside = s.fork(1)
            aside[0] += sgl.gen("thought")
            assert aside[0]["thought"] == "abc"[turn]
            aside.join()

    assert program.run()["thought"] == ["a"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [("Engine", "ramet.runtime.Engine"), ("global_config", "no settings"), ("Crusoe", "OpenAI")],
)
def test_names_that_are_not_here_say_what_is(name: str, hint: str) -> None:
    with pytest.raises(AttributeError, match=f"{name!r}: .*{hint}"):
        getattr(sgl, name)
    with pytest.raises(AttributeError, match="'nothing'$"):
        getattr(sgl, "noth" + "ing")


def test_a_default_backend_can_be_taken_back(backend: Any) -> None:
    sgl.set_default_backend(None)
    with pytest.raises(UsageError, match="no backend"):
        sgl.flush_cache()


def test_a_failing_peek_is_an_error_like_any_other(backend: Any) -> None:
    def reply(prompt: str) -> str:
        raise RuntimeError("no")

    backend.reply = reply

    @sgl.function
    def program(s: sgl.State) -> None:
        s += "a" + sgl.gen("look", max_tokens=0, top_logprobs_num=3)

    with pytest.raises(ProgramError, match="RuntimeError: no"):
        program.run()


def test_whether_a_state_has_a_thread_may_be_said_and_means_nothing(backend: Any) -> None:
    @sgl.function
    def program(s: sgl.State, use: bool = False) -> None:
        s += "a" + sgl.gen("x")

    assert program.run(use_thread=False)["x"] == program.run(use_thread=True)["x"] == "ok"

    @sgl.function
    def own(s: sgl.State, use_thread: str) -> None:
        s += use_thread

    assert own.run(use_thread="mine").text() == "mine"


def test_a_template_of_the_frontend_is_refused_with_the_place_of_the_models(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"chat_template_name='llama-3'.*chat_template\.jinja"):
        sgl.RuntimeEndpoint("http://127.0.0.1:1", chat_template_name="llama-3")
    with sgl.RuntimeEndpoint("http://127.0.0.1:1", None, str(tmp_path / "none.pem")) as endpoint:
        with pytest.raises(FileNotFoundError):
            endpoint.get_server_info()
