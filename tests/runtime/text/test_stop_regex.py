"""Patterns that end a text against `re.search` in ever more of it, and what a hostile one costs."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.runtime.text.regex_automaton import PatternError
from ramet.runtime.text.stop_regex import RegexWatch, StopPatterns

PATTERNS = (
    *(r"\d+\.", r"a{2,4}b", r"(a|b)*c", r"^ab", r"b$", r"\bab\b", r"(?i)AB", r"[^a]\s", r"(ab)+?c"),
    *(r"x?y+z*", r"(?m)^b$", r"\Ba", r"a(?:b|)c", r".b", r"(?s).b", r"\w\W", r"(?:a{0}){3}b"),
    *(r"((a|b){2}){2}1", r"(a?){3}1", r"(?i)[^A]b", r"a\Z", r"\Aa|c", r"[a-c]\S{2}", r"(?a)\bé"),
)
TEXTS = st.text(alphabet="aabbc1. \nxyzABé", max_size=10)


def first_match(pattern: str, text: str) -> int | None:
    """How many characters there are when the pattern first matches."""
    return next((n for n in range(1, len(text) + 1) if re.search(pattern, text[:n])), None)


@pytest.mark.parametrize("pattern", PATTERNS)
@settings(deadline=None, max_examples=150)
@given(text=TEXTS)
def test_a_text_ends_where_a_search_would_first_succeed(pattern: str, text: str) -> None:
    watch = RegexWatch(StopPatterns([pattern]))
    found = next((n for n, character in enumerate(text, 1) if watch.push(character)), None)
    assert found == first_match(pattern, text)


@settings(deadline=None)
@given(texts=st.lists(TEXTS, max_size=5))
def test_a_match_may_reach_over_several_pieces_and_end_inside_one(texts: list[str]) -> None:
    watch = RegexWatch(StopPatterns([r"a[^b]*b"]))
    said = ""
    for text in texts:
        said += text
        found = watch.push(text)
        assert bool(found) == bool(re.search(r"a[^b]*b", said))
        if found:
            break


def test_the_pattern_that_matches_first_is_named_and_the_earlier_one_of_two() -> None:
    watch = RegexWatch(StopPatterns([r"b+", r"[ab]c?", r"a."]))
    assert watch.push("xab") == r"[ab]c?"
    assert RegexWatch(StopPatterns([r"\d\d", r"\d."])).push("12") == r"\d\d"


def test_after_a_match_that_does_not_count_yet_one_may_go_on() -> None:
    watch = RegexWatch(StopPatterns([r"a+", r"c$"]))
    assert [watch.push(text) for text in ("aa", "b", "c", "b", "a")] == [
        "a+",
        None,
        "c$",
        None,
        "a+",
    ]


def test_plain_text_is_a_stop_string() -> None:
    patterns = StopPatterns(["\n\n", "a.", "END", r"a\.b", "(?i)end"])
    assert patterns.literals == ["\n\n", "END"]
    assert [pattern for _, pattern in patterns.names] == ["a.", r"a\.b", "(?i)end"]


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(", "no regular expression"),
        (r"(a)\1", "reference to a group"),
        ("(?=a)b", "lookaround"),
        ("(?<!a)b", "lookaround"),
        ("(?>a)b", "atomic group"),
        ("a*+b", "possessive"),
        ("a*", "matches the empty text"),
        ("", "matches the empty text"),
        ("a{257}", "more than 256 characters"),
        ("((((a{9}){9}){9}){9}){9}", "more than 256 characters"),
        ("x" * 257, "more than 256"),
        ("(" * 200 + "a" + ")" * 200, "more than 256"),
    ],
)
def test_what_cannot_be_searched_for_in_bounded_time_is_refused(pattern: str, reason: str) -> None:
    with pytest.raises(PatternError, match=reason):
        StopPatterns([pattern])


def test_all_patterns_together_are_bounded() -> None:
    with pytest.raises(PatternError, match="more than 32"):
        StopPatterns(["a."] * 33)
    with pytest.raises(PatternError, match="more than 256"):
        StopPatterns(["a{100}b", "a{200}b"])


def test_repetitions_of_nothing_are_nothing() -> None:
    assert len(StopPatterns(["(){9999999}(a{0}){9999999}b+"]).automaton.tests) == 1


def test_what_is_remembered_of_many_texts_is_bounded() -> None:
    patterns = StopPatterns([r"[^x]y"])
    RegexWatch(patterns).push("".join(map(chr, range(0x4E00, 0x4E00 + 9000))))
    assert len(patterns._masks) <= 4096 and len(patterns._steps) <= 4096
