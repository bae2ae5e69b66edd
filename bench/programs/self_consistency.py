"""Self-consistency: many sampled solutions of one problem, and a vote on their answers.

Data, from openai/grade-school-math:

    gsm8k/test.jsonl      {question, answer}: the problems
    gsm8k/train*.jsonl    the same: the first eight are the examples of every prompt

Wang et al., "Self-Consistency Improves Chain of Thought Reasoning in Language Models", 2022.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ramet

from .program import Count, DataError, Program, entry, read_lines

NUM_SAMPLES = 16
NUM_EXAMPLES = 8
MAX_TOKENS = 128

_CALCULATION = re.compile(r"<<[^>]*>>")
_ANSWER = re.compile(r"####\s*(-?[\d,]+(?:\.\d+)?)")


@dataclass(frozen=True, slots=True)
class Problem:
    """A word problem behind the examples.

    Attributes:
        seed: of its samples.
    """

    examples: str
    question: str
    answer: str
    seed: int


@ramet.function
def self_consistency(s: ramet.State, problem: Problem) -> str | None:
    """Solve the problem many times; the answer that most solutions have."""
    s += problem.examples + f"Question: {problem.question}\nAnswer:"
    s += ramet.gen("solutions", MAX_TOKENS, n=NUM_SAMPLES, stop="\n\nQuestion:", seed=problem.seed)
    return vote(s["solutions"])


def answer_in(solution: str) -> str | None:
    """The number behind the first `####`, without commas and a decimal part of zeros."""
    found = _ANSWER.search(solution)
    if found is None:
        return None
    number = found[1].replace(",", "")
    return number.rstrip("0").rstrip(".") if "." in number else number


def vote(solutions: Sequence[str]) -> str | None:
    """The commonest answer, the earliest of equally common ones; None if no solution has any."""
    answers = Counter(a for a in map(answer_in, solutions) if a is not None)
    return answers.most_common(1)[0][0] if answers else None


def load(data: Path) -> list[Problem]:
    """Every problem of the test set; raises DataError."""
    folder = data / "gsm8k"
    train = sorted(folder.glob("train*.jsonl"))
    if not train:
        raise DataError(f"{folder} has no train*.jsonl to take examples from.")
    examples = "".join(
        f"Question: {entry(record, 'question', train[0])}\n"
        f"Answer: {_CALCULATION.sub('', entry(record, 'answer', train[0]))}\n\n"
        for record, _ in zip(read_lines(train[0]), range(NUM_EXAMPLES), strict=False)
    )
    path = folder / "test.jsonl"
    problems = []
    for seed, record in enumerate(read_lines(path)):
        answer = answer_in(entry(record, "answer", path))
        if answer is None:
            raise DataError(f"{path}: an answer has no number behind ####.")
        problems.append(Problem(examples, entry(record, "question", path), answer, seed))
    return problems


def size(problem: Problem, count: Count) -> int:
    """Tokens of the prompt and of one solution."""
    return count(problem.examples + problem.question) + MAX_TOKENS + 8


def arguments(problem: Problem, count: Count, history: str) -> dict[str, Any]:
    """Of `self_consistency`."""
    return {"problem": problem}


def judge(problems: Sequence[Problem], states: Sequence[ramet.State]) -> dict[str, float]:
    """Solutions with an answer, the share of them that is right, and the share of right votes."""
    pairs = [
        (answer_in(solution), problem.answer)
        for problem, state in zip(problems, states, strict=True)
        for solution in state["solutions"]
    ]
    votes = [s.ret_value == p.answer for p, s in zip(problems, states, strict=True)]
    return {
        "solutions": len(pairs),
        "answered": sum(found is not None for found, _ in pairs),
        "right_solutions": _share([found == answer for found, answer in pairs]),
        "right_votes": _share(votes),
    }


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags) if flags else 0.0


PROGRAM = Program(
    name="self_consistency",
    function=self_consistency,
    load=load,
    size=size,
    arguments=arguments,
    judge=judge,
    num_sessions=8,
    concurrency=4,
    defaults={"temperature": 0.7, "top_p": 1.0},
)
