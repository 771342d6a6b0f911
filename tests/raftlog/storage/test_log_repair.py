"""A peer's copy goes where the log is damaged, or nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from raftlog.errors import DamagedLogError, FrameError, OutOfRangeError
from raftlog.storage.damage import DamagedRange
from raftlog.storage.memory_fs import MemoryFileSystem
from raftlog.storage.segment import LOCAL_HEADER_SIZE
from raftlog.storage.segmented_log import SegmentedLog
from raftlog.types import Entry

DATA = Path("/data")
LOG = DATA / "log"
GROUP = 7
Frames = Callable[..., list[Entry]]
NewLog = Callable[..., tuple[MemoryFileSystem, SegmentedLog]]


class Replica:
    """An open log of three segments: [0..3], [4..6], [7..9], 1000 payload bytes each."""

    def __init__(self, new_log: NewLog, frames: Frames) -> None:
        self.fs, self.log = new_log()
        self.entries = self.log.read_entries(0, 1, 1)
        for entry in frames(self.log.tail, [1000] * 9):
            self.log.append([entry])
            self.entries.append(entry)
        self.paths = [LOG / name for name in self.fs.listdir(LOG) if name.endswith(".seg")]

    def rot(self, index: int, where: int) -> None:
        """One byte of the entry's frame changes."""
        path = max(path for path in self.paths if int(path.stem) <= self.entries[index].position)
        offset = LOCAL_HEADER_SIZE + self.entries[index].position - int(path.stem) + where
        old = self.fs.open(path).pread(1, offset)
        self.fs.damage(path, offset, bytes([old[0] ^ 0x40]))

    def raw(self, first: int, last: int) -> bytes:
        """The frames of entries first..last as they should be."""
        return b"".join(entry.header + entry.payload for entry in self.entries[first : last + 1])

    def check(self) -> None:
        """All is there, now and after a power cut."""
        assert not self.log.damage
        assert self.log.read_entries(0, 10, 1 << 30) == self.entries
        self.fs.crash(0)
        again = SegmentedLog.open(self.fs, DATA, group_id=GROUP)
        assert again.read_entries(0, 10, 1 << 30) == self.entries
        assert again.term_ranges() == [(0, 0), (1, 1)]


@pytest.fixture
def replica(new_log: NewLog, frames: Frames) -> Replica:
    return Replica(new_log, frames)


def damage(replica: Replica, index: int) -> DamagedRange:
    with pytest.raises(DamagedLogError) as caught:
        replica.log.read_entries(index, index + 1, 1 << 20)
    (found,) = replica.log.damage.ranges
    assert (caught.value.position, caught.value.first_index) == (found.first_position, found.first_index)
    return found


@pytest.mark.parametrize("index", range(10))
@pytest.mark.parametrize("where", [0, 5, 20, 33, 47, 63, 64, 68])
def test_a_damaged_frame_is_found_kept_back_and_repaired(replica: Replica, index: int, where: int) -> None:
    replica.rot(index, where)
    found = damage(replica, index)
    entry = replica.entries[index]
    assert found[:6] == (entry.position, entry.end_position, index, index, entry.parent, entry.header_crc)
    if index < 9:
        assert replica.log.read_entries(index + 1, 10, 1 << 30) == replica.entries[index + 1 :]
    if index:
        assert replica.log.read_entries(0, 10, 1 << 30) == replica.entries[:index], "up to the damage"
    with pytest.raises(DamagedLogError):
        replica.log.read_at(entry.position + 5, 10)
    with pytest.raises(DamagedLogError):
        replica.log.read_raw(entry.position, 10)
    replica.log.repair(found, replica.raw(index, index))
    replica.check()


def test_a_copy_of_other_bytes_changes_nothing(replica: Replica, frames: Frames) -> None:
    replica.rot(5, 500)
    found = damage(replica, 5)
    other = frames(replica.log._tail_at(4), [1000], term=2)[0]
    files = {path: replica.fs.open(path).pread(1 << 20, 0) for path in replica.paths}
    good = replica.raw(5, 5)
    for copy in (
        other.header + other.payload, replica.raw(4, 4), replica.raw(6, 6), replica.raw(5, 6), good[:-1], b"",
        good[:100] + b"?" + good[101:], good[:33] + b"\1" + good[34:],
    ):  # fmt: skip
        with pytest.raises(FrameError):
            replica.log.repair(found, copy)
        assert replica.log.damage.ranges == (found,)
        assert {path: replica.fs.open(path).pread(1 << 20, 0) for path in replica.paths} == files
    with pytest.raises(OutOfRangeError, match="not a damaged range"):
        replica.log.repair(found._replace(last_index=6), good)
    replica.log.repair(found, good)
    replica.check()


def test_raw_frames_are_whole_and_of_one_file(replica: Replica) -> None:
    log, entries = replica.log, replica.entries
    assert log.read_raw(0, 1) == replica.raw(0, 0)
    assert log.read_raw(entries[1].position, 1 << 20) == replica.raw(1, 3)
    assert log.read_raw(entries[4].position, 2 * 1064) == replica.raw(4, 5)
    assert log.read_raw(entries[7].position, 1 << 20) == replica.raw(7, 9)
    for position in (1, entries[4].position + 1, log.tail.end_position, -1):
        with pytest.raises(OutOfRangeError):
            log.read_raw(position, 100)


def test_a_checksum_that_does_not_match_is_looked_into(replica: Replica) -> None:
    entry = replica.entries[5]
    assert replica.log.report_damage(entry.position + 104, 200) is None
    replica.rot(5, 300)
    found = replica.log.report_damage(entry.position + 104, 200)
    assert found is not None
    assert (found.first_index, found.last_index) == (5, 5)
    assert replica.log.report_damage(entry.position, 10) == found
    assert replica.log.report_damage(replica.log.tail.end_position, 10) is None


def test_a_file_that_vanished_is_built_again(replica: Replica) -> None:
    replica.fs.unlink(replica.paths[1])
    replica.log._open.cache_clear()
    found = damage(replica, 4)
    assert (found.first_index, found.last_index, found.located) == (4, 6, True)
    repair = replica.log.repairing(found)
    data = replica.raw(4, 6)
    for at in range(0, len(data), 700):
        assert repair.next_position == found.first_position + at
        repair.feed(data[at : at + 700])
    repair.finish()
    replica.check()
