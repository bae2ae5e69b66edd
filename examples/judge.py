"""Branch, solve, merge: an essay judged along several dimensions at once, then summed up as JSON."""

from __future__ import annotations

import json
import sys

import ramet

SCHEMA = {
    "type": "object",
    "properties": {"grade": {"enum": ["A", "B", "C"]}, "pass": {"type": "boolean"}},
    "required": ["grade", "pass"],
}
DIMENSIONS = ("clarity", "originality", "evidence")


@ramet.function
def judge(s: ramet.State, essay: str) -> None:
    """Judge in branches, then in sum."""
    s += ramet.system("Judge the essay.")
    s += ramet.user("Essay: " + essay)
    s += ramet.assistant(ramet.select("on_topic", ["Yes", "No"]))
    forks = s.fork(len(DIMENSIONS))
    for fork, dimension in zip(forks, DIMENSIONS, strict=True):
        fork += ramet.user(f"Judge its {dimension} in one sentence.")
        fork += ramet.assistant(ramet.gen("judgement", max_tokens=24, stop="."))
    forks.join()
    s += ramet.user("In sum:\n" + "\n".join(s["judgement"]))
    s += ramet.assistant(ramet.gen("sum", json_schema=SCHEMA, max_tokens=120))


def main() -> None:
    """Judge one essay and show the figures of each branch."""
    state = judge.run("Trees are tall. I like trees. Trees are green.", temperature=0)
    print(json.loads(state["sum"]))
    print(state.tree())


if __name__ == "__main__":
    with ramet.Runtime(*sys.argv[1:2]) as runtime:
        ramet.set_default_backend(runtime)
        main()
