"""Only the newest bytes of the log stay in the page cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from jepsen_like.fakes.memory_fs import MemoryFile, MemoryFileSystem
from raftlog.frame import make_entry
from raftlog.storage.files.fs import FileSystem, OsFileSystem
from raftlog.storage.files.genesis import Genesis, Voter
from raftlog.storage.log import page_cache
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.storage.segments.segment import LOCAL_HEADER_SIZE
from raftlog.types import EntryType, NodeId
from tests.support.cached_pages import cached_share

SEGMENT = 64 * 1024
STEP = 10_000
KEPT = 100_000


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "STEP_BYTES", STEP)


def new_log(fs: FileSystem, directory: Path) -> SegmentedLog:
    fs.mkdir(directory)
    genesis = Genesis(UUID(int=1), 1, SEGMENT, 0, (Voter(NodeId(1), UUID(int=2)),))
    return SegmentedLog.create(fs, directory, genesis=genesis.entry(), segment_size=SEGMENT)


def append(log: SegmentedLog, number: int) -> None:
    entry = make_entry(
        log.tail,
        term=1,
        entry_type=EntryType.MESSAGES,
        payload=bytes([number % 251]) * 6000,
        timestamp_ms=number,
        group_id=1,
        segment_size=SEGMENT,
    )
    log.append([entry])


def grow(log: SegmentedLog, count: int) -> Iterator[int]:
    """Appends, and prepares as a node does; yields where the log ends."""
    for number in range(count):
        append(log, number)
        if log.needs_next():
            log.prepare_next(zeroed=False)
        yield log.tail.end_position


class Disk(MemoryFileSystem):
    """Notes what is to be dropped from its page cache."""

    def __init__(self) -> None:
        self.dropped: list[tuple[int, int | None]] = []
        """(base of the file, up to which position; None for all of it) of each call."""
        dropped = self.dropped

        class Dropping(MemoryFile):
            def drop_cached(self, size: int | None) -> None:
                base = int(self.path.stem)
                dropped.append((base, None if size is None else base + size - LOCAL_HEADER_SIZE))

        super().__init__(file_kind=Dropping)


def test_what_is_older_is_dropped_in_steps_over_all_files() -> None:
    fs = Disk()
    log, dropped = new_log(fs, Path("/node")), fs.dropped
    log.limit_page_cache(KEPT)
    reached = 0
    for end in grow(log, 80):
        bases = [segment.base for segment in log.state.segments]
        for base, stop in dropped:
            reached = bases[bases.index(base) + 1] if stop is None else stop
        assert end - KEPT - STEP < reached <= max(0, end - KEPT)
    whole = [base for base, stop in dropped if stop is None]
    assert whole == bases[: len(whole)]
    assert len(whole) >= 4


def test_nothing_is_dropped_without_a_limit() -> None:
    fs = Disk()
    for _ in grow(new_log(fs, Path("/node")), 80):
        pass
    assert fs.dropped == []


def test_a_limit_leaves_alone_what_was_there_before() -> None:
    fs = Disk()
    log, dropped = new_log(fs, Path("/node")), fs.dropped
    before = list(grow(log, 80))[-1]
    log.limit_page_cache(KEPT)
    for _ in grow(log, 10):
        pass
    assert dropped
    assert all(stop is None or stop > before - KEPT for _, stop in dropped)
    assert dropped[0][0] == max(segment.base for segment in log.state.segments if segment.base <= before - KEPT)


def test_files_that_were_trimmed_meanwhile_are_passed_over() -> None:
    fs = Disk()
    log = new_log(fs, Path("/node"))
    log.limit_page_cache(KEPT)
    for number in range(60):  # nobody prepares
        append(log, number)
    log.remove_files(log.trim(200_000))
    first, second, *_ = log.state.segments
    assert first.base > 0
    fs.unlink(first.path)  # as if it went between a look at the segments and the call
    assert log.needs_next()
    log.prepare_next(zeroed=False)
    assert fs.dropped[0][0] == second.base


def test_most_pages_of_real_files_are_free_and_their_bytes_are_read_again(tmp_path: Path) -> None:
    log = new_log(OsFileSystem(), tmp_path / "node")
    log.limit_page_cache(KEPT)
    shares = []
    for _ in grow(log, 60):
        first = log.state.segments[0]
        shares.append(cached_share(first.path, SEGMENT))
    assert shares[0] > 0.9
    assert shares[-1] < 0.5
    entries = log.read_entries(1, 61, 1 << 30)
    assert [entry.payload[0] for entry in entries] == list(range(60))
    log.close(clean=True)
