"""Patterns that end a text against `re.search` in ever more of it, and what a hostile one costs."""

from __future__ import annotations

import random
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


def random_pattern(rng: random.Random, depth: int) -> str:
    """A pattern of characters, sets, anchors, groups with flags, branches and repetitions."""
    if depth == 0 or rng.random() < 0.2:
        atoms = r"a b K ſ ς é . \w \W \d \S \b \B ^ $ \Z [^a] [a-cK] [^\Wσ] [ς-ω\s] \n".split()
        return rng.choice(atoms)
    inner = [random_pattern(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    kind = rng.randrange(4)
    if kind == 0:
        return f"(?{rng.choice(['', 'i', 'a', 'u', 'ai', 'm', 's', 'i-m', '-i'])}:{''.join(inner)})"
    if kind == 1:
        return f"(?:{'|'.join(inner)})"
    if kind == 2:
        repeats = ("*", "+", "?", "{2}", "{1,3}", "{0,2}?", "+?")
        return f"(?:{inner[0]}){rng.choice(repeats)}"
    return "".join(inner)


def test_random_patterns_end_texts_where_a_search_would() -> None:
    rng = random.Random(20)
    num_compared = 0
    while num_compared < 1500:
        flags = rng.choice(["", "(?i)", "(?a)", "(?ai)", "(?m)", "(?s)"])
        pattern = random_pattern(rng, 3)
        # `re.search` reads a set at the start of `(?a:…)` without its flag; so it is not at the start.
        searched = f"{flags}(?s:.)*?(?:{pattern})"
        pattern = flags + pattern
        try:
            patterns = StopPatterns([pattern])
        except PatternError:
            continue
        if not patterns.names:
            continue
        num_compared += 1
        for _ in range(10):
            text = "".join(rng.choices("aabKk\u212aſsSςσΣéÉ 1\n", k=rng.randint(1, 7)))
            watch = RegexWatch(patterns)
            found = next((n for n, c in enumerate(text, 1) if watch.push(c)), None)
            assert found == first_match(searched, text), (pattern, text)


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            "(?i)[ς]",
            "(?i)σ",
            "(?i)[^s]",
            "(?i)ſ",
            "(?i)k",
            "(?ai)k",
            "(?ai)[k\u212a]",
            "(?i)[i-ſ]",
        ),
        *(
            "(?i)İ",
            "(?i)ı",
            "(?i)ß",
            "(?i)[^ﬅ]",
            "(?i)\u0345",
            "(?i)[Α-Ω]",
            "(?a)(?u:\\w)",
            "(?a:\\w)",
        ),
        *(
            "(?u:\\w)",
            "(?ai)(?u:k)",
            "(?i)(?a:k)",
            "(?i)(?-i:k)",
            "(?i)\\W",
            "[^\\d\\s]",
            "(?i)[^\\wk]",
        ),
    ],
)
def test_a_character_is_taken_as_re_takes_it(pattern: str) -> None:
    patterns, match = StopPatterns([pattern]), re.compile(pattern).match
    cased = (chr(code) for code in range(0x2000) if chr(code).lower() != chr(code).upper())
    for character in {*cased, *"\u212a \n1_\u0663\u2003ﬅﬆ\U00010400\U00010428"}:
        watch = RegexWatch(patterns)
        assert bool(watch.push(character)) == bool(match(character)), character


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
        *(
            (p, "matches the empty text")
            for p in ("$", "^", r"\b", "(?:$|^)", "a*$", r"(?:\B)+", "(?m)^$")
        ),
        *(
            (p, "something follows")
            for p in (r"a$\n", r"a\Zb", "(?:a$|b)+", r"a$\bb?", "(?m:a)$(b|c)")
        ),
        ("(?a)(?u)é", "no regular expression"),
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
    assert len(StopPatterns(["(){9999999}(a{0}){9999999}b+"]).automaton.follow) == 1


def test_equal_positions_share_a_test() -> None:
    automaton = StopPatterns([r"(?i)[a-zé]{200,250}\b", r"(?i:[a-zé]\b.\b)"]).automaton
    assert len(automaton.tests) == 2 and len(automaton.gap_tests) == 1


def test_sets_that_are_slow_to_compile_are_bounded() -> None:
    wide = [f"[\\x01-\uffff{chr(0x61 + i)}].x" for i in range(17)]
    assert StopPatterns(wide[:16])
    with pytest.raises(PatternError, match="characters together"):
        StopPatterns(wide)
    assert StopPatterns(["(?i)[\\x01-\U0010ffff]{250}"])


def test_what_is_remembered_of_many_texts_is_bounded() -> None:
    patterns = StopPatterns([r"[^x]y"])
    RegexWatch(patterns).push("".join(map(chr, range(0x4E00, 0x4E00 + 9000))))
    assert len(patterns._masks) <= 4096 and len(patterns._steps) <= 4096
