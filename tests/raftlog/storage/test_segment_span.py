"""What a log says of one segment file: where it begins and ends, and what came before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from raftlog.errors import OutOfRangeError
from raftlog.types import EMPTY_TAIL

Build = Callable[..., Any]


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


@pytest.mark.parametrize("beyond", [0, 1])
def test_a_position_outside_is_refused(new_log: Build, frames: Build, beyond: int) -> None:
    _, log = new_log()
    log.append(frames(log.tail, [100]))
    position = log.tail.end_position + beyond
    said = f"position {position} is not in the log, which has 0..{position - beyond}"
    with pytest.raises(OutOfRangeError, match=said):
        log.segment_at(position)
