"""ReAct: thought, action, observation, in plain text, with the page that the action asks for."""

from __future__ import annotations

import sys

import ramet

PAGES = {
    "Eiffel Tower": "The Eiffel Tower is a tower in Paris. It is 330 metres high.",
    "Paris": "Paris is the capital of France.",
}


@ramet.function
def react(s: ramet.State, question: str, max_steps: int = 3) -> str:
    """Look pages up until the model gives an answer."""
    s += "Answer by looking up pages: " + ", ".join(PAGES) + ".\n"
    s += f"Question: {question}\n"
    for step in range(1, max_steps + 1):
        s += f"Thought {step}:" + ramet.gen(f"thought{step}", stop="\n", max_tokens=24)
        s += f"\nAction {step}: "
        s += ramet.gen(f"action{step}", choices=["Look up", "Finish"])
        if s[f"action{step}"] == "Finish":
            break
        s += ": " + ramet.gen(f"page{step}", choices=list(PAGES))
        s += f"\nObservation {step}: {PAGES[s[f'page{step}']]}\n"
    s += "\nAnswer:" + ramet.gen("answer", stop="\n", max_tokens=24)
    return str(s["answer"])


def main() -> None:
    """Ask one question and show the whole text."""
    state = react.run("How high is the Eiffel Tower?", temperature=0)
    print(state.text())
    print(state.tree())


if __name__ == "__main__":
    with ramet.Runtime(*sys.argv[1:2]) as runtime:
        ramet.set_default_backend(runtime)
        main()
