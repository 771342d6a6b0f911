"""The link between a log's next frame and the one before, each part by itself."""

from __future__ import annotations

import pytest

from raftlog.errors import FrameError
from raftlog.frame import FrameHeader, make_entry, tail_after
from raftlog.storage.segments.scan import check_successor
from raftlog.types import EMPTY_TAIL, Entry, EntryType, LogTail
from tests.support.rows import each_row

SEGMENT = 4096


def _entry(tail: LogTail, term: int) -> Entry:
    return make_entry(
        tail,
        term=term,
        entry_type=EntryType.NOOP,
        payload=b"",
        timestamp_ms=7,
        group_id=1,
        segment_size=SEGMENT,
    )


FIRST = tail_after(EMPTY_TAIL, _entry(EMPTY_TAIL, 3))
NEXT = FrameHeader(_entry(FIRST, 4).header, 1)


def test_the_next_frame_is_accepted() -> None:
    check_successor(NEXT, FIRST, FIRST.segment_base)


@each_row(
    "tail",
    [
        FIRST._replace(index=FIRST.index + 1),
        FIRST._replace(end_position=FIRST.end_position + 1),
        FIRST._replace(header_crc=FIRST.header_crc ^ 1),
        FIRST._replace(term=5),
        FIRST._replace(timestamp_ms=8),
    ],
    ids=["index", "position", "parent", "term", "time"],
)
def test_a_frame_that_follows_another_one_is_refused(tail: LogTail) -> None:
    with pytest.raises(FrameError, match="expected"):
        check_successor(NEXT, tail, FIRST.segment_base)
