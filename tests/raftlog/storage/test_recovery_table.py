"""One test per row of raftlog/storage/recovery/recovery_table.py: how the last stop went, and what is local.

The rows about damaged and missing frames are in test_recovery_damage.py.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from google_crc32c import value as crc32c

from jepsen_like.fakes.memory_fs import PowerCut
from raftlog.errors import CorruptLogError, DiskFullError, LogGoneError, OutOfRangeError
from raftlog.storage.files import vote_withheld
from raftlog.storage.files.fs import read_file
from raftlog.storage.files.run_file import Run, RunFile, RunState, load_run
from raftlog.storage.files.vote_withheld import VoteWithheld
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.storage.recovery.recovery_table import BY_NAME, markdown
from raftlog.storage.segments import active_index
from raftlog.storage.segments.segment import (
    LOCAL_HEADER_SIZE,
    MARK_OFFSETS,
    decode_header,
    encode_header,
    newest_seq,
)
from tests.support.damaged_disk import DATA, GROUP, LOG, Disk, Frames, NewLog, row


@pytest.fixture
def disk(new_log: NewLog, frames: Frames) -> Disk:
    """A disk after kill -9."""
    return Disk(new_log, frames)


@row("clean stop")
def test_clean_stop_scans_nothing(new_log: NewLog, frames: Frames) -> None:
    disk = Disk(new_log, frames, clean=True)
    log = disk.open()
    assert log.report.clean
    assert log.report.bytes_scanned == 0
    assert log.report.entries == 10
    assert log.report.segments == 3
    assert not disk.fs.exists(LOG / "CLEAN")
    disk.check(log, 10)


@row("unclean stop")
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


@row("unclean stop", "damage below the mark")
def test_clean_stop_then_rot_of_the_last_frame_is_seen(new_log: NewLog, frames: Frames) -> None:
    disk = Disk(new_log, frames, clean=True)
    disk.fs.damage(disk.paths[2], disk.offset(9) + 500, b"\xff")
    disk.check_damaged(disk.open(), 9, 9, "damage below the mark")


@row("unclean stop", "complete above the mark")
def test_killed_process_loses_nothing(disk: Disk) -> None:
    log = disk.open()
    assert not log.report.clean
    assert log.report.torn_bytes_cut == 0
    assert 0 < log.report.bytes_scanned <= 2 * (LOCAL_HEADER_SIZE + log.segment_size)
    disk.check(log, 10)


@row("complete above the mark", "damage below the mark")
@pytest.mark.parametrize("seed", range(4))
def test_what_a_start_accepted_is_never_cut_by_the_next(disk: Disk, seed: int) -> None:
    """The node may have acknowledged entry 9 without an append. The power goes, and then a bit flips (simulator's seed
    130786946)."""
    assert "complete above the mark" in disk.open().report.rows
    disk.fs.crash(seed)
    disk.fs.damage(disk.paths[2], disk.offset(9) + 500, b"\xee")
    disk.check_damaged(disk.open(), 9, 9, "damage below the mark")


@row("torn tail")
@pytest.mark.parametrize("where", [0, 5, 30, 64, 500, 1063])
def test_damage_above_the_mark_is_cut(disk: Disk, where: int) -> None:
    disk.fs.damage(disk.paths[2], disk.offset(9) + where, b"\xee")
    log = disk.open()
    assert log.report.torn_bytes_cut > 0
    (reason,) = (reason for reason in log.report.reasons if "torn tail" in reason)
    assert "zeroes before" not in reason, "the reason is the damage that was met"
    rest = disk.fs.open(disk.paths[2]).pread(1 << 20, disk.offset(9))
    assert not any(rest)
    assert disk.trash() == [f"000001-{disk.paths[2].name}.from-{disk.offset(9)}"]
    kept = read_file(disk.fs, DATA / "trash" / disk.trash()[0])
    assert disk.raw(9, 9)[:where] + b"\xee" + disk.raw(9, 9)[where + 1 :] == kept.ljust(1064, b"\0")
    disk.check(log, 9)


@row("torn tail")
def test_bytes_after_zeroes_are_cut(disk: Disk) -> None:
    disk.fs.damage(disk.paths[2], disk.offset(9), bytes(1064))
    disk.fs.damage(disk.paths[2], disk.offset(9) + 300, b"tail")
    log = disk.open()
    assert log.report.torn_bytes_cut == 304
    disk.check(log, 9)


@row("unreadable tail below the mark")
@pytest.mark.parametrize("how", ["zeroes", "damaged headers", "end of file"])
def test_an_unreadable_tail_withholds_the_vote(disk: Disk, how: str) -> None:
    if how == "zeroes":
        disk.fs.damage(disk.paths[2], disk.offset(8), bytes(2 * 1064))
    elif how == "damaged headers":
        for index in (8, 9):
            disk.fs.damage(disk.paths[2], disk.offset(index) + 8, b"\xee")
    else:
        disk.fs.open(disk.paths[2]).truncate(disk.offset(8))
    log = disk.open()
    disk.check_withheld(log, 8, 1, "unreadable tail below the mark")
    assert log.tail.index == 7
    expected = [] if how in ("zeroes", "end of file") else [f"000001-{disk.paths[2].name}.from-{disk.offset(8)}"]
    assert disk.trash() == expected
    disk.fs.crash(2)
    log = disk.open()
    assert "unreadable tail below the mark" not in log.report.rows, "the marks are lowered with the cut"
    disk.check(log, 8)
    assert vote_withheld.load(disk.fs, DATA, GROUP) is not None
    vote_withheld.release(disk.fs, DATA)
    disk.fs.crash(1)
    assert disk.open().report.vote_withheld is None


@row("unreadable tail below the mark")
def test_the_vote_is_withheld_before_anything_is_cut(new_log: NewLog, frames: Frames) -> None:
    """The power goes at every call of such a start: whatever is missing then, the vote is withheld."""
    total = 0
    for number in range(60):
        disk = Disk(new_log, frames)
        for index in (8, 9):
            disk.fs.damage(disk.paths[2], disk.offset(index) + 8, b"\xee")
        before = disk.file(2)
        disk.fs.cut_power_at(disk.fs.calls + number + 1)
        try:
            disk.open()
        except PowerCut:
            total += 1
        else:
            break
        disk.fs.crash(number)
        if disk.file(2) != before:
            assert vote_withheld.load(disk.fs, DATA, GROUP) is not None, f"call {number}"
        log = disk.open()
        assert log.tail.index == 7
        assert vote_withheld.load(disk.fs, DATA, GROUP) is not None
    assert 10 < total < 59


@row("one mark damaged")
@pytest.mark.parametrize("slot", [0, 1])
def test_one_damaged_mark_is_harmless(disk: Disk, slot: int) -> None:
    disk.fs.damage(disk.paths[2], MARK_OFFSETS[slot] + 20, b"\xee")
    disk.check(disk.open(), 10)


@row("both marks damaged")
def test_both_marks_damaged_withholds_the_vote(disk: Disk) -> None:
    for offset in MARK_OFFSETS:
        disk.fs.damage(disk.paths[2], offset + 20, b"\xee")
    disk.fs.damage(disk.paths[2], disk.offset(9) + 100, b"\xee")
    log = disk.open()
    disk.check_withheld(log, 8, 1, "both marks damaged")
    assert disk.trash() == [f"000001-{disk.paths[2].name}.from-{disk.offset(9)}"]
    disk.fs.crash(2)
    log = disk.open()
    assert "both marks damaged" not in log.report.rows
    disk.check(log, 9)


@row("both marks damaged, CLEAN is there")
def test_both_marks_damaged_after_an_orderly_stop(new_log: NewLog, frames: Frames) -> None:
    disk = Disk(new_log, frames, clean=True)
    for offset in MARK_OFFSETS:
        disk.fs.damage(disk.paths[2], offset + 20, b"\xee")
    log = disk.open()
    assert "both marks damaged, CLEAN is there" in log.report.rows
    assert log.report.vote_withheld is None
    disk.check(log, 10)


@row("not of one history")
def test_a_mark_of_another_history_is_refused(disk: Disk, new_log: NewLog, frames: Frames) -> None:
    other_fs, other = new_log()
    for entry in frames(other.tail, [1000] * 9, term=2):
        other.append([entry])
    page = other_fs.open(disk.paths[2]).pread(LOCAL_HEADER_SIZE, 0)
    for offset in MARK_OFFSETS:
        disk.fs.damage(disk.paths[2], offset, page[offset : offset + 512])
    with pytest.raises(CorruptLogError, match="not of one history"):
        disk.open()


@row("another format")
@pytest.mark.parametrize(("version", "says"), [(11, "a newer RaftMQ wrote it"), (1, "a build before RaftMQ 0.1.0")])
def test_a_frame_of_another_format_is_refused_not_cut(disk: Disk, version: int, says: str) -> None:
    header = bytearray(disk.entries[9].header)
    header[25] = version
    header[4:8] = crc32c(bytes(header[8:])).to_bytes(4)
    disk.fs.damage(disk.paths[2], disk.offset(9), bytes(header))
    with pytest.raises(CorruptLogError, match=says):
        disk.open()


@row("last file without a frame")
def test_a_last_file_without_frames_is_set_aside(disk: Disk) -> None:
    """Power went between the roll and the first frame: the next entry goes where every other replica has it."""
    file = disk.fs.open(disk.paths[2])
    previous = decode_header(file.pread(4096, 0), disk.paths[2], GROUP).previous
    disk.fs.damage(disk.paths[2], 0, encode_header(previous, GROUP) + bytes(file.size() - 4096))
    log = disk.open()
    assert disk.trash() == [f"000001-{disk.paths[2].name}"]
    assert log.report.segments == 2
    disk.check(log, 7)
    small = disk.fs.open(disk.paths[1]).pread(69, disk.offset(6) + 1064)
    assert small[64:] == b"3:7;3", "a small entry still fits the file before"


@row("kept index damaged")
@pytest.mark.parametrize("how", ["good", "missing", "damaged", "above the mark", "of another history"])
def test_a_start_scans_from_the_kept_index(
    new_log: NewLog, frames: Frames, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(active_index, "DISTANCE", 1000)
    disk = Disk(new_log, frames)
    log = disk.open()
    assert log.needs_next()
    log.prepare_next()
    assert not log.needs_next()
    kept = read_file(disk.fs, LOG / "active.idx")
    if how == "above the mark":
        disk.fs.damage(disk.paths[2], MARK_OFFSETS[newest_seq(disk.fs.open(disk.paths[2])) % 2], b"\xee")
    else:
        log.write_idle_mark()
    if how == "of another history":
        log.append(frames(log.tail_at(7), [1000, 1000], term=2))
        log.write_idle_mark()
        disk.entries[8:] = log.read_entries(8, 10, 1 << 20)
    disk.fs.restart()
    if how == "missing":
        disk.fs.unlink(LOG / "active.idx")
    elif how == "damaged":
        disk.fs.damage(LOG / "active.idx", len(kept) - 1, b"\xee")
    log = disk.open()
    begins = {"good": disk.entries[9].end_position, "above the mark": disk.entries[9].position}
    assert log.report.scanned_from == begins.get(how, disk.entries[7].position)
    assert log.read_entries(0, 10, 1 << 20) == disk.entries
    assert log.report.rows[0] == "unclean stop"


@row("not of one history")
def test_a_renamed_file_is_refused(disk: Disk) -> None:
    disk.fs.rename(disk.paths[1], LOG / f"{7:020d}.seg")
    with pytest.raises(CorruptLogError, match=rf"was renamed. Give it back its name, {disk.paths[1].name}"):
        disk.open()


@row("RUN")
@pytest.mark.parametrize("how", ["missing", "one slot", "both slots"])
def test_what_run_tells_is_not_needed(disk: Disk, how: str) -> None:
    run = Run(RunState.RUNNING, 1, bytes(16), 5, 9, 1)
    if how != "missing":
        file = RunFile(disk.fs, DATA, group_id=GROUP)
        for started_ms in (4, 5):
            file.write(run._replace(started_ms=started_ms))
        for offset in (0, 4096) if how == "both slots" else (0,):
            disk.fs.damage(DATA / "RUN", offset + 100, b"\xee")
    assert load_run(disk.fs, DATA, GROUP) == (run._replace(started_ms=4) if how == "one slot" else None)
    disk.check(disk.open(), 10)


@row("VOTE_WITHHELD")
@pytest.mark.parametrize("damaged", [True, False])
def test_the_vote_stays_withheld(disk: Disk, damaged: bool) -> None:
    vote_withheld.withhold(disk.fs, DATA, VoteWithheld("a test", 12, 3, 55), GROUP)
    if damaged:
        disk.fs.damage(DATA / "VOTE_WITHHELD", 20, b"\xee")
    log = disk.open()
    found = log.report.vote_withheld
    assert found is not None
    assert (found.index, found.term) == ((-1, 0) if damaged else (12, 3))
    disk.check(log, 10)


def test_every_row_has_a_test_and_is_on_the_page() -> None:
    folder = Path(__file__).parent
    text = "".join(path.read_text() for path in folder.glob("test_*.py"))
    named = {name for names in re.findall(r"^@row\(([^)]*)\)$", text, re.M) for name in re.findall(r'"([^"]+)"', names)}
    elsewhere = {
        "hard state, one slot": "test_one_rotten_slot_is_harmless",
        "hard state, both slots": "test_two_rotten_slots_are_said",
        "hard state older than the log": "test_hard_state_older_than_the_log",
    }
    for name, test in elsewhere.items():
        assert f"def {test}(" in text, name
    assert named | set(elsewhere) == set(BY_NAME)
    page = (folder.parents[2] / "docs" / "disk-format.md").read_text()
    assert markdown() in page, "docs/disk-format.md shows another table than raftlog/storage/recovery/recovery_table.py"


@row("no segment file")
def test_no_file_at_all_is_refused(disk: Disk) -> None:
    for path in disk.paths:
        disk.fs.unlink(path)
    with pytest.raises(LogGoneError, match="holds no segment file"):
        disk.open()


@row("leftover temporary file")
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
    new = frames(log.tail_at(index - 1), [30], term=2)
    log.append(new)
    assert log.read_entries(0, index + 1, 1 << 30) == disk.entries[:index] + new
    with pytest.raises(OutOfRangeError):
        log.read_entries(index, index + 2, 1 << 30)
    active = log.state.segments[-1].path
    rest = disk.fs.open(active).pread(1 << 20, log.state.segments[-1].file_offset(log.tail.end_position))
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
    with pytest.raises(DiskFullError, match="the node continues by itself"):
        log.append(batch[len(done) - 1 : len(done)])
    assert log.read_entries(0, len(done), 1 << 30) == done
    fs.restart()
    fs.space_left = 1 << 40
    log = SegmentedLog.open(fs, DATA, group_id=GROUP)
    assert log.read_entries(0, len(done), 1 << 30) == done
