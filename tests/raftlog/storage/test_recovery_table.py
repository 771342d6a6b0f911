"""One test per row of the table in raftlog/storage/recovery.py and docs/disk-format.md: a disk state, and what is done.

The log of every row: GENESIS, then entries of 1000 payload bytes in 4 KiB segments; the last segment has a sync mark
below its last batch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from google_crc32c import value as crc32c

from raftlog.errors import CorruptLogError, DamagedLogError, DiskFullError, OutOfRangeError, StorageError
from raftlog.storage.memory_fs import MemoryFileSystem
from raftlog.storage.segment import LOCAL_HEADER_SIZE, MARK_OFFSETS, decode_header, encode_header
from raftlog.storage.segmented_log import SegmentedLog
from raftlog.types import Entry

DATA = Path("/data")
LOG = DATA / "log"
GROUP = 7
Frames = Callable[..., list[Entry]]
NewLog = Callable[..., tuple[MemoryFileSystem, SegmentedLog]]


class Disk:
    """A stopped log of three segments: [0..3], [4..6], [7, 8 | mark | 9]. `entries` is all of it."""

    def __init__(self, new_log: NewLog, frames: Frames, *, clean: bool = False) -> None:
        self.fs, log = new_log()
        self.frames = frames
        self.entries = log.read_entries(0, 1, 1)
        for entry in frames(log.tail, [1000] * 9):
            log.append([entry])
            self.entries.append(entry)
        if clean:
            log.close(clean=True)
        self.fs.restart()
        self.paths = [LOG / name for name in self.fs.listdir(LOG) if name.endswith(".seg")]
        assert [int(path.stem) for path in self.paths] == [0, self.entries[4].position, self.entries[7].position]

    def offset(self, index: int) -> int:
        """Where entry `index` lies in its file."""
        base = max(int(path.stem) for path in self.paths if int(path.stem) <= self.entries[index].position)
        return LOCAL_HEADER_SIZE + self.entries[index].position - base

    def open(self) -> SegmentedLog:
        return SegmentedLog.open(self.fs, DATA, group_id=GROUP)

    def check(self, log: SegmentedLog, count: int) -> None:
        """The first `count` entries are there, the log goes on, and all of it survives a power cut."""
        assert log.tail.index == count - 1
        assert log.read_entries(0, count, 1 << 30) == self.entries[:count]
        more = self.frames(log.tail, [5, 900, 3000, 1000], term=3)
        for entry in more:
            log.append([entry])
        self.fs.crash(0)
        again = self.open()
        assert again.read_entries(0, again.tail.index + 1, 1 << 30) == self.entries[:count] + more
        ranges = [(0, 0)] + ([(1, 1)] if count > 1 else []) + [(count, 3)]
        assert again.term_ranges() == ranges


@pytest.fixture
def disk(new_log: NewLog, frames: Frames) -> Disk:
    """After kill -9."""
    return Disk(new_log, frames)


def test_clean_stop_scans_nothing(new_log: NewLog, frames: Frames) -> None:
    disk = Disk(new_log, frames, clean=True)
    log = disk.open()
    assert log.report.clean
    assert log.report.bytes_scanned == 0
    assert log.report.entries == 10
    assert log.report.segments == 3
    assert not disk.fs.exists(LOG / "CLEAN")
    disk.check(log, 10)


def test_stale_clean_marker_is_not_believed(new_log: NewLog, frames: Frames) -> None:
    disk = Disk(new_log, frames, clean=True)
    marker = disk.fs.open(LOG / "CLEAN").pread(100, 0)
    log = disk.open()
    disk.entries += frames(log.tail, [20])
    log.append(disk.entries[10:])
    disk.fs.restart()
    file = disk.fs.open(LOG / "CLEAN", create=True)  # as if its removal had been lost
    file.pwritev([marker], 0)
    log = disk.open()
    assert not log.report.clean
    disk.check(log, 11)


def test_clean_stop_then_rot_of_the_last_frame_is_seen(new_log: NewLog, frames: Frames) -> None:
    disk = Disk(new_log, frames, clean=True)
    disk.fs.damage(disk.paths[2], disk.offset(9) + 500, b"\xff")
    with pytest.raises(CorruptLogError, match=r"position \d+, index 9, below the sync mark"):
        disk.open()


def test_killed_process_loses_nothing(disk: Disk) -> None:
    log = disk.open()
    assert not log.report.clean
    assert log.report.torn_bytes_cut == 0
    assert 0 < log.report.bytes_scanned <= 2 * (LOCAL_HEADER_SIZE + log.segment_size)
    disk.check(log, 10)


@pytest.mark.parametrize("where", [0, 5, 30, 64, 500, 1063])
def test_damage_above_the_mark_is_cut(disk: Disk, where: int) -> None:
    disk.fs.damage(disk.paths[2], disk.offset(9) + where, b"\xee")
    log = disk.open()
    assert log.report.torn_bytes_cut > 0
    assert any("torn tail" in reason for reason in log.report.reasons)
    rest = disk.fs.open(disk.paths[2]).pread(1 << 20, disk.offset(9))
    assert not any(rest)
    disk.check(log, 9)


def test_bytes_after_zeroes_are_cut(disk: Disk) -> None:
    disk.fs.damage(disk.paths[2], disk.offset(9), bytes(1064))
    disk.fs.damage(disk.paths[2], disk.offset(9) + 300, b"tail")
    log = disk.open()
    assert log.report.torn_bytes_cut == 304
    disk.check(log, 9)


@pytest.mark.parametrize("index", [7, 8])
@pytest.mark.parametrize("where", [0, 5, 30, 64, 500, 1063])
def test_damage_below_the_mark_is_never_cut(disk: Disk, index: int, where: int) -> None:
    before = disk.fs.open(disk.paths[2]).pread(1 << 20, 0)
    disk.fs.damage(disk.paths[2], disk.offset(index) + where, b"\xee")
    position = disk.entries[index].position
    with pytest.raises(CorruptLogError, match=rf"position {position}, index {index}, below the sync mark"):
        disk.open()
    disk.fs.damage(disk.paths[2], disk.offset(index) + where, before[disk.offset(index) + where :][:1])
    disk.check(disk.open(), 10)


def test_zeroes_below_the_mark_are_damage(disk: Disk) -> None:
    disk.fs.damage(disk.paths[2], disk.offset(8), bytes(2 * 1064))
    with pytest.raises(CorruptLogError, match="index 8, below the sync mark"):
        disk.open()


@pytest.mark.parametrize("slot", [0, 1])
def test_one_damaged_mark_is_harmless(disk: Disk, slot: int) -> None:
    disk.fs.damage(disk.paths[2], MARK_OFFSETS[slot] + 20, b"\xee")
    disk.check(disk.open(), 10)


def test_both_marks_damaged_is_refused(disk: Disk) -> None:
    for offset in MARK_OFFSETS:
        disk.fs.damage(disk.paths[2], offset + 20, b"\xee")
    with pytest.raises(CorruptLogError, match="both sync marks"):
        disk.open()


def test_a_mark_of_another_history_is_refused(disk: Disk, new_log: NewLog, frames: Frames) -> None:
    other_fs, other = new_log()
    for entry in frames(other.tail, [1000] * 9, term=2):
        other.append([entry])
    page = other_fs.open(disk.paths[2]).pread(LOCAL_HEADER_SIZE, 0)
    for offset in MARK_OFFSETS:
        disk.fs.damage(disk.paths[2], offset, page[offset : offset + 512])
    with pytest.raises(CorruptLogError, match="not of one history"):
        disk.open()


def test_a_newer_frame_is_refused_not_cut(disk: Disk) -> None:
    header = bytearray(disk.entries[9].header)
    header[25] = 2
    header[4:8] = crc32c(bytes(header[8:])).to_bytes(4)
    disk.fs.damage(disk.paths[2], disk.offset(9), bytes(header))
    with pytest.raises(CorruptLogError, match="newer RaftMQ"):
        disk.open()


def test_a_last_file_without_frames_is_set_aside(disk: Disk) -> None:
    """Power went between the roll and the first frame: the next entry goes where every other replica has it."""
    file = disk.fs.open(disk.paths[2])
    previous = decode_header(file.pread(4096, 0), disk.paths[2], GROUP).previous
    disk.fs.damage(disk.paths[2], 0, encode_header(previous, GROUP) + bytes(file.size() - 4096))
    log = disk.open()
    assert disk.fs.listdir(DATA / "trash") == [f"000001-{disk.paths[2].name}"]
    assert log.report.segments == 2
    disk.check(log, 7)
    small = disk.fs.open(disk.paths[1]).pread(69, disk.offset(6) + 1064)
    assert small[64:] == b"3:7;3", "a small entry still fits the file before"


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_damaged_local_header_is_refused(disk: Disk, number: int) -> None:
    disk.fs.damage(disk.paths[number], 20, b"\xee")
    with pytest.raises(CorruptLogError, match=f"local header of {disk.paths[number]}"):
        disk.open()


def test_a_missing_file_in_the_middle_is_refused(disk: Disk) -> None:
    disk.fs.unlink(disk.paths[1])
    with pytest.raises(CorruptLogError, match=r"index 3 .* begins at position"):
        disk.open()


def test_no_file_at_all_is_refused(disk: Disk) -> None:
    for path in disk.paths:
        disk.fs.unlink(path)
    with pytest.raises(CorruptLogError, match="holds no segment file"):
        disk.open()


@pytest.mark.parametrize("how", ["missing", "damaged head", "damaged offsets", "of another segment"])
def test_a_bad_sidecar_is_rebuilt(disk: Disk, how: str) -> None:
    sidecars = [path.with_suffix(".idx") for path in disk.paths]
    if how == "missing":
        disk.fs.unlink(sidecars[1])
    elif how == "of another segment":
        disk.fs.rename(sidecars[0], sidecars[1])
    else:
        disk.fs.damage(sidecars[1], 40 if how == "damaged head" else disk.fs.open(sidecars[1]).size() - 1, b"\xee")
    log = disk.open()
    assert any("missing or stale" in reason for reason in log.report.reasons) == (how != "damaged offsets")
    assert log.read_entries(4, 7, 1 << 30) == disk.entries[4:7]
    disk.check(log, 10)


def test_a_sidecar_from_before_a_conflict_is_not_believed(disk: Disk, frames: Frames) -> None:
    log = disk.open()
    stale = disk.fs.open(disk.paths[0].with_suffix(".idx")).pread(1 << 20, 0)
    log.append(frames(log._tail_at(1), [700, 700, 700, 700, 700], term=2))
    expected = log.read_entries(0, log.tail.index + 1, 1 << 30)
    disk.fs.damage(disk.paths[0].with_suffix(".idx"), 0, stale)
    disk.fs.restart()
    log = disk.open()
    assert log.read_entries(0, log.tail.index + 1, 1 << 30) == expected
    assert log.term_ranges() == [(0, 0), (1, 1), (2, 2)]


def test_damage_in_a_sealed_payload_shows_when_read(disk: Disk) -> None:
    disk.fs.damage(disk.paths[1], disk.offset(5) + 200, b"\xee")
    log = disk.open()
    assert log.read_entries(4, 5, 1 << 30) == disk.entries[4:5]
    with pytest.raises(DamagedLogError, match=r"entries 5\.\.5: .*CRC mismatch at index 5"):
        log.read_entries(5, 6, 1 << 30)
    assert log.read_entries(6, 10, 1 << 30) == disk.entries[6:]


def test_prepared_files_are_used_again(disk: Disk) -> None:
    file = disk.fs.open(LOG / "next.tmp", create=True)
    file.pwritev([b"\xff" * 9000], 0)
    log = disk.open()
    assert log.needs_next()
    log.prepare_next()
    assert not log.needs_next()
    disk.check(log, 10)
    assert not disk.fs.exists(LOG / "next.tmp")
    assert not disk.fs.exists(DATA / "trash")


@pytest.mark.parametrize("slot", [0, 1])
@pytest.mark.parametrize("index", [1, 3, 4, 5, 8, 9])
def test_after_a_conflict_either_mark_may_rot(disk: Disk, frames: Frames, slot: int, index: int) -> None:
    log = disk.open()
    log.write_idle_mark()
    new = frames(log._tail_at(index - 1), [30], term=2)
    log.append(new)
    assert log.read_entries(0, index + 1, 1 << 30) == disk.entries[:index] + new
    with pytest.raises(OutOfRangeError):
        log.read_entries(index, index + 2, 1 << 30)
    active = log._segments[-1].path
    rest = disk.fs.open(active).pread(1 << 20, log._segments[-1].file_offset(log.tail.end_position))
    assert not any(rest), "what a conflict removed is zeroed"
    disk.fs.damage(active, MARK_OFFSETS[slot] + 20, b"\xee")
    disk.fs.crash(0)
    disk.entries[index:] = new
    log = disk.open()
    assert log.read_entries(0, index + 1, 1 << 30) == disk.entries
    assert not any("mark" in name for name in disk.fs.listdir(LOG))


def test_disk_full_names_path_and_space_and_keeps_what_was_acknowledged(new_log: NewLog, frames: Frames) -> None:
    fs, log = new_log(space_left=40_000)
    done = log.read_entries(0, 1, 1)
    batch = frames(log.tail, [3000] * 20)

    def append_all() -> None:
        for entry in batch:
            log.append([entry])
            done.append(entry)

    with pytest.raises(DiskFullError, match=r"/data/log/\d+\.seg failed: no space left \(\d+ bytes free\)"):
        append_all()
    with pytest.raises(StorageError, match="no space left"):
        log.append(frames(log.tail, [1]))
    assert log.read_entries(0, len(done), 1 << 30) == done
    fs.restart()
    fs.space_left = 1 << 40
    log = SegmentedLog.open(fs, DATA, group_id=GROUP)
    assert log.read_entries(0, len(done), 1 << 30) == done


def test_a_sidecar_that_rots_while_running_is_not_believed(disk: Disk) -> None:
    log = disk.open()
    for number in (0, 1):
        sidecar = disk.paths[number].with_suffix(".idx")
        other = disk.fs.open(disk.paths[1 - number].with_suffix(".idx")).pread(1 << 20, 0)
        disk.fs.damage(sidecar, 0, other)
        assert log.read_entries(0, 10, 1 << 30) == disk.entries
