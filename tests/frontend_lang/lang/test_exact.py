"""Tokens travel: the same programs in this process and over HTTP, on a model of random weights."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pytest

import ramet as sgl
from ramet import ProgramError, RuntimeEndpoint
from ramet.runtime import Completion, RametError
from ramet.runtime.request import FinishReason


@sgl.function
def talk(s: sgl.State, num_turns: int, topic: str) -> None:
    s += sgl.system("You answer about " + topic)
    for turn in range(num_turns):
        s += sgl.user(f"Question {turn}?")
        s += sgl.assistant(sgl.gen(f"answer{turn}", max_tokens=12, ignore_eos=True))


def test_every_turn_finds_the_whole_history_in_the_cache(exact: Any) -> None:
    state = talk.run(
        num_turns=4, topic=f"cache {type(exact)}", backend=exact, temperature=1, seed=3
    )
    for turn in range(1, 4):
        before, now = state.meta(f"answer{turn - 1}"), state.meta(f"answer{turn}")
        history = before["prompt_tokens"] + before["completion_tokens"]
        # The last token was sampled and never run, so its KV is not there yet.
        assert now["cached_tokens"] == history - 1
        assert now["prompt_tokens"] > history


def test_both_backends_say_the_same(runtime: Any, endpoint: Any) -> None:
    texts = [
        talk.run(num_turns=3, topic="same", backend=backend, temperature=0).text()
        for backend in (runtime, endpoint)
    ]
    assert texts[0] == texts[1]
    assert texts[0].startswith("<|im_start|>system\nYou answer about same<|im_end|>\n<|im_start|>")


def test_several_gens_say_what_one_would(exact: Any) -> None:
    @sgl.function
    def program(s: sgl.State, pieces: int) -> None:
        s += "Once upon the time"
        for i in range(pieces):
            s += sgl.gen(f"x{i}", max_tokens=40 // pieces, ignore_eos=True)

    whole, parts = (program.run(pieces=n, backend=exact, temperature=0) for n in (1, 8))
    assert whole["x0"] == "".join(parts[f"x{i}"] for i in range(8))
    assert parts.text() == whole.text()


def test_a_fork_shares_what_its_parent_computed(exact: Any) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        s += "The parent has said " + "many words " * 10 + sgl.gen("p", max_tokens=8)
        forks = s.fork(16)
        forks += lambda i: f" {i}:"
        forks += sgl.gen("x", max_tokens=4)
        forks.join()

    state = program.run(backend=exact, temperature=0, ignore_eos=True)
    parent = state.meta("p")
    assert len(state["x"]) == 16
    for branch in state.meta("x")["branches"]:
        assert branch["cached_tokens"] >= parent["prompt_tokens"] + 8 - 1


async def test_a_fork_over_http_is_one_call(endpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    plain = endpoint._http.events

    def counting(path: str, body: Any, *rest: Any) -> Any:
        calls.append(len(body["requests"]))
        return plain(path, body, *rest)

    monkeypatch.setattr(endpoint._http, "events", counting)

    @sgl.function
    def program(s: sgl.State) -> None:
        s += "x"
        forks = s.fork(16)
        forks += sgl.gen("y", max_tokens=2)
        forks.join()
        s += sgl.select("z", [str(i) for i in range(10)])

    await program.arun(backend=endpoint)
    assert calls == [16, 1]


def reference(runtime: Any, ids: list[int], start: int) -> list[float]:
    """Log-probabilities of the tokens from `start`, from next-token distributions one by one."""
    values = []
    for end in range(start, len(ids)):
        done = runtime.engine.generate(ids[:end], max_tokens=1, logprobs=0, temperature=0,
                                       logit_bias={ids[end]: 100.0})  # fmt: skip
        (entry,) = done.logprobs
        assert entry.token_id == ids[end]
        values.append(entry.logprob)
    return values


@pytest.mark.parametrize("lead", ["Is it so?", "Is it so? ", "Is it so?\n"])
def test_options_are_scored_by_the_chain_rule_over_the_joint_tokens(
    exact: Any, runtime: Any, lead: str
) -> None:
    options = ["Yes", "YesNo", "No", "NoYes", "a", ""]

    @sgl.function
    def program(s: sgl.State, choices: list[str], method: Any) -> None:
        s += lead + sgl.select("x", choices, choices_method=method)

    state = program.run(choices=options, method=sgl.total_likelihood, backend=exact)
    scored = {option.text: option for option in state.meta("x")["options"]}
    encode = runtime.engine.tokenizer.encode
    lengths = {len(encode(lead + o, True)) - len(scored[o].token_ids) for o in options}
    assert len(lengths) == 1
    (start,) = lengths
    for option in options:
        ids = encode(lead + option, True)
        assert list(scored[option].token_ids) == ids[start:]
        assert scored[option].logprobs == pytest.approx(reference(runtime, ids, start), abs=1e-3)
        assert state.meta("x")["scores"][option] == pytest.approx(
            math.fsum(scored[option].logprobs), abs=1e-5
        )
    winners = {
        program.run(choices=list(order), method=sgl.total_likelihood, backend=exact)["x"]
        for order in itertools.islice(itertools.permutations(options), 0, 120, 17)
    }
    assert winners == {state["x"]}


@pytest.mark.parametrize(
    "method",
    [
        sgl.token_length_normalized,
        sgl.greedy_token_selection,
        sgl.unconditional_likelihood_normalized,
        sgl.total_likelihood,
    ],
)
def test_a_select_finds_the_history_in_the_cache_and_gives_all_scores(
    exact: Any, method: Any
) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        s += f"A long enough history of {method} " * 3 + sgl.gen("x", max_tokens=8)
        s += " so: " + sgl.select("y", ["the first", "the second"], choices_method=method)
        s += "." + sgl.gen("z", max_tokens=4)

    state = program.run(backend=exact, temperature=0, ignore_eos=True)
    x, y = state.meta("x"), state.meta("y")
    assert y["cached_tokens"] >= 2 * (x["prompt_tokens"] + x["completion_tokens"] - 1)
    assert set(y["scores"]) == {"the first", "the second"}
    assert state["y"] == max(y["scores"], key=y["scores"].__getitem__)
    # What the select has computed of the option that it took is there for the next gen.
    assert state.meta("z")["cached_tokens"] > y["prompt_tokens"] // 2 - 5


def test_a_stop_string_cuts_the_text_and_the_tokens_go_on(exact: Any) -> None:
    @sgl.function
    def program(s: sgl.State, stop: str | None) -> None:
        s += "Tell me" + sgl.gen("x", max_tokens=24, stop=stop) + "|" + sgl.gen("y", max_tokens=4)

    def run(stop: str | None) -> sgl.State:
        return program.run(stop=stop, backend=exact, temperature=0, ignore_eos=True)

    free = run(None)["x"]
    stop = free[9:11]
    state = run(stop)
    assert state["x"] == free.partition(stop)[0]
    assert state.meta("x")["stop_reason"] == stop
    assert state.text() == "Tell me" + state["x"] + "|" + state["y"]
    assert state.meta("y")["cached_tokens"] >= state.meta("x")["prompt_tokens"]


def test_branches_that_are_appended_keep_the_first_ones_tokens(exact: Any) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        s += f"Points of {type(exact).__name__}:"
        forks = s.fork(2)
        forks += sgl.gen("x", max_tokens=10)
        first = forks[0].meta("x")
        forks.join("concate_and_append")
        s += " End" + sgl.gen("y", max_tokens=2)
        s["history"] = first["prompt_tokens"] + first["completion_tokens"]

    state = program.run(backend=exact, temperature=0, ignore_eos=True)
    assert state.meta("y")["cached_tokens"] >= state["history"] - 1


def test_text_is_followed_and_samples_and_log_probabilities_come(exact: Any) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        s += "Say" + sgl.gen("x", max_tokens=6, logprobs=2)
        s += "!" + sgl.gen("y", n=2, max_tokens=3, temperature=1, seed=1)

    state = program.run(backend=exact, temperature=0, ignore_eos=True, stream=True)
    assert "".join(state.text_iter("x")) == state["x"]
    assert "".join(state.text_iter()) == state.text()
    assert len(state.meta("x")["logprobs"]) == 6 and len(state["y"]) == 2
    assert len(state.meta("x")["logprobs"][0]["top_ids"]) == 2


def test_the_models_template_lists_tools(exact: Any) -> None:
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @sgl.function
    def program(s: sgl.State) -> None:
        s += sgl.user("2 + 3?")
        s += sgl.assistant(sgl.gen("x", max_tokens=4, tools=[add]))
        s += sgl.user("And?") + sgl.assistant(sgl.gen("y", max_tokens=4))

    state = program.run(backend=exact, temperature=0, ignore_eos=True)
    start = "<|im_start|>tools\nadd as <tool_call><|im_end|>\n<|im_start|>user\n2 + 3?<|im_end|>"
    assert state.text().startswith(start) and state.text().count("tools") == 1
    before = state.meta("x")
    assert state.meta("y")["cached_tokens"] >= before["prompt_tokens"] + 3
    assert [message["role"] for message in state.messages()] == ["user", "assistant"] * 2


async def test_the_template_gets_tools_as_a_server_gives_them(
    runtime: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Template:
        lists_tools = True

        def render(self, messages: Any, *, tools: Any, add_generation_prompt: bool) -> str:
            return json.dumps(tools)

    def tool(name: str, **members: Any) -> dict[str, Any]:
        return {"type": "function", "function": {"name": name, **members}}

    monkeypatch.setattr(runtime, "_template", Template())
    text = await runtime._render((), True, [tool("f", strict=True)])
    assert json.loads(text) == [tool("f", parameters={"type": "object", "properties": {}})]
    with pytest.raises(RametError, match="another tool"):
        await runtime._render((), True, [tool("f"), tool("f")])


def test_wrong_values_and_long_prompts_are_said_by_name(exact: Any) -> None:
    @sgl.function
    def program(s: sgl.State, text: str, temperature: float) -> None:
        s += text + sgl.gen("x", temperature=temperature)

    with pytest.raises(ProgramError, match="temperature"):
        program.run("x", 9.0, backend=exact)
    with pytest.raises(ProgramError, match="maximum context length"):
        program.run("x" * 5000, 1.0, backend=exact)


def test_a_server_that_is_not_there_is_an_error() -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        s += "x" + sgl.gen("x")

    backend = RuntimeEndpoint("http://127.0.0.1:9")
    with pytest.raises(ProgramError, match="BackendError"):
        program.run(backend=backend)
    backend.close()


def test_backends_tell_of_themselves_and_forget(exact: Any) -> None:
    assert sgl.get_server_info(exact)
    state = talk.run(num_turns=1, topic="forgetting", backend=exact)
    sgl.flush_cache(exact)
    again = talk.run(num_turns=1, topic="forgetting", backend=exact)
    assert state.meta("answer0")["prompt_tokens"] == again.meta("answer0")["prompt_tokens"]
    assert again.meta("answer0")["cached_tokens"] == 0


@pytest.mark.parametrize(
    ("how", "fits"),
    [
        ({"regex": "[ab]{3}x"}, lambda text: set(text[:3]) <= {"a", "b"} and text[3:] == "x"),
        ({"dtype": int}, lambda text: int(text) is not None),
        ({"type": bool}, lambda value: value in (True, False)),
        ({"type": list[bool]}, lambda value: isinstance(value, list)),
    ],
)
def test_answers_are_held_to_a_form(exact: Any, how: dict[str, Any], fits: Any) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        s += "Value: " + sgl.gen("x", max_tokens=60, **how) + "." + sgl.gen("y", max_tokens=2)

    state = program.run(backend=exact, temperature=1, seed=5)
    assert fits(state["x"])
    assert state.meta("y")["cached_tokens"] >= state.meta("x")["prompt_tokens"]


def test_a_pattern_ends_the_answer_and_its_text_stays(exact: Any) -> None:
    (letter,) = exact_ids(exact, "b")

    @sgl.function
    def program(s: sgl.State) -> None:
        s += "a" + sgl.gen("x", max_tokens=9, logit_bias={letter: 100.0})
        s += "!" + sgl.gen("y", max_tokens=2, stop_regex=(), logit_bias={letter: 100.0})

    state = program.run(backend=exact, temperature=0, stop_regex="b{3}")
    assert state["x"] == "bbb" and state.meta("x")["stop_reason"] == "b{3}"
    assert state["y"] == "bb"
    # All of its tokens stand, so that the next prompt is found but for the newest of them.
    before, now = state.meta("x"), state.meta("y")
    assert now["cached_tokens"] == before["prompt_tokens"] + before["completion_tokens"] - 1


def test_a_pattern_keeps_a_token_that_ends_inside_a_character(
    runtime: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tuple(runtime.engine.tokenizer.encode("bé", False)[:-1])
    prompts: list[list[int]] = []

    async def agenerate(ids: list[int], **_: Any) -> list[Completion]:
        prompts.append(ids)
        return [
            Completion(
                text="b\ufffd",
                token_ids=said,
                finish_reason=FinishReason.STOP,
                stop_reason="b+",
                num_prompt_tokens=len(ids),
                num_cached_tokens=0,
                logprobs=None,
                prompt_logprobs=None,
            )
        ]

    monkeypatch.setattr(runtime.engine, "agenerate", agenerate)

    @sgl.function
    def program(s: sgl.State) -> None:
        s += "a" + sgl.gen("x", stop_regex="b+") + sgl.gen("y", stop_regex="b+")

    program.run(backend=runtime)
    assert prompts[1] == [*prompts[0], *said]


def test_the_prompt_is_scored_from_where_the_program_says(exact: Any) -> None:
    @sgl.function
    def program(s: sgl.State, start: int) -> None:
        s += "abcd"
        s += sgl.gen("x", max_tokens=2, top_logprobs_num=2, logprob_start_len=start)

    runs = [program.run(start=n, backend=exact, temperature=0) for n in (0, 2, -1)]
    whole, part, none = (state.meta("x") for state in runs)
    tokens, tops = whole["input_token_logprobs"], whole["input_top_logprobs"]
    assert [text for _, _, text in tokens] == list("abcd") and tokens[0][0] is None
    assert all(value < 0 for value, _, _ in tokens[1:])
    assert tops[0] is None and [len(top) for top in tops[1:]] == [2, 2, 2]
    assert part["input_token_logprobs"] == [(None, *tokens[2][1:]), tokens[3]]
    assert part["cached_tokens"] <= 2
    assert "input_token_logprobs" not in none and "output_token_logprobs" in none
    silent = program.run(start=0, backend=exact, return_logprob=False)
    assert "output_token_logprobs" in silent.meta("x")  # What the gen says goes before the run.
    with pytest.raises(ProgramError, match="logprob_start_len is 4, and the prompt has 4 tokens"):
        program.run(start=4, backend=exact)


def test_of_several_samples_one_brings_the_scores_of_the_prompt(exact: Any) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        s += "abcd" + sgl.gen("x", max_tokens=2, n=3, logprobs=0, logprob_start_len=1)

    meta = program.run(backend=exact).meta("x")
    assert [text for _, _, text in meta["input_token_logprobs"]] == list("bcd")


def exact_ids(backend: Any, text: str) -> list[int]:
    """The tokens of a text, by what a backend says of a prompt."""

    @sgl.function
    def program(s: sgl.State) -> None:
        s += text + sgl.gen("x", max_tokens=1, logprobs=0, logprob_start_len=0)

    entries = program.run(backend=backend).meta("x")["input_token_logprobs"]
    return [token_id for _, token_id, _ in entries]
