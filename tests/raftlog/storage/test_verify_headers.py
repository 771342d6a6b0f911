"""The offline check where the page that says what a file is cannot be read, and FIRST neither."""

from __future__ import annotations

import pytest

from raftlog.errors import CorruptLogError
from raftlog.storage.files import layout
from raftlog.storage.segments.segment import (
    LOCAL_HEADER_SIZE,
    MARK_OFFSETS,
    decode_header,
    encode_header,
    encode_mark,
    newest_mark,
)
from raftlog.storage.verify.findings import Finding, Severity
from raftlog.storage.verify.verify_directory import verify_log
from tests.support.damaged_disk import DATA, GROUP, LOG, Disk, Frames, NewLog


@pytest.fixture
def disk(new_log: NewLog, frames: Frames) -> Disk:
    return Disk(new_log, frames)


def lose_first(disk: Disk) -> None:
    if disk.fs.exists(LOG / layout.FIRST):
        disk.fs.damage(LOG / layout.FIRST, 20, b"\xee")
    else:
        disk.fs.open(LOG / layout.FIRST, create=True).pwritev([b"rot"], 0)


def found(disk: Disk) -> list[Finding]:
    """Returns the findings about the log: this directory has nothing else."""
    return [finding for finding in verify_log(disk.fs, DATA, group_id=GROUP) if LOG in finding.path.parents]


def test_a_log_that_begins_with_the_first_file_is_checked_whatever_else_is_lost(disk: Disk) -> None:
    """Nothing comes before position 0: no header needs to say so."""
    lose_first(disk)
    disk.fs.damage(disk.paths[0], 20, b"\xee")
    assert not [finding for finding in found(disk) if "not checked" in finding.text or finding.kind == "frame"]
    disk.fs.damage(disk.paths[0], disk.offset(2) + 8, b"\xee")
    assert [finding.path for finding in found(disk) if finding.kind == "frame"] == [disk.paths[0]]


def trimmed(disk: Disk) -> None:
    """Begins with the second file, of which neither FIRST nor its own header tells."""
    log = disk.open()
    log.remove_files(log.trim(disk.entries[4].position))
    log.close(clean=False)
    lose_first(disk)
    disk.fs.damage(disk.paths[1], 20, b"\xee")


def test_a_trimmed_log_is_checked_from_its_first_frame_on_as_a_start_reads_it(disk: Disk) -> None:
    trimmed(disk)
    assert {finding.severity for finding in found(disk)} == {Severity.NOTE}
    assert disk.open().first_index == 4


def test_damage_is_found_in_a_trimmed_log_that_only_its_first_frame_places(disk: Disk) -> None:
    trimmed(disk)
    disk.fs.damage(disk.paths[1], disk.offset(5) + 200, b"\xee")
    assert [finding.path for finding in found(disk) if finding.kind == "frame"] == [disk.paths[1]]


def test_a_trimmed_log_that_nothing_places_is_not_checked_and_does_not_start(disk: Disk) -> None:
    trimmed(disk)
    disk.fs.damage(disk.paths[1], disk.offset(4) + 8, b"\xee")
    said = [finding for finding in found(disk) if "what comes before it is not known" in finding.text]
    assert [(finding.path, finding.severity) for finding in said] == [(disk.paths[1], Severity.FATAL)]
    with pytest.raises(CorruptLogError, match="tells what it was"):
        disk.open()


def test_a_file_whose_successor_names_another_last_frame_is_found(disk: Disk) -> None:
    """Every checksum fits: the files are of two histories."""
    page = disk.file(1)[:LOCAL_HEADER_SIZE]
    header = decode_header(page, disk.paths[1], GROUP)
    other = header.previous._replace(header_crc=header.previous.header_crc ^ 1)
    disk.fs.damage(disk.paths[1], 0, encode_header(other, GROUP)[: MARK_OFFSETS[0]])
    fatal = [finding for finding in found(disk) if finding.severity is Severity.FATAL]
    said = f"but {other.header_crc:08x} should"
    assert [(each.path, each.offset, each.size) for each in fatal if said in each.text] == [(disk.paths[0], 0, 0)]


def test_files_that_a_trim_left_are_parted_from_the_log_as_a_start_does_it(disk: Disk) -> None:
    log = disk.open()
    log.append(disk.frames(log.tail, [1000] * 14))
    bases = [int(name[:20]) for name in disk.fs.listdir(LOG) if name.endswith(".seg")]
    files = {base: disk.fs.open(LOG / layout.segment_name(base)).pread(1 << 20, 0) for base in bases}
    log.remove_files(log.trim(bases[5]))
    log.close(clean=False)
    for number in (0, 2, 3, 4):  # 2 to 4 lead up to the log: that trim was cut short
        disk.fs.open(LOG / layout.segment_name(bases[number]), create=True).pwritev([files[bases[number]]], 0)
    left = [(each.path.name, each.offset, each.size) for each in found(disk) if each.kind == "segment file"]
    assert left == [(layout.segment_name(bases[0]), 0, 0)]
    assert disk.open().first_position == bases[2]
    assert not [each for each in found(disk) if each.kind == "segment file"]


def test_a_sync_mark_in_the_middle_of_a_frame_is_found(disk: Disk) -> None:
    """It is intact: the file and the mark are of two histories."""
    mark = newest_mark(disk.file(2)[:LOCAL_HEADER_SIZE])
    assert mark is not None
    for seq, offset in enumerate(MARK_OFFSETS, mark.seq // 2 * 2):
        disk.fs.damage(disk.paths[2], offset, encode_mark(mark._replace(seq=seq, end_position=mark.end_position - 1)))
    fatal = [(each.kind, each.offset, each.text) for each in found(disk) if each.severity is Severity.FATAL]
    assert ("sync mark", MARK_OFFSETS[0], f"the sync mark at position {mark.end_position - 1} names no frame") in fatal
    with pytest.raises(CorruptLogError, match="not of one history"):
        disk.open()
