"""What a program of the benchmark is: data to load, a function of the language, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import ramet

Case = TypeVar("Case")
Count = Callable[[str], int]
"""Tokens of a text."""


class DataError(Exception):
    """A file of the data is not there, or is not what it should be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program(Generic[Case]):
    """A program and its data.

    Attributes:
        name: on the command line.
        function: what is run, once per session.
        load: reads the sessions under the folder of all data; raises DataError.
        size: most tokens that a call of the session can hold.
        arguments: of `function`; the last argument is how a replay goes on, "recorded" or "generated".
        judge: what came of the sessions that succeeded, as figures.
        num_sessions, concurrency: unless the command line says otherwise.
        defaults: sampling parameters of the run.
        replays: whether the model's turns are recorded, so that `history` means something.
    """

    name: str
    function: ramet.Function
    load: Callable[[Path], list[Case]]
    size: Callable[[Case, Count], int]
    arguments: Callable[[Case, Count, str], dict[str, Any]]
    judge: Callable[[Sequence[Case], Sequence[ramet.State]], dict[str, float]]
    num_sessions: int
    concurrency: int
    defaults: Mapping[str, Any] = field(default_factory=lambda: {"temperature": 0.0})
    replays: bool = False


def read_json(path: Path) -> Any:
    """The file's value; raises DataError."""
    try:
        return json.loads(_text(path))
    except ValueError as error:
        raise DataError(f"{path} is no JSON: {error}") from error


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines, or of a JSON list; raises DataError."""
    text = _text(path)
    if text.lstrip().startswith("["):
        yield from read_json(path)
        return
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError as error:
                raise DataError(f"{path}, line {number}, is no JSON: {error}") from error


def entry(record: Mapping[str, Any], key: str, path: Path) -> Any:
    """A field that a record must have; raises DataError."""
    try:
        return record[key]
    except (KeyError, TypeError):
        raise DataError(f"{path}: a record has no {key!r}.") from None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
