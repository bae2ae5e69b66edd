"""What every subcommand shares: its settings, and how errors, sizes and counts look in a terminal.

It knows nothing of models or servers.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment said.

    Attributes:
        cache_dir: the folder under which downloaded models lie.
        log_level: debug, info, warning or error.
    """

    cache_dir: Path
    log_level: str


def print_error(message: str, hint: str | None = None) -> None:
    """Write an error, and below it what can be done about it, to stderr."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print(Text.assemble(("error: ", "bold red"), message))
    if hint:
        console.print(Text.assemble(("hint: ", "bold"), hint))


def print_note(message: str) -> None:
    """Write something that is not the command's result to stderr."""
    Console(stderr=True, soft_wrap=True, highlight=False).print(Text(message, style="dim"))


def stdout() -> Console:
    """A console on the current stdout; text is never cut or wrapped when it is not a terminal."""
    return Console(soft_wrap=not sys.stdout.isatty(), highlight=False)


def format_bytes(num_bytes: int) -> str:
    """A size for people: `540.2 MiB`. Powers of 1024."""
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{num_bytes} B" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} TiB"
