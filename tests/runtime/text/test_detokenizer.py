"""Streamed text against the text decoded whole, for every kind of tokenizer."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ramet.runtime.text.detokenizer import IncrementalDetokenizer, TextDelta
from ramet.runtime.text.tokenizer import Tokenizer

TEXT = st.text(
    alphabet=st.one_of(
        st.sampled_from("ab eth lo\n"),
        st.sampled_from("éß삼겹살☕𝔘ď\u200d👩👧👍🏽️"),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=30,
)
HARD = ["삼겹살 삼겹살", "👩‍👩‍👧‍👦", "ď é ☕", "𝔘𝔫𝔦", "🏳️‍🌈👍🏽", "a\u0301 \u200b x"]


def stream(
    detokenizer: IncrementalDetokenizer, token_ids: list[int], cuts: list[int] | None = None
) -> tuple[list[TextDelta], str]:
    """Push in parts that end at `cuts` (one token each by default), then finish."""
    edges = range(1, len(token_ids)) if cuts is None else sorted(set(cuts))
    bounds = [0, *(edge for edge in edges if edge < len(token_ids)), len(token_ids)]
    deltas = [
        detokenizer.push(token_ids[start:end])
        for start, end in zip(bounds, bounds[1:], strict=False)
    ]
    return deltas, detokenizer.finish()


def joined(deltas: list[TextDelta], rest: str) -> str:
    return "".join(delta.text for delta in deltas) + rest


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_any_tokens_stream_as_they_decode_whole(
    any_tokenizer: Tokenizer, data: st.DataObject
) -> None:
    ids = st.integers(0, any_tokenizer.vocab_size + 1)
    token_ids = data.draw(st.lists(ids, max_size=25))
    cuts = data.draw(st.none() | st.lists(st.integers(1, 25), max_size=5))
    skip = data.draw(st.booleans())
    stop = data.draw(st.sampled_from([(), ("\0never\0",), ("a never", " ")]))
    detokenizer = IncrementalDetokenizer(any_tokenizer, stop=stop, skip_special_tokens=skip)
    whole = any_tokenizer.decode(token_ids, skip, continues=True)
    if any(string in whole for string in stop):
        whole = min((whole.split(string)[0] for string in stop if string in whole), key=len)
    assert joined(*stream(detokenizer, token_ids, cuts)) == whole


@settings(deadline=None, max_examples=100)
@given(text=TEXT)
def test_text_streams_in_whole_characters(byte_tokenizer: Tokenizer, text: str) -> None:
    token_ids = byte_tokenizer.encode(text, add_special_tokens=False)
    deltas, rest = stream(IncrementalDetokenizer(byte_tokenizer), token_ids)
    assert joined(deltas, rest) == byte_tokenizer.decode(token_ids, True, continues=True)
    assert rest == ""
    assert sum(delta.text.count("\ufffd") for delta in deltas) == text.count("\ufffd")
    for delta in deltas:
        delta.text.encode()


@pytest.mark.parametrize("text", HARD)
def test_split_characters_arrive_complete(byte_tokenizer: Tokenizer, text: str) -> None:
    token_ids = byte_tokenizer.encode(text, add_special_tokens=False)
    assert len(token_ids) > 1
    deltas, rest = stream(IncrementalDetokenizer(byte_tokenizer), token_ids)
    assert (joined(deltas, rest).removeprefix(" "), rest) == (text, "")
    assert all("\ufffd" not in delta.text for delta in deltas)


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_an_output_added_to_its_prompt_makes_one_text(
    any_tokenizer: Tokenizer, data: st.DataObject
) -> None:
    ids = st.integers(0, any_tokenizer.vocab_size - 1)
    prompt = data.draw(st.lists(ids, min_size=1, max_size=6))
    output = data.draw(st.lists(ids, max_size=8))
    before = any_tokenizer.decode(prompt, False)
    assume("\ufffd" not in before)
    detokenizer = IncrementalDetokenizer(any_tokenizer, skip_special_tokens=False)
    text = before + joined(*stream(detokenizer, output))
    assert text == any_tokenizer.decode([*prompt, *output], False)


def test_the_space_before_an_output_stays(byte_tokenizer: Tokenizer) -> None:
    prompt = byte_tokenizer.encode("the", add_special_tokens=False)
    output = byte_tokenizer.encode("the a b", add_special_tokens=False)[len(prompt) :]
    detokenizer = IncrementalDetokenizer(byte_tokenizer)
    assert joined(*stream(detokenizer, output)) == " a b"


def test_special_tokens_are_left_out_unless_they_are_shown(byte_level_tokenizer: Tokenizer) -> None:
    token_ids = byte_level_tokenizer.encode("a<|im_start|>b<|im_end|>", add_special_tokens=False)
    shown = byte_level_tokenizer.special_id("<|im_start|>")
    assert shown is not None
    for ids, text in ((frozenset[int](), "ab"), ({shown}, "a<|im_start|>b")):
        detokenizer = IncrementalDetokenizer(byte_level_tokenizer, shown_ids=frozenset(ids))
        assert joined(*stream(detokenizer, token_ids)) == text


def test_a_character_cut_off_at_the_end_becomes_one_replacement(
    byte_level_tokenizer: Tokenizer,
) -> None:
    token_ids = byte_level_tokenizer.encode("ok 🦜", add_special_tokens=False)[:-1]
    deltas, rest = stream(IncrementalDetokenizer(byte_level_tokenizer), token_ids)
    assert (joined(deltas, ""), rest) == ("ok ", "\ufffd")
    assert byte_level_tokenizer.decode(token_ids, True) == "ok \ufffd"


def test_invalid_bytes_in_the_middle_are_replaced_and_the_rest_is_kept(
    byte_tokenizer: Tokenizer,
) -> None:
    parrot = byte_tokenizer.encode("🦜", add_special_tokens=False)
    if byte_tokenizer.token_bytes(parrot[0]) == b" ":
        parrot = parrot[1:]
    token_ids = [*parrot[:2], *parrot, *parrot[-1:], *parrot]
    deltas, rest = stream(IncrementalDetokenizer(byte_tokenizer), token_ids)
    assert (
        joined(deltas, rest)
        == byte_tokenizer.decode(token_ids, True, continues=True)
        == "\ufffd🦜\ufffd🦜"
    )


def test_a_stop_string_across_tokens_leaves_nothing_of_itself(
    byte_level_tokenizer: Tokenizer,
) -> None:
    token_ids = byte_level_tokenizer.encode("DEFGHIJKLM", add_special_tokens=False)
    assert len(token_ids) == 10
    deltas, rest = stream(
        IncrementalDetokenizer(byte_level_tokenizer, stop=("DEFGHIJ",)), token_ids
    )
    assert joined(deltas, rest) == ""
    assert [delta.stop_match for delta in deltas] == [None] * 6 + ["DEFGHIJ"] + [None] * 3


def test_a_false_start_is_released_as_soon_as_it_cannot_match(
    byte_level_tokenizer: Tokenizer,
) -> None:
    token_ids = byte_level_tokenizer.encode("ab DEFGH-and-DEFGHIJ!", add_special_tokens=False)
    detokenizer = IncrementalDetokenizer(byte_level_tokenizer, stop=("DEFGHIJ",))
    deltas, rest = stream(detokenizer, token_ids)
    assert joined(deltas, rest) == "ab DEFGH-and-"
    assert any(delta.text.startswith("DEFGH-") for delta in deltas)


def test_a_held_back_start_is_released_at_the_end(byte_level_tokenizer: Tokenizer) -> None:
    token_ids = byte_level_tokenizer.encode("ab DEF", add_special_tokens=False)
    detokenizer = IncrementalDetokenizer(byte_level_tokenizer, stop=("DEFGHIJ",))
    deltas, rest = stream(detokenizer, token_ids)
    assert (joined(deltas, ""), rest) == ("ab ", "DEF")
    assert detokenizer.finish() == ""


@pytest.mark.parametrize("include", [False, True])
def test_the_offset_is_that_of_the_token_that_completed_the_match(
    byte_level_tokenizer: Tokenizer, include: bool
) -> None:
    token_ids = byte_level_tokenizer.encode("xyQ🦜Z and more", add_special_tokens=False)
    shown = "xyQ🦜" if include else "xy"
    lengths = [len(byte_level_tokenizer.token_bytes(token_id)) for token_id in token_ids]
    offset = [end >= len("xyQ🦜".encode()) for end in itertools.accumulate(lengths)].index(True)
    detokenizer = IncrementalDetokenizer(byte_level_tokenizer, stop=("Q🦜",), include_stop=include)
    assert detokenizer.push(token_ids) == TextDelta(shown, "Q🦜", offset)
    assert detokenizer.push(token_ids) == TextDelta("")
    assert detokenizer.finish() == ""


@settings(deadline=None, max_examples=100)
@given(
    text=st.text(alphabet="abc 살", max_size=20),
    stop=st.lists(st.text(alphabet="abc 살", min_size=1, max_size=3), min_size=1, max_size=3),
    cuts=st.lists(st.integers(1, 25), max_size=6),
    include=st.booleans(),
    min_tokens=st.integers(0, 8),
)
def test_pushes_of_any_size_end_at_the_same_place(
    byte_tokenizer: Tokenizer,
    text: str,
    stop: list[str],
    cuts: list[int],
    include: bool,
    min_tokens: int,
) -> None:
    def results(cuts: list[int] | None) -> tuple[str, list[str | None], int]:
        detokenizer = IncrementalDetokenizer(
            byte_tokenizer, stop=tuple(stop), include_stop=include, min_tokens=min_tokens
        )
        deltas, rest = stream(detokenizer, token_ids, cuts)
        matches: list[str | None] = [delta.stop_match for delta in deltas if delta.stop_match]
        edges = [0, *sorted({cut for cut in cuts or range(1, 99) if cut < len(token_ids)})]
        ends = [
            edge + delta.stop_offset + 1
            for edge, delta in zip(edges, deltas, strict=False)
            if delta.stop_offset is not None
        ]
        return joined(deltas, rest), matches, ends[0] if ends else -1

    token_ids = byte_tokenizer.encode(text, add_special_tokens=False)
    single = results(None)
    assert results(cuts) == single
    assert single[2] == -1 or single[2] >= min_tokens
    if min_tokens == 0:
        whole = byte_tokenizer.decode(token_ids, True, continues=True)
        assert bool(single[1]) == any(string in whole for string in stop)


def test_a_stop_string_before_min_tokens_is_text(byte_level_tokenizer: Tokenizer) -> None:
    token_ids = byte_level_tokenizer.encode("Q;Q;Q;", add_special_tokens=False)
    assert len(token_ids) == 6
    for min_tokens, expected in ((0, ""), (1, ""), (2, "Q;"), (3, "Q;"), (4, "Q;Q;")):
        detokenizer = IncrementalDetokenizer(
            byte_level_tokenizer, stop=("Q",), min_tokens=min_tokens
        )
        assert joined(*stream(detokenizer, token_ids)) == expected


@pytest.mark.parametrize("skip", [True, False])
def test_special_tokens_are_skipped_or_kept(byte_level_tokenizer: Tokenizer, skip: bool) -> None:
    text = "<|im_start|>user\nhello<|im_end|>"
    token_ids = byte_level_tokenizer.encode(text, add_special_tokens=False)
    detokenizer = IncrementalDetokenizer(byte_level_tokenizer, skip_special_tokens=skip)
    expected = "user\nhello" if skip else text
    assert joined(*stream(detokenizer, token_ids)) == expected


def test_a_skipped_special_token_inside_a_character_does_not_break_it(
    byte_level_tokenizer: Tokenizer,
) -> None:
    first, *others = byte_level_tokenizer.encode("🦜", add_special_tokens=False)
    end = byte_level_tokenizer.eos_token_id
    assert end is not None and others
    detokenizer = IncrementalDetokenizer(byte_level_tokenizer)
    assert joined(*stream(detokenizer, [first, end, *others])) == "🦜"


def test_a_stop_string_may_lie_in_a_kept_special_token(byte_level_tokenizer: Tokenizer) -> None:
    token_ids = byte_level_tokenizer.encode("hello<|im_end|>", add_special_tokens=False)
    detokenizer = IncrementalDetokenizer(
        byte_level_tokenizer, stop=("<|im_end|>",), skip_special_tokens=False
    )
    assert joined(*stream(detokenizer, token_ids)) == "hello"


def test_the_number_of_reads_is_the_number_of_tokens(
    byte_level_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    reader = byte_level_tokenizer.reader(continues=True)

    class Counting:
        def __init__(self, *, continues: bool) -> None:
            assert continues

        def read(self, token_id: int) -> bytes:
            reads.append(token_id)
            return reader.read(token_id)

    monkeypatch.setattr(byte_level_tokenizer, "reader", Counting)
    token_ids = byte_level_tokenizer.encode("hello world " * 50, add_special_tokens=False)
    stream(IncrementalDetokenizer(byte_level_tokenizer, stop=("never",)), token_ids)
    assert reads == token_ids
