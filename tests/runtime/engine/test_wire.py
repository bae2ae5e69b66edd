"""Frames in, the same frames out, however the stream is cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.engine.wire import Unpacker, pack


@given(st.lists(st.lists(st.binary(max_size=9), max_size=4), max_size=5), st.data())
def test_frames_arrive_as_they_were_sent_and_batches_whole(
    batches: list[list[bytes]], data: st.DataObject
) -> None:
    stream = b"".join(map(pack, batches))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    unpacker = Unpacker()
    received: list[bytes] = []
    ends = [0]
    for batch in batches:
        ends.append(ends[-1] + len(pack(batch)))
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += unpacker.feed(stream[start:end])
        num_whole = sum(at <= end for at in ends[1:])
        assert received == [frame for batch in batches[:num_whole] for frame in batch]
