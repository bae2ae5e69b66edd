"""What may be done with a branch that was joined: it is read, and joined in the other way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from .errors import UsageError

JoinMode = Literal["gather_variable", "concate_and_append"]


class Joinable(Protocol):
    """A branch.

    Attributes:
        joined: whether it was joined, in whichever way.
        appended: whether what it said was appended to its parent.
    """

    joined: bool
    appended: bool


def check_not_joined(branch: Joinable) -> None:
    """Pass if something can be added to the branch.

    Raises:
        UsageError: it was joined.
    """
    if branch.joined:
        raise UsageError("The branch was joined; it can only be read.")


def mark_joined(branches: Sequence[Joinable], mode: JoinMode) -> None:
    """Remember how they were joined.

    Raises:
        UsageError: they are to be appended, and were appended already.
    """
    if mode == "concate_and_append":
        if any(branch.appended for branch in branches):
            raise UsageError("The branches were appended already; they would be appended again.")
        for branch in branches:
            branch.appended = True
    for branch in branches:
        branch.joined = True
