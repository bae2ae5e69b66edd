"""The errors that programs meet.

    LanguageError
    ├── UsageError         the program is written wrongly; also a ValueError
    │   └── UnknownVariable    nothing of that name is, or will be, in the state; also a KeyError
    ├── ProgramError       something that a state had to do failed; says where, has the partial state
    │   └── ProgramCancelled   the program was cancelled, or its time was up
    ├── BackendError       a server refused or failed
    │   └── Unsupported        the backend cannot do this at all; raised before anything is sent
    └── ToolLoopError      the model still called tools when its rounds were used up

What the embedded engine raises is `ramet.runtime.RametError`; in a program it is the cause of a
ProgramError like everything else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .state import State


class LanguageError(Exception):
    """Base of what the language raises on purpose."""


class UsageError(LanguageError, ValueError):
    """The program is written wrongly."""


class UnknownVariable(UsageError, KeyError):
    """No variable of that name is in the state, and nothing that was added will set it."""

    def __str__(self) -> str:
        return Exception.__str__(self)  # A KeyError's would be quoted.


class ProgramError(LanguageError):
    """Something that a state had to do failed; `__cause__` has the reason.

    Attributes:
        failed: the state that failed.
        state: the whole program's state, as far as it came; `failed` until a run has attached it.
    """

    def __init__(self, message: str, failed: State | None = None) -> None:
        super().__init__(message)
        self.failed = failed
        self.state = failed


class ProgramCancelled(ProgramError):
    """The program was cancelled, or its time was up, before this was done."""


class BackendError(LanguageError):
    """A server refused a request, or failed on it.

    Attributes:
        status: its HTTP status; None if there was no answer.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Unsupported(BackendError):
    """The backend cannot do this; nothing was sent."""


class ToolLoopError(LanguageError):
    """The model still called tools when its rounds were used up."""
