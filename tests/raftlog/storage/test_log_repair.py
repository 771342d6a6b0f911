"""A peer's copy goes where the log is damaged, or nothing changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jepsen_like.fakes.memory_fs import MemoryFileSystem, PowerCut
from raftlog.errors import DamagedLogError, FrameError, OutOfRangeError, StorageError
from raftlog.frame import make_entry
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.storage.segments.damage import DamagedRange
from raftlog.storage.segments.segment import LOCAL_HEADER_SIZE
from raftlog.types import Entry
from tests.support.rows import each_row

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


def test_a_repair_removes_what_an_earlier_one_left(replica: Replica) -> None:
    replica.fs.open(LOG / "repair-7.tmp", create=True).close()
    replica.rot(5, 70)
    replica.log.repairing(damage(replica, 5))
    assert "repair-7.tmp" not in replica.fs.listdir(LOG)


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
    with pytest.raises(DamagedLogError):
        replica.log.read_raw_into(entry.position, memoryview(bytearray(10_000)))
    replica.log.repair(found, replica.raw(index, index))
    replica.check()


@pytest.mark.parametrize("where", [0, 5, 20, 33, 47, 63, 64, 68])
def test_damage_that_nobody_knows_is_found_by_a_read_into_memory(replica: Replica, where: int) -> None:
    """And the sound frames before it are given."""
    replica.rot(5, where)
    room = bytearray(10_000)
    at = replica.entries[4].position
    count = replica.log.read_raw_into(at, memoryview(room))
    assert bytes(room[:count]) == replica.raw(4, 4)
    with pytest.raises(DamagedLogError):
        replica.log.read_raw_into(at + count, memoryview(room))
    damage(replica, 5)


def test_a_copy_of_other_bytes_changes_nothing(replica: Replica, frames: Frames) -> None:
    replica.rot(5, 500)
    found = damage(replica, 5)
    other = frames(replica.log.tail_at(4), [1000], term=2)[0]
    files = {path: replica.fs.open(path).pread(1 << 20, 0) for path in replica.paths}
    good = replica.raw(5, 5)
    for copy in (
        other.header + other.payload,
        replica.raw(4, 4),
        replica.raw(6, 6),
        replica.raw(5, 6),
        good[:-1],
        b"",
        good[:100] + b"?" + good[101:],
        good[:33] + b"\1" + good[34:],
    ):
        with pytest.raises(FrameError):
            replica.log.repair(found, copy)
        assert replica.log.damage.ranges == (found,)
        assert {path: replica.fs.open(path).pread(1 << 20, 0) for path in replica.paths} == files
    with pytest.raises(OutOfRangeError, match="not a damaged range"):
        replica.log.repair(found._replace(last_index=6), good)
    replica.log.repair(found, good)
    replica.check()


def test_a_copy_with_one_frame_of_another_history_changes_nothing(replica: Replica) -> None:
    """Each frame is sound by itself, and the last is the right one: only the parents tell."""
    tail = replica.log.tail_at(4)
    for index in (4, 5, 6):
        replica.rot(index, 500)
    found = damage(replica, 5)
    assert found[2:4] == (4, 6)
    other = make_entry(
        tail,
        term=1,
        entry_type=3,
        payload=b"?" * 1000,
        timestamp_ms=0,
        group_id=GROUP,
        segment_size=4096,
    )
    assert other.position == replica.entries[5].position
    with pytest.raises(FrameError, match="is not what was lost"):
        replica.log.repair(found, replica.raw(4, 4) + other.header + other.payload + replica.raw(6, 6))
    replica.log.repair(found, replica.raw(4, 6))
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
        with pytest.raises(OutOfRangeError):
            log.read_raw_into(position, memoryview(bytearray(100)))


@pytest.mark.parametrize("size", [0, 1, 1063, 1064, 1065, 2 * 1064, 1 << 20])
@pytest.mark.parametrize("index", [0, 1, 4, 7, 9])
def test_frames_in_memory_are_those_that_fit(replica: Replica, index: int, size: int) -> None:
    position = replica.entries[index].position
    room = bytearray(b"?" * size)
    count = replica.log.read_raw_into(position, memoryview(room))
    fitting = replica.log.read_raw(position, size)
    assert count == (len(fitting) if len(fitting) <= size else 0)
    assert bytes(room[:count]) == fitting[:count]
    assert room[count:].count(b"?") == size - count, "nothing beside them is touched"


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
    replica.log.state.open_sealed.cache_clear()
    found = damage(replica, 4)
    assert (found.first_index, found.last_index, found.located) == (4, 6, True)
    repair = replica.log.repairing(found)
    data = replica.raw(4, 6)
    for at in range(0, len(data), 700):
        assert repair.next_position == found.first_position + at
        repair.feed(data[at : at + 700])
    repair.finish()
    with pytest.raises(FrameError, match="this repair is over"):
        repair.feed(b"")
    replica.check()


@pytest.mark.parametrize("index", [0, 5, 9])
def test_bad_sectors_are_damage_and_a_repair_writes_over_them(replica: Replica, index: int) -> None:
    entry = replica.entries[index]
    path = max(path for path in replica.paths if int(path.stem) <= entry.position)
    replica.fs.spoil(path, LOCAL_HEADER_SIZE + entry.position - int(path.stem) + entry.size // 2, 1)
    with pytest.raises(DamagedLogError, match="cannot be read: Input/output error"):
        replica.log.read_at(entry.position, entry.size)
    (found,) = replica.log.damage.ranges
    assert found.first_index <= index <= found.last_index
    replica.log.repair(found, replica.raw(found.first_index, found.last_index))
    replica.check()


def crash_cases(replica: Replica) -> Iterator[tuple[str, Callable[[Replica], None], int, int]]:
    """(name, what is done to the disk, first and last damaged entry) of each kind of repair."""

    def rot(*indexes: int) -> Callable[[Replica], None]:
        def do(victim: Replica) -> None:
            for index in indexes:
                victim.rot(index, 8)

        return do

    def remove(*numbers: int) -> Callable[[Replica], None]:
        def do(victim: Replica) -> None:
            for number in numbers:
                victim.fs.unlink(victim.paths[number])
                victim.fs.unlink(victim.paths[number].with_suffix(".idx"))
            victim.fs.fsync_dir(LOG)

        return do

    yield "one frame of the active file", rot(8), 8, 8
    yield "frames of a sealed file", rot(4, 5), 4, 5
    yield "a file that is gone", remove(1), 4, 6
    yield "two files that are gone", remove(0, 1), 0, 6


@each_row("number", range(4))
@each_row("how", ["power cut", "EIO"])
def test_a_repair_that_stops_anywhere_leaves_the_range_damaged_or_repaired(
    new_log: NewLog, frames: Frames, number: int, how: str
) -> None:
    """Every call of a repair is the last one, once: what is shown afterwards is right, and the next repair heals it."""
    calls = 0
    while True:
        replica = Replica(new_log, frames)
        replica.log.write_idle_mark()
        replica.log.close(clean=False)
        name, harm, first, last = list(crash_cases(replica))[number]
        harm(replica)
        replica.fs.restart()
        log = SegmentedLog.open(replica.fs, DATA, group_id=GROUP, committed_index=6)
        found = log.find_damage(0, 10)
        assert found is not None
        assert (found.first_index, found.last_index) == (first, last)
        calls += 1
        if how == "EIO":
            replica.fs.fail_call(replica.fs.calls + calls)
        else:
            replica.fs.cut_power_at(replica.fs.calls + calls)
        try:
            log.repair(found, replica.raw(first, last))
        except (PowerCut, StorageError):
            context = f"{name}, {how} at call {calls}: {replica.fs.trace[-3:]}"
        else:
            break
        if how == "EIO":
            check_shown(log, replica, context)
        replica.fs.crash(calls)
        log = SegmentedLog.open(replica.fs, DATA, group_id=GROUP, committed_index=6)
        check_shown(log, replica, context)
        assert log.tail.index == 9, context
        while (found := log.find_damage(0, 10)) is not None:
            log.repair(found, replica.raw(found.first_index, found.last_index))
        replica.log = log
        replica.check()
    assert calls > 4


def check_shown(log: SegmentedLog, replica: Replica, context: str) -> None:
    """Every entry reads as it was written, or as damaged."""
    for entry in replica.entries:
        try:
            assert log.read_entries(entry.index, entry.index + 1, 1 << 20) == [entry], context
        except DamagedLogError:
            continue


@pytest.mark.parametrize("index", range(1, 10))
@pytest.mark.parametrize("where", [8, 500])
def test_damage_is_never_taken_for_a_conflict(replica: Replica, frames: Frames, index: int, where: int) -> None:
    """A leader repeats entries that are damaged here: they are the same, by their terms, and nothing is cut."""
    replica.rot(index, where)
    replica.log.append(replica.entries[max(1, index - 1) : index + 1])
    replica.log.append(replica.entries[1:])
    assert replica.log.tail.index == 9
    found = damage(replica, index)
    replica.log.repair(found, replica.raw(index, index))
    replica.check()


@pytest.mark.parametrize("index", range(1, 10))
@pytest.mark.parametrize("cut", [0, 1])
@pytest.mark.parametrize("where", [8, 500])
def test_a_conflict_at_damage_cuts_it(replica: Replica, frames: Frames, index: int, cut: int, where: int) -> None:
    """Entries of a later term replace the damaged one, or the one behind it: the log is that of the leader."""
    if index + cut > 9:
        pytest.skip("nothing behind the last entry")
    new = frames(replica.log.tail_at(index + cut - 1), [700, 20], term=2)
    replica.rot(index, where)
    replica.log.find_damage(0, 10)
    replica.log.append(new)
    assert [found[2:4] for found in replica.log.damage.ranges] == ([(index, index)] if cut else [])
    replica.entries[index + cut :] = new
    for found in replica.log.damage.ranges:
        replica.log.repair(found, replica.raw(index, index))
    count = len(replica.entries)
    assert replica.log.read_entries(0, count, 1 << 20) == replica.entries
    replica.fs.crash(0)
    again = SegmentedLog.open(replica.fs, DATA, group_id=GROUP)
    assert again.read_entries(0, count, 1 << 20) == replica.entries
    assert again.term_ranges() == [(0, 0)] + [(1, 1)] * (index + cut > 1) + [(index + cut, 2)]


def test_a_log_with_a_hole_is_cut_rolls_and_stops_in_order(replica: Replica, frames: Frames) -> None:
    """No index that does not know where entries begin is ever kept: the hole is found again after each start."""
    replica.log.write_idle_mark()
    replica.log.close(clean=False)
    replica.rot(8, 8)
    replica.fs.restart()
    log = SegmentedLog.open(replica.fs, DATA, group_id=GROUP)
    assert [found[2:4] for found in log.damage.ranges] == [(8, 8)]
    log.append(frames(log.tail, [10]))
    log.close(clean=True)
    assert not replica.fs.exists(LOG / "CLEAN")
    log = SegmentedLog.open(replica.fs, DATA, group_id=GROUP)
    assert [found[2:4] for found in log.damage.ranges] == [(8, 8)]
    more = frames(log.tail, [2000, 2000])
    log.append(more)
    log.prepare_next()
    replica.fs.restart()
    log = SegmentedLog.open(replica.fs, DATA, group_id=GROUP)
    (found,) = log.damage.ranges
    log.repair(found, replica.raw(8, 8))
    assert log.read_entries(0, 10, 1 << 20) == replica.entries
    assert log.read_entries(11, 13, 1 << 20) == more
    replica.fs.restart()
    log = SegmentedLog.open(replica.fs, DATA, group_id=GROUP)
    assert not log.damage
    assert log.read_entries(0, 10, 1 << 20) == replica.entries
