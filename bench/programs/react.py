"""ReAct: a thought and an action per call, then what the environment says.

Data, as printed by the notebooks of ysymyth/ReAct (FEVER with three examples, WebShop with one):

    react/trajectories/{fever,webshop}.jsonl    {session, question?, turns: [{model, env}]}
    react/prompts/{fever,webshop}.json          the few-shot texts, by name
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import ramet

from .program import Count, DataError, Program, entry, read_json, read_lines
from .replay import say

_FEW_SHOT = {"fever": "webthink_simple3", "webshop": "prompt1"}


@dataclass(frozen=True, slots=True)
class Turn:
    """One step of an episode.

    Attributes:
        lead: what the program writes before the model does, such as "Thought 1:".
        said: what the model wrote.
        told: what the environment answered, up to the next lead.
    """

    lead: str
    said: str
    told: str


@dataclass(frozen=True, slots=True)
class Episode:
    """A recorded episode behind its few-shot text and its question."""

    head: str
    turns: tuple[Turn, ...]


@ramet.function
def react(s: ramet.State, episode: Episode, lengths: Sequence[int], history: str) -> None:
    """Think, act, and read what came of it, until the recording ends."""
    s += episode.head
    for index, (turn, num_tokens) in enumerate(zip(episode.turns, lengths, strict=True)):
        s += turn.lead
        say(s, f"turn{index}", turn.said, num_tokens, history)
        s += turn.told


def load(data: Path) -> list[Episode]:
    """Episodes of every environment that is there, by turns; raises DataError."""
    found = [_load(data / "react", name) for name in _FEW_SHOT]
    episodes = [e for row in zip_longest(*found) for e in row if e is not None]
    if not episodes:
        raise DataError(f"{data / 'react' / 'trajectories'} has no fever.jsonl or webshop.jsonl.")
    return episodes


def _load(folder: Path, name: str) -> list[Episode]:
    path = folder / "trajectories" / f"{name}.jsonl"
    if not path.exists():
        return []
    prompts = folder / "prompts" / f"{name}.json"
    few_shot = entry(read_json(prompts), _FEW_SHOT[name], prompts)
    return [_episode(few_shot, record, path) for record in read_lines(path)]


def _episode(few_shot: str, record: dict[str, Any], path: Path) -> Episode:
    recorded = [(entry(t, "model", path), t.get("env") or "") for t in entry(record, "turns", path)]
    head = few_shot
    if record.get("question"):
        head += record["question"] + "\n"
    elif recorded:
        # WebShop's first action, the reset that shows the task, is the program's own.
        (said, told), *recorded = recorded
        head += f"\n{said}\n{told}\n\n"
    end = "\n" if record.get("question") else "\n\n"
    turns = []
    for said, told in recorded:
        lead, colon, rest = said.partition(":")
        turns.append(Turn(lead + colon, rest, f"\n{told}{end}"))
    return Episode(head, tuple(turns))


def size(episode: Episode, count: Count) -> int:
    """Tokens of the whole episode."""
    return count(episode.head + "".join(t.lead + t.said + t.told for t in episode.turns))


def arguments(episode: Episode, count: Count, history: str) -> dict[str, Any]:
    """Of `react`."""
    lengths = [max(1, count(turn.said)) for turn in episode.turns]
    return {"episode": episode, "lengths": lengths, "history": history}


def judge(episodes: Sequence[Episode], states: Sequence[ramet.State]) -> dict[str, float]:
    """How many turns there were."""
    return {"turns": sum(len(episode.turns) for episode in episodes)}


PROGRAM = Program(
    name="react",
    function=react,
    load=load,
    size=size,
    arguments=arguments,
    judge=judge,
    num_sessions=32,
    concurrency=16,
    replays=True,
)
