"""Tree of thought: plans, solutions and judgements branch, and every branch reads its parent once."""

from __future__ import annotations

import sys
from collections import Counter

import ramet


def plans(s: ramet.State, question: str, width: int) -> ramet.StateGroup:
    """Branch into plans."""
    s += ramet.user(f"Give a one-line plan to solve this, without solving it: {question}")
    forks = s.fork(width)
    forks += ramet.assistant(ramet.gen("plan", max_tokens=24, temperature=0.8, stop="\n"))
    return forks


def solutions(s: ramet.State, width: int) -> ramet.StateGroup:
    """Branch a plan into solutions."""
    s += ramet.user("Follow the plan. End with the answer, a number.")
    forks = s.fork(width)
    forks += ramet.assistant(ramet.gen("solution", max_tokens=32, temperature=0.8))
    return forks


def judge(s: ramet.State) -> None:
    """Score one solution."""
    s += ramet.user("Is this right?")
    s += ramet.assistant(ramet.select("verdict", ["Yes", "No"]))


@ramet.function
def tree_of_thought(s: ramet.State, question: str, width: int = 2) -> list[str]:
    """The solutions, best verdicts first."""
    leaves = []
    for plan in plans(s, question, width):
        for solution in solutions(plan, width):
            judge(solution)
            leaves.append(solution)
    scored = [(leaf.meta("verdict")["scores"]["Yes"], leaf["solution"]) for leaf in leaves]
    return [text for _, text in sorted(scored, reverse=True)]


def main() -> None:
    """Solve one problem and show the tree."""
    state = tree_of_thought.run("Tom has 3 apples and buys 4. How many has he?", seed=1)
    print(state.tree())
    print(Counter(state.ret_value).most_common(1)[0][0])


if __name__ == "__main__":
    with ramet.Runtime(*sys.argv[1:2]) as runtime:
        ramet.set_default_backend(runtime)
        main()
