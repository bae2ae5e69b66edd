"""What an infinite cache would find, on cases that can be counted by hand."""

from __future__ import annotations

import random

from ramet.bench.programs.ideal import PrefixTree, TokenCall, ideal_hits


def call(prompt: str, outputs: list[str], sent: int, ended: int) -> TokenCall:
    return TokenCall(
        prompt=[ord(c) for c in prompt],
        outputs=[[ord(c) for c in output] for output in outputs],
        sent=sent,
        ended=ended,
    )


def test_the_next_turn_finds_prompt_and_output() -> None:
    calls = [call("abc", ["de"], 0, 1), call("abcdeXY", ["Z"], 2, 3), call("abcdeXYZ", [], 4, 5)]
    assert ideal_hits(calls) == [0, 5, 8]


def test_an_output_is_there_when_its_call_has_ended_and_its_prompt_when_it_was_sent() -> None:
    calls = [call("abc", ["de"], 0, 3), call("abcde", [], 1, 2), call("abcde", [], 4, 5)]
    assert ideal_hits(calls) == [0, 3, 5]


def test_every_sample_of_a_call_can_be_gone_on_with() -> None:
    calls = [call("a", ["bc", "bd", "e"], 0, 1)]
    calls += [call(text, [], i, i + 1) for i, text in ((2, "abd"), (4, "aeX"), (6, "abX"))]
    assert ideal_hits(calls) == [0, 3, 2, 2]


def test_only_a_prefix_counts() -> None:
    assert ideal_hits([call("abc", [], 0, 1), call("bc", [], 2, 3)]) == [0, 0]


def test_the_order_is_that_of_sending_not_that_of_the_list() -> None:
    assert ideal_hits([call("ab", [], 2, 3), call("ab", [], 0, 1)]) == [2, 0]


def test_matches_are_those_of_comparing_with_every_sequence() -> None:
    rng = random.Random(0)
    tree, seen = PrefixTree(), list[list[int]]()
    for _ in range(300):
        tokens = [rng.randrange(3) for _ in range(rng.randrange(8))]
        lengths = [n for n in range(len(tokens) + 1) if any(s[:n] == tokens[:n] for s in seen)]
        assert tree.match(tokens) == max(lengths, default=0)
        tree.add(tokens)
        seen.append(tokens)
