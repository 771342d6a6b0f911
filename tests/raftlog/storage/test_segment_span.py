"""The log's description of one segment file: where it begins and ends, and what came before."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from raftlog.errors import OutOfRangeError
from raftlog.storage.log.log_reader import EntrySpan
from raftlog.types import EMPTY_TAIL

Build = Callable[..., Any]
SEGMENT_SIZE = 4096
"""The segment size of `new_log`."""


def test_the_spans_of_all_segments_are_the_log(new_log: Build, frames: Build) -> None:
    _, log = new_log()
    log.append(frames(log.tail, [900] * 20))
    position, previous, spans = 0, EMPTY_TAIL, []
    while position < log.tail.end_position:
        span = log.segment_at(position)
        assert span == log.segment_at(span.end_position - 1)
        assert span.previous.end_position == position
        assert span.previous.index >= previous.index
        spans.append(span)
        position, previous = span.end_position, span.previous
    assert spans[0].previous == EMPTY_TAIL
    assert [span.sealed for span in spans] == [True] * (len(spans) - 1) + [False]
    assert len(spans) > 3
    for span in spans[1:]:
        (first,) = log.read_entries(span.previous.index + 1, span.previous.index + 2, 1)
        assert (first.position, first.parent) == (span.previous.end_position, span.previous.header_crc)


def test_the_entry_at_each_end_of_each_frame(new_log: Build, frames: Build) -> None:
    _, log = new_log()
    log.append(frames(log.tail, [900] * 20))
    entries = log.read_entries(0, log.tail.index + 1, 1 << 30)
    assert len({log.segment_at(entry.position).previous for entry in entries}) > 3
    for entry in entries:
        found = EntrySpan(entry.index, entry.term, entry.position, entry.end_position)
        assert log.entry_at(entry.position) == log.entry_at(entry.end_position - 1) == found


@pytest.mark.parametrize("beyond", [0, 1])
def test_a_position_outside_is_refused(new_log: Build, frames: Build, beyond: int) -> None:
    _, log = new_log()
    log.append(frames(log.tail, [100]))
    position = log.tail.end_position + beyond
    said = f"position {position} is not in the log, which has 0..{position - beyond}"
    with pytest.raises(OutOfRangeError, match=said):
        log.segment_at(position)
    with pytest.raises(OutOfRangeError, match=said):
        log.entry_at(position)


def test_a_read_may_cross_more_segments_than_calls_may_be_nested(new_log: Build, frames: Build) -> None:
    _, log = new_log()
    while log.tail.end_position < SEGMENT_SIZE * sys.getrecursionlimit():
        log.append(frames(log.tail, [SEGMENT_SIZE - 200]))
    entries = log.read_entries(0, log.tail.index + 1, 1 << 30)
    raw = b"".join([entry.header + entry.payload for entry in entries])
    assert log.read_at(0, len(raw)) == raw
    assert log.read_at(1, len(raw) - 2) == raw[1:-1]
