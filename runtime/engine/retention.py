"""Prefixes that are kept for whoever will come back, each under a name, for a time and within a budget.

The cache evicts them last (radix/retention.py); this is who may ask for that, how long and for how much.
Nothing waits for a retained block: an allocation that needs it takes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ramet.radix import PrefixCache, PrefixHandle

from ..request import TokenArray


@dataclass(frozen=True, slots=True)
class _Entry:
    handle: PrefixHandle
    ends: float
    tenant: str


@dataclass(slots=True)
class _Share:
    """What one tenant retains: tokens, shared ones counted as often as they are, and keys, oldest first."""

    num_tokens: int = 0
    keys: dict[tuple[str, str], None] = field(default_factory=dict)


class Retention:
    """The retained prefixes of an engine.

    Args:
        clock: seconds, monotonic.
        max_blocks: most blocks to retain, and most prefixes; where there are more, the tenant that retains
            most gives up the prefix that it has retained longest.
        max_seconds: most seconds to retain one; 0 retains nothing.

    Attributes:
        num_expired: prefixes whose time passed.
        num_displaced: prefixes that went because of the budget.
    """

    def __init__(
        self,
        cache: PrefixCache,
        clock: Callable[[], float],
        *,
        max_blocks: int,
        max_seconds: float,
    ) -> None:
        self.num_expired = 0
        self.num_displaced = 0
        self._cache = cache
        self._clock = clock
        self._max_blocks = max_blocks if max_seconds > 0 else 0
        self._max_seconds = max_seconds
        self._entries: dict[tuple[str, str], _Entry] = {}
        self._shares: dict[str, _Share] = {}
        self._next_end = float("inf")

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def sessions(self) -> list[tuple[str, str]]:
        """Namespace and name of those who retain something, the oldest first."""
        return list(self._entries)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the next one may expire; None if nothing is retained."""
        return max(0.0, self._next_end - self._clock()) if self._entries else None

    def keep(
        self,
        namespace: str,
        session: str,
        token_ids: TokenArray,
        seconds: float | None = None,
        tenant: str = "",
    ) -> None:
        """Retain what is cached of a sequence, in place of what the session retained before.

        Args:
            seconds: for how long, the greatest time at most; None is the greatest.
            tenant: whose share it takes.
        """
        handle = self._cache.retain(token_ids, namespace, max_blocks=self._max_blocks)
        self.release(namespace, session)
        if handle is None:
            return
        limit = self._max_seconds
        ends = self._clock() + (limit if seconds is None else min(seconds, limit))
        self._entries[namespace, session] = _Entry(handle, ends, tenant)
        share = self._shares.setdefault(tenant, _Share())
        share.num_tokens += handle.num_tokens
        share.keys[namespace, session] = None
        self._next_end = min(self._next_end, ends)
        while self._cache.num_retained > self._max_blocks or len(self) > self._max_blocks:
            largest = max(self._shares.values(), key=lambda share: share.num_tokens)
            self.num_displaced += self._drop(next(iter(largest.keys)))

    def release(self, namespace: str, session: str) -> None:
        """Retain nothing for a session any more; one that is not known is ignored."""
        if (namespace, session) in self._entries:
            self._drop((namespace, session))

    def expire(self) -> None:
        """End what has been retained for its time. O(1) while there is nothing."""
        now = self._clock()
        if now < self._next_end:
            return
        for key in [key for key, entry in self._entries.items() if entry.ends <= now]:
            self.num_expired += self._drop(key)
        self._next_end = min((e.ends for e in self._entries.values()), default=float("inf"))

    def _drop(self, key: tuple[str, str]) -> bool:
        """Whether it was still retained, and not taken by the cache meanwhile."""
        entry = self._entries.pop(key)
        share = self._shares[entry.tenant]
        share.num_tokens -= entry.handle.num_tokens
        del share.keys[key]
        if not share.keys:
            del self._shares[entry.tenant]
        return self._cache.end_retention(entry.handle)
