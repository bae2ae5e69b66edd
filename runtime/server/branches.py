"""Requests of /generate that their senders named, so that one of a call can be ended alone.

Knows names and tenants; how a request ends is its own matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ..errors import InvalidRequest


class Branch:
    """One request of a call, from its arrival to the end of the call.

    Attributes:
        key: its tenant and its name; None if it has no name.
        is_cancelled: whether its sender wants no more of it.
    """

    def __init__(self, key: tuple[str, str] | None) -> None:
        self.key = key
        self.is_cancelled = False
        self._stop: Callable[[], None] | None = None

    def runs(self, stop: Callable[[], None]) -> None:
        """It has begun; `stop` ends it."""
        self._stop = stop

    def cancel(self) -> None:
        """End it, or keep it from beginning. Safe to call twice."""
        self.is_cancelled = True
        if self._stop is not None:
            self._stop()


class Branches:
    """The named requests that are live. A tenant sees only its own."""

    def __init__(self) -> None:
        self._live: dict[tuple[str, str], Branch] = {}

    def __len__(self) -> int:
        return len(self._live)

    def open(self, tenant: str, names: Sequence[str | None]) -> list[Branch]:
        """A branch for each request of a call; all or none.

        Raises:
            InvalidRequest: two requests of the tenant would have one name.
        """
        branches = [Branch(None if name is None else (tenant, name)) for name in names]
        named = {branch.key: branch for branch in branches if branch.key is not None}
        if len(named) < sum(branch.key is not None for branch in branches):
            raise InvalidRequest("Two requests have one request_id.", param="request_id")
        for _, name in named.keys() & self._live.keys():
            raise InvalidRequest(f"request_id {name!r} is in use already.", param="request_id")
        self._live.update(named)
        return branches

    def close(self, branches: Iterable[Branch]) -> None:
        """Forget branches; those that were forgotten already are ignored."""
        for branch in branches:
            if branch.key is not None and self._live.get(branch.key) is branch:
                del self._live[branch.key]

    def cancel(self, tenant: str, names: Iterable[str]) -> list[str]:
        """End requests of a tenant, by exact name; returns the names of those that were live."""
        found = [name for name in dict.fromkeys(names) if (tenant, name) in self._live]
        for name in found:
            self._live[tenant, name].cancel()
        return found
