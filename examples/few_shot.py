"""Few-shot questions: one prompt of examples, computed once, and a batch of questions behind it."""

from __future__ import annotations

import sys

import ramet

SHOTS = [
    ("What colour is the sky?", "blue"),
    ("What colour is grass?", "green"),
    ("What colour is snow?", "white"),
]


@ramet.function
def few_shot(s: ramet.State, question: str) -> None:
    """Answer one question like the examples."""
    for shot, answer in SHOTS:
        s += f"Q: {shot}\nA: {answer}\n\n"
    s += "Q: " + question + "\nA:" + ramet.gen("answer", max_tokens=8, stop="\n")


def main() -> None:
    """Ask three questions at once."""
    questions = ["What colour is blood?", "What colour is coal?", "What colour is the sea?"]
    states = few_shot.run_batch([{"question": q} for q in questions], temperature=0)
    for question, state in zip(questions, states, strict=True):
        cached = state.meta("answer")["cached_tokens"]
        print(f"{question}{state['answer']}   ({cached} tokens from the cache)")


if __name__ == "__main__":
    with ramet.Runtime(*sys.argv[1:2]) as runtime:
        ramet.set_default_backend(runtime)
        main()
