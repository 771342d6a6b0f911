"""A segment that is closed long before it is full gives its space back, and is a segment like any other."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from raftlog.frame import make_entry, tail_after
from raftlog.storage.files.fs import OsFileSystem
from raftlog.storage.files.genesis import Genesis, Voter
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.types import EMPTY_TAIL, Entry, EntryType, LogTail, NodeId

SEGMENT = 64 * 1024
FULL = 4096 + SEGMENT
GENESIS = Genesis(UUID(int=1), 1, SEGMENT, 0, (Voter(NodeId(1), UUID(int=2)),))


def entry_after(tail: LogTail, size: int, *, term: int = 1, roll: bool = False) -> Entry:
    kind, payload = EntryType.MESSAGES, bytes([tail.index % 251]) * size
    return make_entry(
        tail, term=term, entry_type=kind, payload=payload, timestamp_ms=0, group_id=1, segment_size=SEGMENT, roll=roll
    )


def sizes(folder: Path) -> list[int]:
    return [path.stat().st_size for path in sorted((folder / "log").glob("*.seg"))]


def test_a_segment_that_is_closed_early_takes_what_it_holds(tmp_path: Path) -> None:
    log = SegmentedLog.create(OsFileSystem(), tmp_path, genesis=GENESIS.entry(), segment_size=SEGMENT)
    tail = tail_after(EMPTY_TAIL, GENESIS.entry())
    entries: list[Entry] = []
    for size, rolls in ((60_000, False), (500, True), (500, True), (60_000, False), (60_000, True)):
        log.prepare_next()
        entries.append(entry_after(tail, size, roll=rolls))
        log.append(entries[-1:])
        tail = tail_after(tail, entries[-1])
    assert sizes(tmp_path) == [FULL, 4096 + 564, FULL, FULL], "the third has 500 bytes and 60,000"
    log.close(clean=False)
    again = SegmentedLog.open(OsFileSystem(), tmp_path, group_id=1)
    assert (again.tail, again.report.torn_bytes_cut) == (tail, 0)
    assert [again.read_entries(index, index + 1, 1 << 30)[0] for index in range(1, 6)] == entries
    again.close(clean=True)


def test_a_conflict_that_reopens_it_goes_on_in_the_shorter_file(tmp_path: Path) -> None:
    log = SegmentedLog.create(OsFileSystem(), tmp_path, genesis=GENESIS.entry(), segment_size=SEGMENT)
    tail = tail_after(EMPTY_TAIL, GENESIS.entry())
    kept = entry_after(tail, 500)
    closing = entry_after(tail_after(tail, kept), 500, roll=True)
    log.append([kept, closing])
    assert sizes(tmp_path)[0] < FULL
    others = [entry_after(tail_after(tail, kept), 700, term=2)]
    for _ in range(20):
        others.append(entry_after(tail_after(_tail(tail, [kept, *others[:-1]]), others[-1]), 2_000, term=2))
    log.append(others)
    log.close(clean=False)
    again = SegmentedLog.open(OsFileSystem(), tmp_path, group_id=1)
    assert again.read_entries(1, 23, 1 << 30) == [kept, *others]
    assert (again.report.torn_bytes_cut, len(sizes(tmp_path))) == (0, 1)
    again.close(clean=True)


def _tail(tail: LogTail, entries: list[Entry]) -> LogTail:
    for entry in entries:
        tail = tail_after(tail, entry)
    return tail
