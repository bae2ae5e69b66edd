"""Tree of thought on the game of 24: propose steps, judge every state three times, keep the best five.

Data, from princeton-nlp/tree-of-thought-llm:

    tot/logs/game24/*propose*.json    recorded searches
    tot/prompts.json                  {"game24": the strings of src/tot/prompts/game24.py by name}

The search follows the recording: proposals are written and dropped, the recorded ones are judged, and the
recorded choice goes on. The judgements are the model's own; how far its choice would have been the
recorded one is among the figures. As in the original, equal prompts of one search are judged once.

Yao et al., "Tree of Thoughts: Deliberate Problem Solving with Large Language Models", 2023.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ramet

from .program import Count, DataError, Program, entry, read_json

NUM_JUDGEMENTS = 3
MAX_JUDGEMENT_TOKENS = 40
_VALUES = {"impossible": 0.001, "likely": 1.0, "sure": 20.0}


@dataclass(frozen=True, slots=True)
class Proposal:
    """One call for next steps.

    Attributes:
        kind: the prompt that asks for it.
        tail: what follows the prompt's head.
        said: what was proposed.
    """

    kind: str
    tail: str
    said: str


@dataclass(frozen=True, slots=True)
class Step:
    """One level of a search.

    Attributes:
        proposals: a call for each state that was kept before.
        judged: new states, by the prompt's kind and tail that ask for their value; equal ones are one.
        kept: which of `judged` the recording went on with.
    """

    proposals: tuple[Proposal, ...]
    judged: tuple[tuple[str, str], ...]
    kept: frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Search:
    """A recorded search.

    Attributes:
        heads: kind of prompt -> what all prompts of the kind begin with.
        is_solved: whether the recording found 24.
    """

    heads: Mapping[str, str]
    steps: tuple[Step, ...]
    is_solved: bool


@ramet.function
def tree_of_thought(
    s: ramet.State, search: Search, lengths: Mapping[str, int]
) -> list[dict[tuple[str, str], float]]:
    """Search as recorded; the values that the model gave to the states of each level."""
    kinds = list(search.heads)
    trunks = dict(zip(kinds, s.fork(len(kinds)), strict=True))
    for kind, trunk in trunks.items():
        trunk += search.heads[kind]
    values: dict[tuple[str, str], float] = {}
    levels = []
    for step in search.steps:
        proposers = [trunks[proposal.kind].fork(1)[0] for proposal in step.proposals]
        for proposal, branch in zip(step.proposals, proposers, strict=True):
            branch += proposal.tail
            branch += ramet.gen("steps", lengths[proposal.said], ignore_eos=True)
        for branch in proposers:
            branch.sync()
        new = [key for key in step.judged if key not in values]
        judges = [trunks[kind].fork(1)[0] for kind, _ in new]
        for (_, tail), branch in zip(new, judges, strict=True):
            branch += tail
            branch += ramet.gen(
                "values",
                MAX_JUDGEMENT_TOKENS,
                n=NUM_JUDGEMENTS,
                temperature=0.7,
                seed=len(values),
                ignore_eos=True,
            )
        for key, branch in zip(new, judges, strict=True):
            values[key] = sum(map(value_of, branch["values"]))
        levels.append({key: values[key] for key in step.judged})
    return levels


def value_of(judgement: str) -> float:
    """Of the first line that is a verdict; 0 if there is none."""
    verdicts = (line.strip() for line in judgement.splitlines())
    return next((_VALUES[word] for word in verdicts if word in _VALUES), 0.0)


def load(data: Path) -> list[Search]:
    """Every recorded search; raises DataError."""
    folder = data / "tot"
    path = folder / "prompts.json"
    prompts = entry(read_json(path), "game24", path)
    heads = {
        "propose": entry(prompts, "propose_prompt", path).partition("{input}")[0],
        "answer": entry(prompts, "cot_prompt", path).partition("{input}")[0],
        "value": entry(prompts, "value_prompt", path).partition("{input}")[0],
        "last": entry(prompts, "value_last_step_prompt", path).partition("{input}")[0],
    }
    logs = sorted((folder / "logs" / "game24").glob("*propose*.json"))
    if not logs:
        raise DataError(f"{folder / 'logs' / 'game24'} has no *propose*.json.")
    return [_search(heads, record, log) for log in logs for record in read_json(log)]


def _search(heads: Mapping[str, str], record: dict[str, Any], path: Path) -> Search:
    steps = tuple(_step(step, path) for step in entry(record, "steps", path))
    return Search(heads, steps, any(info.get("r") for info in record.get("infos") or ()))


def _step(step: dict[str, Any], path: Path) -> Step:
    puzzle, states, new = (entry(step, key, path) for key in ("x", "ys", "new_ys"))
    kept = entry(step, "select_new_ys", path)
    judged = dict.fromkeys(_judgement(puzzle, state) for state in new)
    return Step(
        tuple(_proposals(puzzle, states, new)),
        tuple(judged),
        frozenset(_judgement(puzzle, state) for state in kept),
    )


def _proposals(puzzle: str, states: Sequence[str], new: Sequence[str]) -> Iterator[Proposal]:
    for state in dict.fromkeys(states):
        added = [text[len(state) :] for text in new if text.startswith(state)]
        if not added:
            continue
        left = _numbers_left(state or puzzle)
        if left == "24":
            tail = f"{puzzle}\nSteps:\n{state}"
            yield Proposal("answer", tail, "".join(added))
        else:
            yield Proposal("propose", f"{left}\nPossible next steps:\n", "".join(added))


def _judgement(puzzle: str, state: str) -> tuple[str, str]:
    last = state.strip().splitlines()[-1]
    if "left: " in last:
        return "value", f"{_numbers_left(state)}\n"
    answer = last.lower().replace("answer: ", "")
    return "last", f"{puzzle}\nAnswer: {answer}\nJudge:"


def _numbers_left(state: str) -> str:
    return state.strip().splitlines()[-1].split("left: ")[-1].split(")")[0]


def size(search: Search, count: Count) -> int:
    """Tokens of its longest kind of prompt, with room for the numbers and the answer."""
    said = max((len(p.said) for step in search.steps for p in step.proposals), default=0)
    return max(map(count, search.heads.values())) + 2 * MAX_JUDGEMENT_TOKENS + said


def arguments(search: Search, count: Count, history: str) -> dict[str, Any]:
    """Of `tree_of_thought`."""
    said = {proposal.said for step in search.steps for proposal in step.proposals}
    return {"search": search, "lengths": {text: max(1, count(text)) for text in said}}


def judge(searches: Sequence[Search], states: Sequence[ramet.State]) -> dict[str, float]:
    """States judged, the share that got a verdict, the share of the recorded choices that the model's
    values would have kept too, and the searches whose recording found 24."""
    num_judged = num_valued = num_kept = num_agreed = 0
    for search, state in zip(searches, states, strict=True):
        for step, values in zip(search.steps, state.ret_value, strict=True):
            best = sorted(values, key=values.__getitem__, reverse=True)[: len(step.kept)]
            num_judged += len(values)
            num_valued += sum(value > 0 for value in values.values())
            num_kept += len(step.kept)
            num_agreed += len(step.kept & set(best))
    return {
        "states_judged": num_judged,
        "with_verdict": num_valued / num_judged if num_judged else 0.0,
        "choices_agreed": num_agreed / num_kept if num_kept else 0.0,
        "solved_in_recording": sum(search.is_solved for search in searches),
    }


PROGRAM = Program(
    name="tree_of_thought",
    function=tree_of_thought,
    load=load,
    size=size,
    arguments=arguments,
    judge=judge,
    num_sessions=1,
    concurrency=1,
)
