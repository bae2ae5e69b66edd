"""One program of each kind that people write, on a real model: what must hold whatever it says."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ramet as sgl

pytestmark = pytest.mark.real_model


@pytest.fixture(scope="module", autouse=True)
def real(smollm2: Path) -> Iterator[sgl.Runtime]:
    """The real model, as the default backend."""
    with sgl.Runtime(model_path=smollm2, kv_cache_memory=512 * 1024**2) as made:
        sgl.set_default_backend(made)
        yield made
        sgl.set_default_backend(None)


def test_few_shots_are_followed_and_shared() -> None:
    @sgl.function
    def capital(s: sgl.State, country: str) -> None:
        s += "The following are questions with answers.\n\n"
        for asked, answer in (("France", "Paris"), ("Germany", "Berlin"), ("Italy", "Rome")):
            s += f"Q: What is the capital of {asked}?\nA: {answer}\n"
        s += f"Q: What is the capital of {country}?\nA:" + sgl.gen("answer", stop="\n")

    num_shared = capital.cache()
    states = capital.run_batch(
        [{"country": "Japan"}, {"country": "Spain"}, {"country": "China"}], temperature=0
    )
    assert [s["answer"].strip() for s in states] == ["Tokyo", "Madrid", "Beijing"]
    # The last token of what is constant may be divided otherwise with what follows.
    assert all(s.meta("answer")["cached_tokens"] >= num_shared - 1 for s in states)


def test_numbers_end_where_the_model_goes_on_with_a_blank() -> None:
    @sgl.function
    def numbers(s: sgl.State) -> None:
        s += "The number of hours in a day is " + sgl.gen_int("hours") + "\n"
        s += "The number of days in a year is " + sgl.gen("days", type=int) + "\n"
        s += "The value of pi is " + sgl.gen("pi", dtype=float) + "\n"

    state = numbers.run(temperature=0)
    assert (state["hours"], state["days"]) == ("24", 365)
    assert math.isclose(float(state["pi"]), math.pi, abs_tol=0.01)
    assert state.text().startswith("The number of hours in a day is 24\nThe number of days")


def test_a_conversation_computes_only_what_is_new() -> None:
    @sgl.function
    def talk(s: sgl.State, questions: list[str]) -> None:
        s += sgl.system("You are a helpful assistant.")
        for turn, question in enumerate(questions):
            with s.user():
                s += question
            s += sgl.assistant_begin() + sgl.gen(f"answer{turn}", max_tokens=24)
            s += sgl.assistant_end()

    questions = ["What is the capital of France?", "List two sights there.", "Which is older?"]
    state = talk.run(questions=questions, temperature=0)
    assert [m["role"] for m in state.messages()] == ["system", *["user", "assistant"] * 3]
    for turn in (1, 2):
        before = state.meta(f"answer{turn - 1}")
        history = before["prompt_tokens"] + before["completion_tokens"]
        assert state.meta(f"answer{turn}")["cached_tokens"] >= history - 1
    # What travelled as tokens is the text that the template would have written.
    assert state.text().count("<|im_start|>") == state.text().count("<|im_end|>") == 7


def test_tips_are_expanded_side_by_side_and_summed_up() -> None:
    @sgl.function
    def suggest(s: sgl.State, topic: str) -> None:
        s += f"Here are two tips for {topic}: 1. Balanced Diet. 2. Regular Exercise.\n\n"
        forks = s.fork(2)
        for i, fork in enumerate(forks):
            fork += f"Now, expand tip {i + 1} into a paragraph:\n"
            fork += sgl.gen("tip", max_tokens=24, stop="\n\n")
        forks.join()
        for i, tip in enumerate(s["tip"]):
            s += f"Tip {i + 1}: {tip}\n"
        s += "In summary," + sgl.gen("summary", max_tokens=16)

    state = suggest.run(topic="staying healthy", temperature=0)
    first, second = state["tip"]
    assert first != second
    assert f"\n\nTip 1: {first}\nTip 2: {second}\nIn summary,{state['summary']}" in state.text()


def test_a_tree_of_thought_joins_level_by_level_and_shares_every_path() -> None:
    def ask(s: sgl.State, text: str, name: str, width: int) -> sgl.StateGroup:
        s += sgl.user(text)
        forks = s.fork(width)
        forks += sgl.assistant(sgl.gen(name, max_tokens=12))
        return forks

    @sgl.function
    def search(s: sgl.State, question: str) -> None:
        plans = ask(s, f"Plan how to solve this: {question}", "plan", 2)
        answers = [ask(plan, "Now solve it.", "answer", 2) for plan in plans]
        scores = [ask(a, "Score it.", "score", 2) for group in answers for a in group]
        for group in (*scores, *answers, plans):
            group.join()

    state = search.run(question="What is 2 + 3 * 4?", temperature=0.7, seed=1)
    assert len(state["plan"]) == 2
    assert [len(answers) for answers in state["answer"]] == [2, 2]
    assert [[len(s) for s in scores] for scores in state["score"]] == [[2, 2], [2, 2]]
    for per_plan in state.meta("answer")["branches"]:
        for facts in per_plan["branches"]:
            assert facts["cached_tokens"] >= facts["prompt_tokens"] - 20


def test_react_acts_until_it_finishes() -> None:
    @sgl.function
    def react(s: sgl.State, question: str) -> int:
        s += "Question: Where does the founder of Microsoft live?\n"
        s += "Thought 1: I need to search for the founder of Microsoft.\nAction 1: Search [founder]\n"
        s += "Observation 1: Bill Gates, who lives in the United States.\n"
        s += "Thought 2: I know it.\nAction 2: Finish [United States]\n\n"
        s += f"Question: {question}\n"
        for step in range(1, 4):
            s += f"Thought {step}:" + sgl.gen(stop=[".", "\n"], max_tokens=24) + ".\n"
            s += f"Action {step}: " + sgl.select(f"action{step}", ["Search", "Finish"])
            s += " [" + sgl.gen(f"argument{step}", stop=["]", "\n"], max_tokens=16) + "]\n"
            if s[f"action{step}"] == "Finish":
                return step
            s += f"Observation {step}: Linus Torvalds, who lives in the United States.\n"
        return 0

    state = react.run("Where does the creator of Linux live?", temperature=0)
    steps = re.findall(r"^Action \d: (?:Search|Finish) \[[^\]\n]*\]$", state.text(), re.M)
    assert len(steps) == 2 + (state.ret_value or 3)
    scores = state.meta("action1")["scores"]
    assert state["action1"] == max(scores, key=scores.__getitem__)


def test_a_judge_sees_every_dimension() -> None:
    @sgl.function
    def judge(s: sgl.State, article: str) -> None:
        s += "Judge this article.\n```\n" + article + "\n```\n"
        forks = s.fork(3)
        forks += lambda i: f"Judge its {('content', 'structure', 'grammar')[i]}:"
        forks += sgl.gen("judgement", max_tokens=12, stop="END")
        forks.join()
        s += "".join(f"{j.strip()}\n" for j in s["judgement"])
        s += "On a scale of 1 to 9 I give a score of " + sgl.gen("score", regex="[1-9]")

    state = judge.run(article="Trees are tall. " * 8, temperature=0)
    assert len(state["judgement"]) == 3 and state["score"] in "123456789"
    branches = state.meta("judgement")["branches"]
    assert all(b["cached_tokens"] > b["prompt_tokens"] // 2 for b in branches[1:])


CHARACTER = (
    r'\{\n    "name": "[\w\d\s]{1,16}",\n    "house": "(Gryffindor|Slytherin|Ravenclaw)",\n'
    r'    "wand": \{\n        "length": [0-9]{1,2}\.[0-9]{0,2}\n    \},\n'
    r'    "alive": "(Alive|Deceased)"\n\}'
)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_text_is_held_to_a_pattern_and_json_to_a_schema(temperature: float) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
        "required": ["name", "age"],
    }

    @sgl.function
    def character(s: sgl.State, name: str) -> None:
        s += name + " is a character in Harry Potter. Fill in the following about them.\n"
        s += sgl.gen("sheet", max_tokens=200, regex=CHARACTER)
        s += "\nAs JSON: " + sgl.gen("json", max_tokens=80, json_schema=schema)

    state = character.run(name="Hermione Granger", temperature=temperature, seed=2)
    assert re.fullmatch(CHARACTER, state["sheet"])
    if state.meta("json")["finish_reason"] == "stop":
        assert set(json.loads(state["json"])) == {"name", "age"}


def test_a_stream_is_the_text_piece_by_piece_with_its_log_probabilities() -> None:
    @sgl.function
    def qa(s: sgl.State, question: str) -> None:
        s += sgl.user(question)
        s += sgl.assistant(sgl.gen("answer", max_tokens=16, return_logprob=True))

    async def follow() -> list[Any]:
        state = qa.run(question="Who are you?", stream=True, temperature=0)
        return [pair async for pair in state.text_async_iter("answer", return_meta_data=True)]

    whole = qa.run(question="Who are you?", temperature=0)
    state = qa.run(question="Who are you?", temperature=0, stream=True)
    assert "".join(state.text_iter()) == whole.text()
    pieces = asyncio.run(follow())
    assert "".join(text for text, _ in pieces) == whole["answer"]
    entries = [entry for _, facts in pieces for entry in facts["output_token_logprobs"]]
    assert entries == whole.meta("answer")["output_token_logprobs"][: len(entries)]
    assert [facts["completion_tokens"] for _, facts in pieces][-1] == len(entries)


def test_branches_begin_with_the_likeliest_first_tokens() -> None:
    @sgl.function
    def decode(s: sgl.State, width: int) -> None:
        s += "Q: Is the sky blue?\nA:"
        look = s.fork(1)[0]
        look += sgl.gen("first", max_tokens=0, return_logprob=True, top_logprobs_num=width)
        tops = look.get_meta_info("first")["output_top_logprobs"][0]
        forks = s.fork(width)
        forks += [text for _, _, text in tops]
        forks += sgl.gen("rest", max_tokens=8, temperature=0)
        forks.join()
        s["tops"] = [(logprob, text) for logprob, _, text in tops]

    @sgl.function
    def greedy(s: sgl.State) -> None:
        s += "Q: Is the sky blue?\nA:" + sgl.gen("whole", max_tokens=9, temperature=0)

    state = decode.run(width=3)
    logprobs = [logprob for logprob, _ in state["tops"]]
    assert logprobs == sorted(logprobs, reverse=True) and sum(map(math.exp, logprobs)) < 1
    assert state["tops"][0][1] + state["rest"][0] == greedy.run()["whole"]


def test_samples_differ_and_come_back_with_their_seed() -> None:
    @sgl.function
    def sample(s: sgl.State, n: int) -> None:
        s += "Question: Compute 5 + 2 + 4.\n"
        forks = s.fork(n)
        forks += "Reasoning:" + sgl.gen("reasoning", stop="\n", max_tokens=12) + "\nTool:"
        forks += sgl.gen("tool", choices=[" calculator", " browser"])
        forks.join()

    @sgl.function
    def draw(s: sgl.State) -> None:
        s += "Question: Compute 5 + 2 + 4.\nReasoning:"
        s += sgl.gen("x", n=4, max_tokens=12, temperature=1, seed=7)

    state = sample.run(n=4, temperature=1)
    assert len(state["reasoning"]) == 4 and set(state["tool"]) <= {" calculator", " browser"}
    drawn = draw.run()["x"]
    assert len(set(drawn)) > 1 and draw.run()["x"] == drawn


def test_documents_are_appended_in_order_inside_a_message() -> None:
    @sgl.function
    def ask(s: sgl.State, documents: list[str], question: str) -> None:
        s += sgl.user_begin() + f"Answer from the documents.\nQuestion: {question}\n"
        forks = s.fork(len(documents))
        forks += lambda i: documents[i]
        forks.join("concate_and_append")
        s += "Documents end." + sgl.user_end()
        s += sgl.assistant(sgl.gen("answer", max_tokens=12))

    documents = ["The sky is blue. ", "Grass is green. "]
    state = ask.run(documents=documents, question="What colour is grass?", temperature=0)
    (question, answer) = state.messages()
    assert question["content"].endswith("\nThe sky is blue. Grass is green. Documents end.")
    assert answer == {"role": "assistant", "content": state["answer"]} and state["answer"]
