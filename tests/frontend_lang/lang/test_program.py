"""Programs as SGLang's users write them, on a backend that answers from a script."""

from __future__ import annotations

from typing import Any, Literal

import pytest

import ramet as sgl
from ramet import UnknownVariable, UsageError
from ramet.lang.nodes import Gen


def test_text_and_answers_follow_each_other(backend: Any) -> None:
    @sgl.function
    def program(s: sgl.State, question: str) -> str:
        s += "Q: " + question + "\nA:" + sgl.gen("answer", stop="\n") + "\n"
        s += "Sure? " + sgl.gen("sure")
        return "done"

    backend.reply = lambda prompt: " yes\nmore" if prompt.endswith("A:") else "quite"
    state = program.run(question="x?")
    assert state["answer"] == " yes" and state["sure"] == "quite"
    assert state.text() == "Q: x?\nA: yes\nSure? quite"
    assert state.ret_value == "done"
    assert state.meta("answer")["stop_reason"] == "\n"
    assert "answer" in state and "nope" not in state
    with pytest.raises(UnknownVariable, match="'answer', 'sure'"):
        state["nope"]
    with pytest.raises(KeyError):
        state["nope"]


def test_the_model_goes_on_from_its_own_tokens_and_the_whole_history_is_cached(
    backend: Any,
) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        for turn in range(4):
            s += sgl.user(f"question {turn}")
            s += sgl.assistant(sgl.gen(f"answer{turn}"))

    state = program.run()
    for turn in range(1, 4):
        before = state.meta(f"answer{turn - 1}")
        history = before["prompt_tokens"] + before["completion_tokens"]
        assert state.meta(f"answer{turn}")["cached_tokens"] == history
    ids = [request.prompt.ids for request in backend.requests]
    assert all(later[: len(early)] == early for early, later in zip(ids, ids[1:], strict=False))
    assert len(ids[-1]) == before["prompt_tokens"] + before["completion_tokens"]


def test_roles_are_written_as_the_models_template_writes_them(backend: Any) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        s += sgl.system("be brief")
        with s.user():
            s += "hi "
            s += "there"
        s += sgl.assistant_begin() + sgl.gen("a") + sgl.assistant_end()
        s.user("bye")
        with s.assistant():
            s += "Well, " + sgl.gen("b")

    state = program.run()
    assert state.text() == (
        "<system>be brief</system>\n<user>hi there</user>\n<assistant>ok</assistant>\n"
        "<user>bye</user>\n<assistant>Well, ok</assistant>\n"
    )
    assert state.messages() == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi there"},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": "bye"},
        {"role": "assistant", "content": "Well, ok"},
    ]
    assert backend.requests[0].prompt.whole.endswith("<user>hi there</user>\n<assistant>")


def test_branches_start_from_the_same_text_and_join_as_lists(backend: Any) -> None:
    backend.reply = lambda prompt: prompt[-1].upper()

    @sgl.function
    def program(s: sgl.State) -> None:
        s += "start "
        forks = s.fork(3)
        for i in range(3):
            forks[i] += "abc"[i] + sgl.gen("letter")
        forks.join()
        s += "end " + sgl.gen("last")

    state = program.run()
    assert state["letter"] == ["A", "B", "C"]
    assert state.text() == "start end  "
    assert [b["prompt_tokens"] for b in state.meta("letter")["branches"]] == [7, 7, 7]


def test_a_group_takes_one_thing_for_all_a_list_or_a_function(backend: Any) -> None:
    backend.reply = lambda prompt: prompt[-2:]

    @sgl.function
    def program(s: sgl.State) -> None:
        with s.fork(2) as forks:
            forks += "x"
            forks += ["a", "b"]
            forks += lambda i: str(i)
            forks += sgl.gen("end")
            assert len(forks) == 2 and [f["end"] for f in forks] == ["a0", "b1"]

    assert program.run()["end"] == ["a0", "b1"]


def test_branches_can_be_appended(backend: Any) -> None:
    backend.reply = lambda prompt: f"<{prompt[-1]}>"

    @sgl.function
    def program(s: sgl.State) -> None:
        s += "0 "
        forks = s.fork(2)
        forks += lambda i: f" {i}" + sgl.gen("x")
        forks.join("concate_and_append")
        s += "!" + sgl.gen("last")

    state = program.run()
    assert state.text() == "0  0<0> 1<1>!<!>"
    # The first branch's own tokens were taken over: its text was not tokenized again.
    assert bytes(backend.requests[-1].prompt.ids) == b"0  0<0>"


