"""Stop strings against a search of the whole text, character by character."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.runtime.text.stop import StopMatcher

LETTERS = st.text(alphabet="ab🙂", max_size=12)
STOPS = st.lists(st.text(alphabet="ab🙂", min_size=1, max_size=4), min_size=1, max_size=4)


def reference(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end if include else end - len(longest)], longest
    return text, None


@settings(deadline=None, max_examples=400)
@given(parts=st.lists(LETTERS, max_size=8), stops=STOPS, include=st.booleans())
def test_the_match_completed_first_wins_however_the_text_is_cut(
    parts: list[str], stops: list[str], include: bool
) -> None:
    matcher = StopMatcher(stops, include)
    shown, match = "", None
    for part in parts:
        safe, match = matcher.push(part)
        shown += safe
        if match is not None:
            break
    expected = reference("".join(parts), stops, include)
    assert (shown if match else shown + matcher.held, match) == expected


@settings(deadline=None, max_examples=200)
@given(text=LETTERS, stops=STOPS)
def test_what_is_held_is_the_longest_suffix_that_may_still_match(
    text: str, stops: list[str]
) -> None:
    matcher = StopMatcher(stops, False)
    for index, character in enumerate(text):
        _, match = matcher.push(character)
        if match is not None:
            return
        prefixes = {stop[:length] for stop in stops for length in range(len(stop))}
        seen = text[: index + 1]
        assert matcher.held == max((p for p in prefixes if seen.endswith(p)), key=len)


@settings(deadline=None, max_examples=200)
@given(early=LETTERS, late=LETTERS, stops=STOPS)
def test_a_passed_over_string_is_ordinary_text(early: str, late: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops, False)
    shown, match = matcher.push(early, may_match=False)
    assert match is None
    rest, match = matcher.push(late)
    ends = [
        (end, stop)
        for end in range(len(early) + 1, len(early + late) + 1)
        for stop in sorted(stops, key=len, reverse=True)
        if (early + late)[:end].endswith(stop)
    ]
    if ends:
        end, stop = ends[0]
        assert (shown + rest, match) == ((early + late)[: end - len(stop)], stop)
    else:
        assert (shown + rest + matcher.held, match) == (early + late, None)


def test_a_passed_over_string_is_not_held_back() -> None:
    matcher = StopMatcher(["abc"], False)
    assert matcher.push("abc", may_match=False) == ("abc", None)
    assert matcher.held == ""


def test_an_empty_stop_string_raises() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        StopMatcher(["a", ""], False)


def test_repetitive_text_and_stop_stay_linear() -> None:
    """A search from the start of each suffix would take 10**9 comparisons here."""
    matcher = StopMatcher(["a" * 30_000 + "b"], False)
    shown = sum(len(matcher.push("a")[0]) for _ in range(60_000))
    assert shown == 30_000
    assert matcher.push("b") == ("", "a" * 30_000 + "b")
