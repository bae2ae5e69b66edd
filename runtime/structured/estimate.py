"""Which constraints look as if they could take seconds to compile, told from their text alone.

A guess, and only good for deciding who waits for whom: what looks costly may be cheap, and the other way
round. What compiling takes is bounded where it is done (checker.py).
"""

from __future__ import annotations

import re

from .constraint import Constraint

MAX_REPETITIONS = 1000
"""Counted repetitions in all, multiplied where they lie in one another, beyond which one looks costly."""

_MAX_LEN = 16 * 1024
_MAX_DEPTH = 64

# Counts as they stand in regular expressions and in grammars; in a schema's JSON nothing else looks so.
_TOKEN = re.compile(r'["()]|\{(\d{1,9})(?:,(\d{0,9}))?\}')


def looks_costly(constraint: Constraint) -> bool:
    """Whether it counts further than sensible constraints do. Reads its first 16,384 characters."""
    open_groups, closed, closed_at = [0], 0, -1
    for match in _TOKEN.finditer(constraint.source, 0, _MAX_LEN):
        token = match[0]
        if token == "(" and len(open_groups) < _MAX_DEPTH:
            open_groups.append(0)
        elif token == ")" and len(open_groups) > 1:
            closed, closed_at = open_groups.pop(), match.end()
            open_groups[-1] += closed
        elif token == '"':  # What is in another text is not in a group of this one.
            open_groups = [sum(open_groups)]
        elif match[1]:
            count = max(int(match[1]), int(match[2] or 0))
            inside = closed if closed_at == match.start() else 0
            open_groups[-1] += inside * (count - 1) + count
        if open_groups[-1] > MAX_REPETITIONS:
            return True
    return False
