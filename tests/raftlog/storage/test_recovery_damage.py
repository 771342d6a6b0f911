"""Rows of raftlog/storage/recovery/recovery_table.py about damaged and missing frames: kept back, fetched, never
cut."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from jepsen_like.fakes.memory_fs import MemoryFile
from raftlog.errors import CorruptLogError, DamagedLogError
from raftlog.frame import make_entry, tail_after
from raftlog.storage.files.fs import Buffers, read_file, write_file
from raftlog.storage.files.run_file import Run, RunFile, RunState
from raftlog.storage.log.log_reader import LogReader
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.storage.segments.damage import DamagedRange
from raftlog.storage.segments.segment import (
    LOCAL_HEADER_SIZE,
)
from raftlog.storage.segments.segment_index import decode_index, encode_index
from raftlog.storage.verify.verify_directory import verify_log
from raftlog.types import EntryType
from tests.support.damaged_disk import DATA, GROUP, LOG, Disk, Frames, NewLog, row


@pytest.fixture
def disk(new_log: NewLog, frames: Frames) -> Disk:
    """A disk after kill -9."""
    return Disk(new_log, frames)


@row("damage below the mark")
@pytest.mark.parametrize(("first", "last"), [(7, 7), (8, 8), (7, 8)])
@pytest.mark.parametrize("where", [0, 5, 30, 44, 64, 500, 1063])
def test_damage_below_the_mark_is_never_cut(disk: Disk, first: int, last: int, where: int) -> None:
    """Entry 9 lies above the mark: it follows what the mark names, so the end of the log is known."""
    before = disk.file(2)
    for index in {first, last}:
        disk.fs.damage(disk.paths[2], disk.offset(index) + where, b"\xee")
    damaged = disk.file(2)
    log = disk.open()
    after = disk.file(2)
    assert after[LOCAL_HEADER_SIZE:] == damaged[LOCAL_HEADER_SIZE:] != before[LOCAL_HEADER_SIZE:]
    assert not disk.trash()
    disk.check_damaged(log, first, last, "damage below the mark")


@row("damage below the mark", "damage in a sealed segment")
@pytest.mark.parametrize("index", range(1, 9))
@pytest.mark.parametrize("where", [0, 500])
@pytest.mark.parametrize("sidecars", [True, False])
def test_bad_sectors_are_damage(disk: Disk, index: int, where: int, sidecars: bool) -> None:
    """The frames that share a sector that cannot be read are damaged, all others are served."""
    path = max(path for path in disk.paths if int(path.stem) <= disk.entries[index].position)
    sector = (disk.offset(index) + where) // 512 * 512
    disk.fs.spoil(path, sector, 1)
    if not sidecars:
        for sealed in disk.paths[:2]:
            disk.fs.unlink(sealed.with_suffix(".idx"))
    found = {finding.kind for finding in verify_log(disk.fs, DATA, group_id=GROUP)}
    assert "frame" in found
    log = disk.open()
    assert log.report.vote_withheld is None
    assert log.tail.index == 9
    lost = [
        entry.index
        for entry in disk.entries
        if str(path) == str(max(p for p in disk.paths if int(p.stem) <= entry.position))
        and disk.offset(entry.index) < sector + 512
        and sector < disk.offset(entry.index) + entry.size
    ]
    assert index in lost
    for entry in disk.entries:
        try:
            assert log.read_entries(entry.index, entry.index + 1, 1 << 20) == [entry]
        except DamagedLogError:
            assert entry.index in lost
    for damaged in log.damage.ranges:
        log.repair(damaged, disk.raw(damaged.first_index, damaged.last_index))
    disk.check(log, 10)


def with_terms(disk: Disk, *more: tuple[int, EntryType]) -> SegmentedLog:
    """Appends entries of (term, type) from index 10 on, the last above the mark. Returns the log of a killed node."""
    log = disk.open()
    for term, kind in more:
        payload = b"" if kind is EntryType.NOOP else b"x" * 20
        tail = tail_after(log.tail, disk.entries[-1])
        disk.entries.append(
            make_entry(
                tail, term=term, entry_type=kind, payload=payload, timestamp_ms=0, group_id=GROUP, segment_size=4096
            )
        )
    log.append(disk.entries[10:-1])
    log.append(disk.entries[-1:])
    disk.fs.restart()
    return log


NOOP, MESSAGES = EntryType.NOOP, EntryType.MESSAGES


@row("damage below the mark")
@pytest.mark.parametrize(
    ("more", "victim", "term"),
    [
        (((5, NOOP), (5, MESSAGES), (5, MESSAGES)), 10, 5),  # what follows is no NOOP: the term began before it
        (((5, NOOP), (5, MESSAGES)), 10, 5),  # the mark names it
        (((1, MESSAGES), (2, NOOP), (2, MESSAGES)), 10, 1),  # between terms 1 and 2 there is no other
        (((300, NOOP), (300, MESSAGES), (301, NOOP), (301, MESSAGES)), 11, 300),  # nor between 300 and 301
    ],
)
def test_the_term_of_one_damaged_header_is_told_by_its_neighbours(
    disk: Disk, more: tuple[tuple[int, EntryType], ...], victim: int, term: int
) -> None:
    log = with_terms(disk, *more)
    disk.fs.damage(
        log.state.segments[-1].path, log.state.segments[-1].file_offset(disk.entries[victim].position) + 8, b"\xee"
    )
    log = disk.open()
    assert log.report.vote_withheld is None
    assert not disk.trash()
    assert log.tail.index == 9 + len(more)
    assert [each for first, each in log.term_ranges() if first <= victim][-1] == term
    (damaged,) = log.damage.ranges
    assert damaged[2:4] == (victim, victim)
    log.repair(damaged, disk.raw(victim, victim))
    assert log.read_entries(0, len(disk.entries), 1 << 20) == disk.entries


@row("unreadable tail below the mark")
@pytest.mark.parametrize(
    ("more", "victims"),
    [
        (((2, NOOP), (4, NOOP), (4, MESSAGES), (4, MESSAGES)), (10,)),  # may be of term 1, 2 or 3
        (((5, NOOP), (5, MESSAGES), (5, MESSAGES), (5, MESSAGES)), (10, 11)),  # where the term began is lost
    ],
)
def test_a_hole_of_unknown_terms_is_cut_and_the_vote_withheld(
    disk: Disk, more: tuple[tuple[int, EntryType], ...], victims: tuple[int, ...]
) -> None:
    log = with_terms(disk, (1, MESSAGES), *more)
    for victim in victims:
        segment = log.state.segments[-1]
        disk.fs.damage(segment.path, segment.file_offset(disk.entries[victim + 1].position) + 8, b"\xee")
    log = disk.open()
    assert log.tail.index == 10
    disk.check_withheld(log, disk.entries[-2].index, disk.entries[-2].term, "unreadable tail below the mark")


@row("damage below the mark")
def test_frames_between_two_damaged_headers_are_fetched_too(new_log: NewLog, frames: Frames) -> None:
    disk = Disk(new_log, frames)
    log = disk.open()
    disk.entries += frames(log.tail, [40] * 6)
    log.append(disk.entries[10:])
    log.write_idle_mark()
    disk.fs.restart()
    for index in (11, 13):
        disk.fs.damage(
            log.state.segments[-1].path, log.state.segments[-1].file_offset(disk.entries[index].position) + 8, b"\xee"
        )
    log = disk.open()
    (damaged,) = log.damage.ranges
    assert damaged[2:4] == (11, 13), "nothing links entry 12 to what is known"
    assert log.read_entries(14, 16, 1 << 20) == disk.entries[14:]
    log.repair(damaged, disk.raw(11, 13))
    assert log.read_entries(0, 16, 1 << 20) == disk.entries


@row("damage below the mark")
def test_frames_that_a_client_made_do_not_join_the_log(new_log: NewLog, frames: Frames) -> None:
    """A payload may hold bytes that are a whole frame, checksums, place and all: no chain leads from it to the mark."""
    disk = Disk(new_log, frames)
    log = disk.open()
    victim = frames(log.tail, [200])[0]
    inner_tail = tail_after(log.tail, victim)._replace(end_position=log.tail.end_position + 64 + 10)
    inner = frames(inner_tail, [20])[0]
    forged = b"x" * 10 + inner.header + inner.payload
    entry = make_entry(
        log.tail,
        term=1,
        entry_type=3,
        payload=forged.ljust(200, b"y"),
        timestamp_ms=0,
        group_id=GROUP,
        segment_size=4096,
    )
    disk.entries.append(entry)
    disk.entries += frames(tail_after(log.tail, entry), [30, 30])
    log.append(disk.entries[10:])
    log.write_idle_mark()
    disk.fs.restart()
    segment = log.state.segments[-1]
    disk.fs.damage(segment.path, segment.file_offset(entry.position) + 8, b"\xee")
    log = disk.open()
    (damaged,) = log.damage.ranges
    assert damaged[2:4] == (10, 10)
    assert log.tail.index == 12
    with pytest.raises(DamagedLogError):
        log.read_entries(10, 11, 1 << 20)


@row("unreadable tail below the mark")
def test_a_made_up_frame_that_ends_at_the_mark_is_not_its_frame(new_log: NewLog, frames: Frames) -> None:
    """The last payload ends in a whole frame, with the right place and index; the mark names another header_crc."""
    disk = Disk(new_log, frames)
    log = disk.open()
    disk.entries += frames(log.tail, [50])
    tail = tail_after(log.tail, disk.entries[10])
    inner = frames(tail._replace(end_position=tail.end_position + 64 + 36), [36])[0]
    payload = b"x" * 36 + inner.header + inner.payload
    disk.entries.append(
        make_entry(tail, term=1, entry_type=3, payload=payload, timestamp_ms=0, group_id=GROUP, segment_size=4096)
    )
    assert inner.end_position == disk.entries[11].end_position
    assert inner.index == 11
    log.append(disk.entries[10:])
    log.write_idle_mark()
    disk.fs.restart()
    segment = log.state.segments[-1]
    for index in (10, 11):
        disk.fs.damage(segment.path, segment.file_offset(disk.entries[index].position) + 8, b"\xee")
    log = disk.open()
    disk.check_withheld(log, 11, 1, "unreadable tail below the mark")
    assert log.tail.index == 9
    assert not log.damage


@row("complete above the mark")
def test_what_is_complete_above_the_mark_is_written_again_before_it_counts(new_log: NewLog, frames: Frames) -> None:
    """The system may take bytes for clean that are not on disk after a sync that failed: syncing alone says nothing."""
    calls: list[tuple[str, Path, int, bytes]] = []

    class Watched(MemoryFile):
        def pwritev(self, buffers: Buffers, offset: int) -> None:
            calls.append(("write", self.path, offset, b"".join(buffers)))
            super().pwritev(buffers, offset)

        def fdatasync(self) -> None:
            calls.append(("sync", self.path, 0, b""))
            super().fdatasync()

    disk = Disk(partial(new_log, file_kind=Watched), frames)
    calls.clear()
    log = disk.open()
    assert "complete above the mark" in log.report.rows
    written = calls.index(("write", disk.paths[2], disk.offset(9), disk.raw(9, 9)))
    assert ("sync", disk.paths[2], 0, b"") in calls[written:]


@row("local header of the active segment", "local header of a sealed segment")
@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("sidecars", [True, False])
def test_a_damaged_local_header_is_written_again(disk: Disk, number: int, sidecars: bool) -> None:
    before = disk.file(number)
    disk.fs.damage(disk.paths[number], 20, b"\xee")
    if not sidecars:
        for path in disk.paths[:2]:
            disk.fs.unlink(path.with_suffix(".idx"))
    log = disk.open()
    assert f"local header of {'the active' if number == 2 else 'a sealed'} segment" in log.report.rows
    assert disk.trash() == [f"000001-{disk.paths[number].name}.from-0"]
    assert disk.file(number)[:64] == before[:64]
    assert not log.damage
    disk.check(log, 10)


@row("local header of the active segment", "local header of a sealed segment", "both marks damaged")
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_local_header_on_bad_sectors_is_written_again(disk: Disk, number: int) -> None:
    """Both marks are lost with the page of the active file, so the vote is withheld; nothing else is."""
    disk.fs.spoil(disk.paths[number], 0, LOCAL_HEADER_SIZE)
    log = disk.open()
    assert log.tail.index == 9
    assert not log.damage
    if number == 2:
        disk.check_withheld(log, 9, 1, "both marks damaged")
    else:
        assert log.report.vote_withheld is None
    disk.check(log, 10)


@row("local header of a sealed segment", "damaged headers in a sealed segment")
def test_a_damaged_local_header_behind_damaged_frames(disk: Disk) -> None:
    disk.fs.damage(disk.paths[1], 20, b"\xee")
    disk.fs.damage(disk.paths[0], disk.offset(3) + 8, b"\xee")
    disk.fs.unlink(disk.paths[0].with_suffix(".idx"))
    disk.check_damaged(disk.open(), 3, 3, "damaged headers in a sealed segment")
    assert b"RMQS" in disk.file(1)[:4]


def test_a_local_header_that_nothing_can_tell_is_refused(disk: Disk) -> None:
    disk.fs.damage(disk.paths[1], 20, b"\xee")
    disk.fs.damage(disk.paths[1], disk.offset(4) + 8, b"\xee")
    disk.fs.damage(disk.paths[0], disk.offset(3) + 8, b"\xee")
    disk.fs.unlink(disk.paths[0].with_suffix(".idx"))
    with pytest.raises(CorruptLogError, match="neither its first frame nor the end of the file before it"):
        disk.open()


@row("missing middle segment")
@pytest.mark.parametrize("sidecars", [(), (0,), (1,), (0, 1)])
def test_a_missing_file_in_the_middle_is_fetched(disk: Disk, sidecars: tuple[int, ...]) -> None:
    disk.fs.unlink(disk.paths[1])
    for number in sidecars:
        disk.fs.unlink(disk.paths[number].with_suffix(".idx"))
    log = disk.open()
    assert log.damage.ranges[0].located == (1 not in sidecars)
    disk.check_damaged(log, 4, 6, "missing middle segment")


@row("missing middle segment")
def test_several_missing_files_are_fetched_as_one(new_log: NewLog, frames: Frames) -> None:
    disk = Disk(new_log, frames)
    log = disk.open()
    disk.entries += frames(log.tail, [1000] * 6)
    log.append(disk.entries[10:])
    disk.fs.restart()
    bases = [segment.base for segment in log.state.segments]
    for base in bases[1:4]:
        disk.fs.unlink(LOG / f"{base:020d}.seg")
    log = disk.open()
    (damaged,) = log.damage.ranges
    assert damaged[2:4] == (4, 12)
    repair = log.repairing(damaged)
    data = disk.raw(4, 12)
    for at in range(0, len(data), 333):
        repair.feed(data[at : at + 333])
    repair.finish()
    for opened in (log, None):
        opened = opened or disk.open()
        assert [segment.base for segment in opened.state.segments] == bases
        assert opened.read_entries(0, 16, 1 << 30) == disk.entries
        assert not opened.damage
        disk.fs.crash(1)


def test_a_missing_file_that_hides_where_terms_begin_needs_a_commit(disk: Disk, frames: Frames) -> None:
    log = disk.open()
    log.append(frames(log.tail_at(5), [1000] * 5, term=2))
    disk.entries[6:] = log.read_entries(6, 11, 1 << 20)
    disk.fs.restart()
    disk.fs.unlink(disk.paths[1])
    disk.fs.unlink(disk.paths[1].with_suffix(".idx"))
    with pytest.raises(CorruptLogError, match=r"terms 1 to 2 begin, and it is not known that they were committed"):
        disk.open()
    with pytest.raises(CorruptLogError):
        disk.open(committed_index=5)
    log = disk.open(committed_index=6)
    log.repair(log.damage.ranges[0], disk.raw(4, 6))
    assert log.term_ranges() == [(0, 0), (1, 1), (6, 2)]
    assert log.read_entries(0, 11, 1 << 20) == disk.entries


@row("missing first segment", "GENESIS damaged")
def test_a_missing_first_file_is_fetched(disk: Disk) -> None:
    disk.fs.unlink(disk.paths[0])
    disk.check_damaged(disk.open(), 0, 3, "missing first segment")


@row("missing last segment")
@pytest.mark.parametrize("clean", [True, False])
def test_a_missing_last_file_withholds_the_vote(new_log: NewLog, frames: Frames, clean: bool) -> None:
    disk = Disk(new_log, frames, clean=clean)
    if not clean:
        RunFile(disk.fs, DATA, group_id=GROUP).write(Run(RunState.RUNNING, 1, bytes(16), 5, 9, 1))
    disk.fs.unlink(disk.paths[2])
    log = disk.open()
    disk.check_withheld(log, 9, 1, "missing last segment")
    disk.check(log, 7)


@row("GENESIS damaged")
def test_a_damaged_genesis_is_known_from_its_copy(disk: Disk) -> None:
    disk.fs.damage(disk.paths[0], disk.offset(0) + 70, b"\xee")
    log = disk.open()
    assert log.genesis.group_id == GROUP
    log.repair(log.damage.ranges[0], disk.raw(0, 0))
    disk.check(log, 10)


def test_a_damaged_genesis_without_its_copy_is_refused(disk: Disk) -> None:
    disk.fs.damage(disk.paths[0], disk.offset(0) + 70, b"\xee")
    disk.fs.damage(DATA / "GENESIS", 70, b"\xee")
    with pytest.raises(CorruptLogError, match=r"GENESIS is damaged .*Put GENESIS of any other node"):
        disk.open()


def test_a_damaged_copy_of_genesis_is_written_again(disk: Disk) -> None:
    good = read_file(disk.fs, DATA / "GENESIS")
    disk.fs.damage(DATA / "GENESIS", 70, b"\xee")
    disk.open()
    assert read_file(disk.fs, DATA / "GENESIS") == good == disk.raw(0, 0)


@row("damaged headers in a sealed segment")
@pytest.mark.parametrize(("first", "last"), [(4, 4), (5, 5), (6, 6), (4, 6)])
def test_damaged_headers_without_a_sidecar(disk: Disk, first: int, last: int) -> None:
    for index in range(first, last + 1):
        disk.fs.damage(disk.paths[1], disk.offset(index) + 8, b"\xee")
    disk.fs.unlink(disk.paths[1].with_suffix(".idx"))
    disk.check_damaged(disk.open(), first, last, "damaged headers in a sealed segment")


@row("sidecar")
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
    log.append(frames(log.tail_at(1), [700, 700, 700, 700, 700], term=2))
    expected = log.read_entries(0, log.tail.index + 1, 1 << 30)
    disk.fs.damage(disk.paths[0].with_suffix(".idx"), 0, stale)
    disk.fs.restart()
    log = disk.open()
    assert log.read_entries(0, log.tail.index + 1, 1 << 30) == expected
    assert log.term_ranges() == [(0, 0), (1, 1), (2, 2)]


@row("local header of a sealed segment", "missing middle segment")
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("missing", [False, True])
def test_a_sidecar_that_ends_before_its_file_does_is_not_believed(disk: Disk, number: int, missing: bool) -> None:
    """The next file cannot tell where this one ends: its local header is damaged, or the file is missing."""
    if missing and number == 2:
        return  # the last file: nothing says that there was one
    sidecar = disk.paths[number - 1].with_suffix(".idx")
    _, index = decode_index(read_file(disk.fs, sidecar), GROUP)
    last = [3, 6][number - 1]
    index.cut(last)
    write_file(disk.fs, sidecar, b"".join(encode_index(index, disk.entries_tail(last - 1), GROUP)))
    if missing:
        disk.fs.unlink(disk.paths[1])
        disk.check_damaged(disk.open(), 4, 6, "missing middle segment")
    else:
        disk.fs.damage(disk.paths[number], 20, b"\xee")
        log = disk.open()
        assert not log.damage
        disk.check(log, 10)


@row("local header of a sealed segment")
def test_an_honest_sidecar_spares_reading_its_file(disk: Disk) -> None:
    """Also where the next file cannot tell: a start reads no sealed file whole that has its index."""
    whole = disk.fs.open(disk.paths[0]).size()
    disk.fs.damage(disk.paths[1], 20, b"\xee")
    with_index = disk.open().report.bytes_scanned
    disk.fs.damage(disk.paths[1], 20, b"\xee")
    disk.fs.unlink(disk.paths[0].with_suffix(".idx"))
    assert disk.open().report.bytes_scanned > with_index
    assert with_index < whole


@row("damage in a sealed segment")
def test_damage_in_a_sealed_payload_shows_when_read(disk: Disk) -> None:
    disk.fs.damage(disk.paths[1], disk.offset(5) + 200, b"\xee")
    log = disk.open()
    assert log.read_entries(4, 5, 1 << 30) == disk.entries[4:5]
    with pytest.raises(DamagedLogError, match=r"entries 5\.\.5: .*CRC mismatch at index 5"):
        log.read_entries(5, 6, 1 << 30)
    assert log.read_entries(6, 10, 1 << 30) == disk.entries[6:]


def test_a_sidecar_that_rots_while_running_is_not_believed(disk: Disk) -> None:
    log = disk.open()
    for number in (0, 1):
        sidecar = disk.paths[number].with_suffix(".idx")
        other = disk.fs.open(disk.paths[1 - number].with_suffix(".idx")).pread(1 << 20, 0)
        disk.fs.damage(sidecar, 0, other)
        assert log.read_entries(0, 10, 1 << 30) == disk.entries


@row("damage in a sealed segment")
@pytest.mark.parametrize("later", [[2], [2, 1]])
def test_bytes_that_rot_while_a_reader_looks_for_damage_are_damage_too(
    disk: Disk, later: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by readers beside a disk that rots all the time: a second rotten entry is no reason to stop the node."""
    log = disk.open()
    disk.fs.damage(disk.paths[0], disk.offset(3) + 100, b"\xee")
    find, left = LogReader.find_damage, list(later)

    def found_and_then(self: LogReader, low: int, high: int) -> DamagedRange | None:
        found = find(self, low, high)
        if left:
            index = left.pop(0)
            disk.fs.damage(disk.paths[0], disk.offset(index) + 100, b"\xee")
        return found

    monkeypatch.setattr(LogReader, "find_damage", found_and_then)
    assert log.read_entries(0, 4, 1 << 20) == disk.entries[: min(later)]
    assert not left
