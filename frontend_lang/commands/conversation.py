"""A conversation in a terminal: lines in, streamed answers out, and a few commands.

It knows nothing of where the answers come from; `speakers` does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Protocol, TextIO

from .terminal import print_error

Message = dict[str, str]
HELP = "/new starts over, /exit or Ctrl-D leaves, Ctrl-C stops an answer."

# Text of a model must not move the cursor or talk to the terminal in other ways.
_CONTROL = {code: None for code in (*range(32), 127, *range(128, 160)) if chr(code) not in "\n\t"}


class TextPieces(Protocol):
    """The pieces of an answer's text, as they come. Closing it stops the answer."""

    def __iter__(self) -> Iterator[str]: ...

    def close(self) -> None: ...


class Speaker(Protocol):
    """Somebody who answers."""

    def answer(self, messages: list[Message]) -> TextPieces:
        """The next message of a conversation.

        Raises:
            RametError: there is no answer, or no more of it.
        """


def converse(
    speaker: Speaker,
    read_line: Callable[[], str],
    *,
    system: str | None = None,
    out: TextIO | None = None,
    interactive: bool = True,
) -> int:
    """Talk until the input ends. Returns an exit code.

    Args:
        speaker: who answers.
        read_line: the next line; raises EOFError at the end, KeyboardInterrupt to leave.
        system: the system message.
        out: where answers go; None means stdout.
        interactive: go on after an error; otherwise the first one ends it, with 1.
    """
    from ramet.runtime.errors import RametError

    out = sys.stdout if out is None else out
    start: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    messages = list(start)
    while True:
        try:
            line = read_line().strip()
        except (EOFError, KeyboardInterrupt):
            return 0
        if line in ("/exit", "/quit"):
            return 0
        if line == "/new":
            messages = list(start)
        elif line.startswith("/"):
            out.write(HELP + "\n")
        elif line:
            asked: Message = {"role": "user", "content": line}
            try:
                text = _stream(speaker.answer([*messages, asked]), out)
            except KeyboardInterrupt:
                text = ""
            except RametError as error:
                text = ""
                print_error(error.message, error.hint)
                if not interactive:
                    return 1
            if text:  # a turn without an answer is as if it had not been
                messages += [asked, {"role": "assistant", "content": text}]


def terminal_reader(stdin: TextIO, prompt: str) -> Callable[[], str]:
    """How lines are read: with editing and history in a terminal, plainly from anything else."""
    if not stdin.isatty():

        def read_plain() -> str:
            line = stdin.readline()
            if not line:
                raise EOFError
            return line

        return read_plain
    try:
        import readline  # noqa: F401  (input() edits lines once it is loaded)
    except ImportError:  # not built into every Python
        pass
    return lambda: input(prompt)


def _stream(pieces: TextPieces, out: TextIO) -> str:
    """Show an answer as it comes; Ctrl-C keeps what has come so far."""
    shown = []
    with closing(pieces):
        try:
            for piece in pieces:
                shown.append(piece)
                out.write(piece.translate(_CONTROL))
                out.flush()
        except KeyboardInterrupt:
            out.write(" …")
        finally:
            out.write("\n")
    return "".join(shown)
