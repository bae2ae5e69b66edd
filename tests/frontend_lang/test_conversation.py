"""A chat in a terminal: what is sent, what is shown, and how it ends."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator

import pytest

from ramet.commands.conversation import HELP, Message, converse, terminal_reader
from ramet.runtime.errors import EngineDead


class Pieces:
    """An answer of given pieces; an exception among them is raised in its place."""

    def __init__(self, pieces: list[str | BaseException]) -> None:
        self._pieces = pieces
        self.closed = False

    def __iter__(self) -> Iterator[str]:
        for piece in self._pieces:
            if isinstance(piece, BaseException):
                raise piece
            yield piece

    def close(self) -> None:
        self.closed = True


class Script:
    """A speaker with prepared answers; keeps the conversations that it was given."""

    def __init__(self, *answers: list[str | BaseException]) -> None:
        self._answers = [Pieces(answer) for answer in answers]
        self.asked: list[list[Message]] = []

    def answer(self, messages: list[Message]) -> Pieces:
        self.asked.append(list(messages))
        return self._answers[len(self.asked) - 1]

    @property
    def all_closed(self) -> bool:
        return all(pieces.closed for pieces in self._answers[: len(self.asked)])


def lines(*texts: str) -> Callable[[], str]:
    return terminal_reader(io.StringIO("".join(f"{text}\n" for text in texts)), "")


def run(script: Script, *texts: str, interactive: bool = True, system: str | None = None) -> str:
    out = io.StringIO()
    code = converse(script, lines(*texts), system=system, out=out, interactive=interactive)
    assert code == 0
    assert script.all_closed
    return out.getvalue()


def test_each_turn_repeats_the_history() -> None:
    script = Script(["Hel", "lo"], ["Bye"])
    assert run(script, "hi", "", "bye", system="Be brief.") == "Hello\nBye\n"
    assert script.asked[1] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "bye"},
    ]


def test_new_starts_over_with_the_system_message() -> None:
    script = Script(["a"], ["b"])
    run(script, "one", "/new", "two", system="s")
    assert [message["content"] for message in script.asked[1]] == ["s", "two"]


def test_exit_leaves_and_other_commands_show_help() -> None:
    script = Script()
    assert run(script, "/what", "/exit", "never sent") == HELP + "\n"
    assert script.asked == []


def test_ctrl_c_stops_an_answer_and_keeps_what_came() -> None:
    script = Script(["part", KeyboardInterrupt()], ["rest"])
    assert run(script, "one", "two") == "part …\nrest\n"
    assert {"role": "assistant", "content": "part"} in script.asked[1]


def test_ctrl_c_before_anything_came_drops_the_turn() -> None:
    class Hesitant(Script):
        def answer(self, messages: list[Message]) -> Pieces:
            pieces = super().answer(messages)
            if len(self.asked) == 1:
                pieces.close()
                raise KeyboardInterrupt
            return pieces

    script = Hesitant([], ["fine"])
    assert run(script, "one", "two") == "fine\n"
    assert [message["content"] for message in script.asked[1]] == ["two"]


def test_an_error_drops_the_turn_and_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    script = Script(["half", EngineDead("The engine died.")], ["fine"])
    assert run(script, "one", "two") == "half\nfine\n"
    assert [message["content"] for message in script.asked[1]] == ["two"]
    assert "The engine died." in capsys.readouterr().err


def test_an_error_ends_piped_input_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    script = Script([EngineDead("The engine died.")])
    out = io.StringIO()
    assert converse(script, lines("one", "two"), out=out, interactive=False) == 1
    assert len(script.asked) == 1
    assert "error: The engine died." in capsys.readouterr().err


def test_terminal_control_codes_of_a_model_are_not_shown() -> None:
    script = Script(["\x1b]0;title\x07red\x9b31m\ttab\r\n"])
    assert run(script, "hi") == "]0;titlered31m\ttab\n\n"
