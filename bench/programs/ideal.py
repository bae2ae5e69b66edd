"""What an infinite cache would have found: the yardstick of a hit rate.

Calls are walked in the order in which they were sent. Each finds its longest prefix that is also a prefix
of the prompt of a call sent before, or of prompt and output of one that had ended by then. Tokens
are compared one by one, and nothing is ever forgotten. It is an upper bound: the newest token of an
answer was never run, and a prompt's last token must be run for there to be an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCall:
    """A call as tokens.

    Attributes:
        prompt: token ids.
        outputs: token ids of each answer.
        sent, ended: places in one order of all sendings and endings.
    """

    prompt: Sequence[int]
    outputs: Sequence[Sequence[int]]
    sent: int
    ended: int


class PrefixTree:
    """All sequences that were added, one node per token."""

    def __init__(self) -> None:
        self._children: dict[tuple[int, int], int] = {}

    def match(self, tokens: Sequence[int]) -> int:
        """Length of the longest prefix of `tokens` that begins a sequence of the tree."""
        node = 0
        for length, token in enumerate(tokens):
            child = self._children.get((node, token))
            if child is None:
                return length
            node = child
        return len(tokens)

    def add(self, tokens: Sequence[int], node: int = 0) -> int:
        """Add a sequence behind a node, the root by default. Returns the node of its end."""
        children = self._children
        for token in tokens:
            node = children.setdefault((node, token), len(children) + 1)
        return node


def ideal_hits(calls: Sequence[TokenCall]) -> list[int]:
    """Per call, the tokens of its prompt that an infinite cache would have found."""
    tree = PrefixTree()
    hits = [0] * len(calls)
    ends: dict[int, int] = {}
    events = [(call.sent, index, False) for index, call in enumerate(calls)]
    events += [(call.ended, index, True) for index, call in enumerate(calls)]
    for _, index, is_end in sorted(events):
        call = calls[index]
        if is_end:
            for output in call.outputs:
                tree.add(output, ends[index])
        else:
            hits[index] = tree.match(call.prompt)
            ends[index] = tree.add(call.prompt)
    return hits
