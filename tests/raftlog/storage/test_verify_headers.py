"""The offline check where the page that says what a file is cannot be read, and FIRST neither."""

from __future__ import annotations

import pytest
from damaged_disk import DATA, GROUP, LOG, Disk, Frames, NewLog

from raftlog.errors import CorruptLogError
from raftlog.storage import layout
from raftlog.storage.findings import Finding, Severity
from raftlog.storage.segment import LOCAL_HEADER_SIZE, MARK_OFFSETS, decode_header, encode_header
from raftlog.storage.verify import verify_log


@pytest.fixture
def disk(new_log: NewLog, frames: Frames) -> Disk:
    return Disk(new_log, frames)


def lose_first(disk: Disk) -> None:
    if disk.fs.exists(LOG / layout.FIRST):
        disk.fs.damage(LOG / layout.FIRST, 20, b"\xee")
    else:
        disk.fs.open(LOG / layout.FIRST, create=True).pwritev([b"rot"], 0)


def found(disk: Disk) -> list[Finding]:
    """Of the log: this directory has nothing else."""
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