def test_a_copy_is_a_branch_for_a_block(backend: Any) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        s += "a"
        with s.copy() as aside:
            aside += "b" + sgl.gen("x")
            assert aside.text() == "abok"
        s += "c"

    state = program.run()
    assert state["x"] == ["ok"] and state.text() == "ac"


def test_a_scope_collects_what_is_said_in_it(backend: Any) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        s += "a"
        with s.var_scope("part"):
            s += "b" + sgl.gen("x") + "c"
        s += "d"

    assert program.run()["part"] == "bokc"


def test_a_branch_reads_its_parents_variables_and_may_use_their_names(backend: Any) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        s += sgl.gen("x")
        (branch,) = s.fork(1)
        assert branch["x"] == "ok"
        backend.reply = lambda prompt: "other"
        branch += sgl.gen("x")
        assert branch["x"] == "other" and s["x"] == "ok"

    program.run()


def test_several_samples_are_a_list_and_the_first_is_gone_on_with(backend: Any) -> None:
    answers = iter(["one", "two", "three"])
    backend.reply = lambda prompt: next(answers)

    @sgl.function
    def program(s: sgl.State) -> None:
        s += "n: " + sgl.gen("x", n=3)

    state = program.run()
    assert state["x"] == ["one", "two", "three"] and state.text() == "n: one"


def test_parameters_of_the_run_hold_where_a_gen_says_nothing(backend: Any) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        s += sgl.gen("a") + sgl.gen("b", max_tokens=5, temperature=0.5, stop=["x"])

    program.run(temperature=0, top_p=0.9)
    program.run(max_new_tokens=7)
    got = [(r.params.max_tokens, r.params.temperature, r.params.top_p) for r in backend.requests]
    assert got == [(128, 0, 0.9), (5, 0.5, 0.9), (7, None, None), (5, 0.5, None)]


def test_arguments_are_bound_once(backend: Any) -> None:
    @sgl.function
    def program(s: sgl.State, a: str, b: str = "B") -> None:
        s += a + b

    assert program.bind(a="A").run().text() == "AB"
    assert program.bind(a="A").run(b="C").text() == "AC"
    with pytest.raises(UsageError, match="no argument 'c'"):
        program.bind(c=1)
    with pytest.raises(TypeError):
        program.run()


def test_programs_are_parts_of_programs(backend: Any) -> None:
    @sgl.function
    def part(s: sgl.State, x: str) -> str:
        s += x + sgl.gen(x)
        return "returned"

    @sgl.function
    def program(s: sgl.State) -> None:
        assert part(s, x="p") == "returned"
        s += lambda state: part(state, "q")

    assert program.run().text() == "pokqok"
    assert part("z").text() == "zok"


def test_a_name_is_used_once(backend: Any) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        s += sgl.gen("x")
        s += sgl.gen("x")

    with pytest.raises(UsageError, match="'x' exists"):
        program.run()


def test_variables_can_be_set(backend: Any) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        s["n"] = 1
        s["n"] += 1
        s.set_var("m", [s.get_var("n")])

    state = program.run()
    assert state["m"] == [2]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda s: s.fork(0),
        lambda s: s.fork(2, position_ids_offset=[1]),
        lambda s: s.fork(1).join("nope"),
        lambda s: sgl.gen("x", nope=1),
        lambda s: sgl.gen("x", n=0),
        lambda s: sgl.gen("x", type=Literal[1, "1"]),
        lambda s: sgl.gen("x", choices="abc"),
        lambda s: sgl.gen("x", timeout=0),
        lambda s: sgl.gen("x", regex="a", json_schema="{}"),
        lambda s: sgl.gen("x", json_schema="{"),
        lambda s: sgl.gen("x", max_tokens=1, max_new_tokens=1),
        lambda s: sgl.gen("x", choices=["a"], temperature=1),
        lambda s: sgl.gen("x", choices_method=sgl.total_likelihood),
        lambda s: sgl.select("x", []),
        lambda s: sgl.select("x", ["a", "a"]),
        lambda s: sgl.select("x", ["a"], temperature=0.5),
        lambda s: sgl.image("x.png"),
        lambda s: sgl.video("x.mp4", 3),
        lambda s: s.__iadd__(5),
        lambda s: sgl.separate_reasoning(sgl.user("x")),
        lambda s: sgl.tool_loop("x", []),
    ],
)
def test_what_is_written_wrongly_is_said_at_once(backend: Any, wrong: Any) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        with pytest.raises(UsageError):
            wrong(s)

    program.run()
    assert backend.requests == []


