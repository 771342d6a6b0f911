"""A next file that is a hole serves like one of zeroes: rolled into, recovered after an unclean stop, read back."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from raftlog.frame import make_entry, tail_after
from raftlog.storage.files.fs import OsFileSystem
from raftlog.storage.files.genesis import Genesis, Voter
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.types import EMPTY_TAIL, EntryType, NodeId

SEGMENT = 64 * 1024


@pytest.mark.parametrize("zeroed", [True, False])
def test_prepared_files_roll_recover_and_read_alike(tmp_path: Path, zeroed: bool) -> None:
    fs = OsFileSystem()
    genesis = Genesis(UUID(int=1), 1, SEGMENT, 0, (Voter(NodeId(1), UUID(int=2)),))
    log = SegmentedLog.create(fs, tmp_path, genesis=genesis.entry(), segment_size=SEGMENT)
    tail = tail_after(EMPTY_TAIL, genesis.entry())
    for number in range(40):
        if log.needs_next():
            log.prepare_next(zeroed=zeroed)
            assert (tmp_path / "log" / "next.tmp").stat().st_size == 4096 + SEGMENT
        entry = make_entry(
            tail,
            term=1,
            entry_type=EntryType.MESSAGES,
            payload=bytes([number]) * 6000,
            timestamp_ms=number,
            group_id=1,
            segment_size=SEGMENT,
        )
        log.append([entry])
        tail = tail_after(tail, entry)
    log.close(clean=False)
    again = SegmentedLog.open(fs, tmp_path, group_id=1)
    assert again.tail == tail
    assert again.report.torn_bytes_cut == 0
    room = SEGMENT - (tail.end_position - tail.segment_base)
    assert again.report.bytes_zeroed == room, "it is read, and said apart from what was read of the log"
    assert [e.payload[0] for e in again.read_entries(1, 41, 1 << 30)] == list(range(40))
    again.close(clean=True)
