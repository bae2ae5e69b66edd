"""How many prompt tokens a step computes, and whose.

`StepTimeModel` learns from finished steps how many prefill tokens fit a latency target; `split_budget`
divides them so that the oldest prefill always moves on and short prompts are not stuck behind it.
"""

from __future__ import annotations

from collections.abc import Sequence

SMOOTHING = 0.2
"""Weight of the newest step in the moving averages."""

MIN_CHUNK = 16
"""Prefill tokens that a step takes at least, so that prompts move on even when decodes are slow."""


class StepTimeModel:
    """Step time as a base for the running decodes plus a cost per prefill token.

    Two moving averages rather than a regression: steps of one shape repeat for seconds, which leaves a
    regression without a second point.
    """

    def __init__(self) -> None:
        self._decode_seconds: float | None = None
        self._seconds_per_token: float | None = None

    def observe(self, seconds: float, num_decodes: int, num_prefill_tokens: int) -> None:
        """Learn from a finished step."""
        if num_prefill_tokens == 0:
            if num_decodes:
                self._decode_seconds = _blend(self._decode_seconds, seconds)
            return
        base = (self._decode_seconds or 0.0) if num_decodes else 0.0
        per_token = max(seconds - base, 0.0) / num_prefill_tokens
        self._seconds_per_token = _blend(self._seconds_per_token, per_token)

    def prefill_tokens_within(self, seconds: float) -> int | None:
        """Prefill tokens that a step with decodes can take in that time; None before any was seen.

        At least MIN_CHUNK.
        """
        if not self._seconds_per_token:
            return None
        spare = seconds - (self._decode_seconds or 0.0)
        return max(MIN_CHUNK, int(spare / self._seconds_per_token))


def _blend(average: float | None, value: float) -> float:
    return value if average is None else average + SMOOTHING * (value - average)


def split_budget(remaining: Sequence[int], budget: int) -> list[int]:
    """Divide `budget` prefill tokens over prompts that still need `remaining` each, oldest first.

    Up to half of it goes to younger prompts short enough to be finished with it, shortest first, which
    has the least mean waiting time; the rest to the oldest, so that it always finishes; what that
    leaves to the others by age. Returns a share for each.
    """
    shares = [0] * len(remaining)
    if not remaining or budget <= 0:
        return shares
    spare = budget // 2
    for index in sorted(range(1, len(remaining)), key=lambda i: (remaining[i], i)):
        if remaining[index] > spare:
            break
        shares[index] = remaining[index]
        spare -= remaining[index]
    left = budget - sum(shares)
    for index, need in enumerate(remaining):
        share = min(need - shares[index], left)
        shares[index] += share
        left -= share
    return shares