@pytest.mark.parametrize(
    "how",
    [
        {"name": 100},
        {"max_tokens": "5"},
        {"max_tokens": 2.5},
        {"temperature": "hot"},
        {"stop": 5},
        {"stop": ["a", 5]},
        {"stop_token_ids": "5"},
        {"regex": 5},
        {"regex": ("a", "b")},
        {"max_tokens": (1, 2)},
        {"max_tokens": ()},
        {"max_tokens": True},
        {"temperature": (0.5,)},
        {"temperature": False},
        {"logit_bias": ({},)},
        {"stop_token_ids": [True]},
        {"ignore_eos": "no"},
    ],
)
def test_values_of_a_wrong_type_are_told_by_name(how: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(how))} must be"):
        sgl.gen(**how)


def test_a_list_of_texts_or_ids_may_be_any_collection() -> None:
    node = sgl.gen(stop=("a", "b"), stop_token_ids={5}, stop_regex=["c"])
    assert isinstance(node, Gen)
    assert (node.params.stop, node.params.stop_token_ids) == (("a", "b"), (5,))
    assert node.params.stop_regex == ("c",)


def test_without_a_backend_there_is_advice() -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        s += "x"

    with pytest.raises(UsageError, match="set_default_backend"):
        program.run()
    with pytest.raises(UsageError, match="no backend"):
        program.run(backend=object())  # type: ignore[arg-type]


def test_thinking_is_kept_apart(backend: Any) -> None:
    backend.reply = lambda prompt: "<think>hm\n</think>\n\nyes"

    @sgl.function
    def program(s: sgl.State) -> None:
        s += sgl.separate_reasoning(sgl.gen("x"), model_type="qwen3")

    state = program.run()
    assert state["x"] == "yes" and state["x_reasoning_content"] == "hm"


def test_a_finished_program_can_be_read_and_not_gone_on_with(backend: Any) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        s += "a"

    state = program.run()
    with pytest.raises(UsageError, match="ended"):
        state += "b"
    assert state.text() == "a"


def test_branches_are_appended_once(backend: Any) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        forks = s.fork(2)
        forks += ["a", "b"]
        forks.join("concate_and_append")
        forks.join()
        with pytest.raises(UsageError, match="appended already"):
            forks.join("concate_and_append")

    assert program.run().text() == "ab"


def test_branches_whose_variables_were_gathered_can_be_appended(backend: Any) -> None:
    def body(s: sgl.State) -> None:
        forks = s.fork(2)
        forks += ["a", "b"]
        forks += sgl.gen("x")
        forks.join()
        forks.join("concate_and_append")
        with pytest.raises(UsageError, match="appended already"):
            forks.join("concate_and_append")

    state = sgl.function(body).run()
    assert state.text() == "aokbok" and state["x"] == ["ok", "ok"]
    lines = str(sgl.function(body).trace()).splitlines()
    assert [line.strip() for line in lines[-2:]] == [
        "join(gather_variable)",
        "join(concate_and_append)",
    ]


def test_a_trace_minds_that_a_branch_was_joined() -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        forks = s.fork(1)
        forks.join()
        with pytest.raises(UsageError, match="joined"):
            forks += "x"
        with pytest.raises(UsageError, match="joined"):
            forks[0].fork(2)

    assert "join(gather_variable)" in str(program.trace())


def test_a_trace_tells_two_forks_apart_that_are_alike() -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        s.fork(2)
        s.fork(2).join()

    assert str(program.trace()).count("join(") == 1


def test_a_branch_that_was_joined_takes_nothing_more(backend: Any) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        forks = s.fork(1)
        forks.join()
        with pytest.raises(UsageError, match="joined"):
            forks[0] += "x"

    program.run()
