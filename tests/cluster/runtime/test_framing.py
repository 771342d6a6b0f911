"""FrameBuffer: however a stream is cut into reads, the same frames come out."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.runtime.framing import FrameBuffer, FrameTooLargeError, LongFrame
from tests.support.rows import each_row

LIMIT = 64


def stream_of(frames: list[bytes]) -> bytes:
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


def feed(buffer: FrameBuffer, data: bytes) -> list[bytes]:
    source, spans = buffer.feed(data)
    return [source[start:stop] for start, stop in spans]


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(at % (len(data) + 1) for at in cuts)})
    return [data[start:stop] for start, stop in itertools.pairwise(places)]


@given(st.lists(st.binary(max_size=LIMIT), max_size=8), st.lists(st.integers(0, 1000), max_size=40))
def test_any_split_gives_the_same_frames(frames: list[bytes], cuts: list[int]) -> None:
    buffer = FrameBuffer(LIMIT)
    found = [frame for piece in cut(stream_of(frames), cuts) for frame in feed(buffer, piece)]
    assert found == frames
    assert buffer.buffered == 0


@given(st.lists(st.binary(max_size=LIMIT), min_size=1, max_size=4), st.integers(1, 1000))
def test_an_incomplete_frame_is_kept_and_counted(frames: list[bytes], missing: int) -> None:
    data = stream_of(frames)
    last = 4 + len(frames[-1])
    missing = missing % last + 1
    buffer = FrameBuffer(LIMIT)
    assert feed(buffer, data[:-missing]) == frames[:-1]
    assert buffer.buffered == last - missing
    assert feed(buffer, data[-missing:]) == frames[-1:]
    assert buffer.buffered == 0


@given(st.lists(st.binary(max_size=LIMIT), min_size=1, max_size=4), st.data())
def test_a_frame_that_is_skipped_is_forgotten_and_those_behind_it_come(
    frames: list[bytes], data: st.DataObject
) -> None:
    first = stream_of(frames[:1])
    begun = data.draw(st.integers(4, len(first)))
    buffer = FrameBuffer(LIMIT)
    if feed(buffer, first[:begun]):
        return
    buffer.skip()
    assert (buffer.buffered, buffer.needed) == (0, 0)
    rest = first[begun:] + stream_of(frames[1:])
    pieces = cut(rest, data.draw(st.lists(st.integers(0, 1000), max_size=9)))
    assert [frame for piece in pieces for frame in feed(buffer, piece)] == frames[1:]


def test_byte_by_byte() -> None:
    frames = [b"", b"a", bytes(LIMIT)]
    buffer = FrameBuffer(LIMIT)
    assert [frame for byte in stream_of(frames) for frame in feed(buffer, bytes((byte,)))] == frames


@each_row("length", [-1, LIMIT + 1, -(1 << 31), (1 << 31) - 1])
@each_row("split", [False, True])
def test_a_bad_length_is_refused_before_its_bytes_arrive(length: int, split: bool) -> None:
    buffer = FrameBuffer(LIMIT)
    prefix = length.to_bytes(4, "big", signed=True)
    if split:
        assert feed(buffer, prefix[:3]) == []
        prefix = prefix[3:]
    with pytest.raises(FrameTooLargeError, match=f"frame of {length} bytes; the limit is {LIMIT}"):
        buffer.feed(prefix)


def test_the_limit_itself_is_allowed() -> None:
    assert feed(FrameBuffer(LIMIT), stream_of([bytes(LIMIT)])) == [bytes(LIMIT)]


@pytest.mark.parametrize("cuts", [[1], [3, 5], [8], [20]])
def test_the_beginning_of_a_frame_can_be_looked_at_while_it_comes(cuts: list[int]) -> None:
    buffer = FrameBuffer(1000)
    frame = (100).to_bytes(4, "big") + bytes(range(100))
    assert buffer.head(8) == b""
    at = 0
    for cut in [*cuts, 50]:
        buffer.feed(frame[at:cut])
        at = cut
        assert buffer.head(8) == frame[: min(8, cut)]
    _, frames = buffer.feed(frame[at:])
    assert len(frames) == 1
    assert buffer.head(8) == b""


def test_the_head_of_a_frame_that_is_too_long_is_kept_and_no_more() -> None:
    stream = (LIMIT + 1).to_bytes(4, "big") + bytes(range(200))
    for cut in (4, 5, 9, 50):
        buffer = FrameBuffer(LIMIT)
        with pytest.raises(FrameTooLargeError) as told:
            buffer.feed(stream_of([b"before"]) + stream[:cut])
        long = LongFrame(told.value, 20)
        assert (told.value.length, long.needed, long.why) == (LIMIT + 1, LIMIT + 5, str(told.value))
        for at in range(cut, len(stream), 7):
            assert long.feed(stream[at : at + 7]) == (b"", [])
        assert (long.buffered, long.head(100), long.head(8)) == (20, stream[:20], stream[:8])
        long.skip()
        long.feed(stream)
        assert (long.buffered, long.head(8)) == (0, b"")
