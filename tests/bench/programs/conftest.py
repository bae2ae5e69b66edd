"""Two sessions of each program's data, tiny, in the public formats."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ramet
from ramet.bench.programs.program import Count


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def write_lines(path: Path, records: list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder of all data."""
    _react(tmp_path / "react")
    _tau_bench(tmp_path / "tau-bench")
    _tree_of_thought(tmp_path / "tot")
    _self_consistency(tmp_path / "gsm8k")
    _json_extraction(tmp_path / "bfcl")
    return tmp_path


def _react(folder: Path) -> None:
    claims = [
        {
            "session": f"fever-{i}",
            "question": f"Claim: number {i}.",
            "turns": [
                {"model": "Thought 1: look\nAction 1: Search[x]", "env": "Observation 1: x"},
                {
                    "model": "Thought 2: done\nAction 2: Finish[SUPPORTS]",
                    "env": "Observation 2: end",
                },
            ],
        }
        for i in range(2)
    ]
    shop = [
        {
            "session": "webshop-0",
            "turns": [
                {"model": "Action: reset", "env": "Observation: buy soap"},
                {"model": "Action: search[soap]", "env": "Observation: soap $1"},
                {"model": "Action: click[Buy Now]", "env": None},
            ],
        }
    ]
    write_lines(folder / "trajectories" / "fever.jsonl", claims)
    write_lines(folder / "trajectories" / "webshop.jsonl", shop)
    write(folder / "prompts" / "fever.json", {"webthink_simple3": "Decide.\n"})
    write(folder / "prompts" / "webshop.json", {"prompt1": "Webshop\n"})


def _tau_bench(folder: Path) -> None:
    call = {"function": {"name": "find", "arguments": '{"id":1}'}, "id": "c", "type": "function"}
    messages = [
        {"role": "system", "content": "Be an agent."},
        {"role": "user", "content": "Find 1."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "name": "find", "content": "found"},
        {"role": "assistant", "content": "It is found."},
        {"role": "user", "content": "Thanks ###STOP###"},
    ]
    other = [messages[0], {"role": "user", "content": "Hello."}, *messages[4:]]
    write_lines(folder / "a-airline.jsonl", [{"task_id": 0, "messages": messages}])
    write(folder / "b-airline.json", [{"task_id": 1, "traj": other}])
    write(folder / "tools_airline.json", [{"type": "function", "function": {"name": "find"}}])


def _tree_of_thought(folder: Path) -> None:
    write(
        folder / "prompts.json",
        {
            "game24": {
                "propose_prompt": "Input: {input}\nPossible next steps:\n",
                "cot_prompt": "Reach 24.\nInput: {input}\n",
                "value_prompt": "Evaluate (sure/likely/impossible)\n{input}\n",
                "value_last_step_prompt": "Judge.\nInput: {input}\nAnswer: {answer}\nJudge:",
            }
        },
    )
    first = ["4 + 4 = 8 (left: 3 8)\n", "4 - 4 = 0 (left: 0 3)\n"]
    second = [first[0] + "3 * 8 = 24 (left: 24)\n", first[0] + "3 + 8 = 11 (left: 11)\n"]
    third = [second[0] + "Answer: 3 * (4 + 4) = 24\n"]
    steps = [
        {"step": 0, "x": "3 4 4", "ys": [""], "new_ys": first, "select_new_ys": first[:1]},
        {"step": 1, "x": "3 4 4", "ys": first[:1], "new_ys": second, "select_new_ys": second[:1]},
        {"step": 2, "x": "3 4 4", "ys": second[:1], "new_ys": third, "select_new_ys": third},
    ]
    search = {"idx": 0, "steps": steps, "ys": third, "infos": [{"r": 1}]}
    write(folder / "logs" / "game24" / "x_propose1_value3.json", [search, search])


def _self_consistency(folder: Path) -> None:
    records = [
        {
            "question": f"What is {i} + 1?",
            "answer": f"It is <<{i}+1={i + 1}>>{i + 1}.\n#### {i + 1}",
        }
        for i in range(3)
    ]
    write_lines(folder / "test.jsonl", records[:2])
    write_lines(folder / "train.jsonl", records)


def _json_extraction(folder: Path) -> None:
    sized = {"type": "dict", "properties": {"size": {"type": "integer"}}, "required": ["size"]}
    functions = [{"name": name, "parameters": sized} for name in ("a.b", "c")]
    ids = [f"multiple_{i}" for i in range(5)]
    questions = [
        {"id": i, "question": [[{"role": "user", "content": "Size 3."}]], "function": functions}
        for i in ids
    ]
    answers = [{"id": i, "ground_truth": [{"a.b": {"size": [3]}}]} for i in ids]
    write_lines(folder / "BFCL_v4_multiple.json", questions)
    write_lines(folder / "possible_answer" / "BFCL_v4_multiple.json", answers)


@pytest.fixture
def count() -> Count:
    """A tokenizer of a kind: a token per word."""
    return lambda text: len(text.split())


@pytest.fixture(scope="session")
def tiny_runtime(tiny_folder: Path) -> Iterator[ramet.Runtime]:
    """The tiny model in this process."""
    with ramet.Runtime(tiny_folder, kv_cache_memory=32 * 1024**2) as made:
        yield made
