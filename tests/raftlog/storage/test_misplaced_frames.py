"""Bytes that are intact but not those that belong there: a disk that writes to the wrong place, or that cannot read."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from jepsen_like.fakes.memory_fs import MemoryFile, MemoryFileSystem
from raftlog.errors import DamagedLogError, FrameError
from raftlog.frame import FrameHeader
from raftlog.storage.files import layout, log_first
from raftlog.storage.segments.segment import LOCAL_HEADER_SIZE
from raftlog.types import Entry
from tests.support.damaged_disk import Disk
from tests.support.rows import each_row

LOG = Path("/data/log")
GROUP = 7


def read(log: Any, low: int, high: int) -> list[Entry]:
    found: list[Entry] = log.read_entries(low, high, 1 << 20)
    return found


@each_row(("low", "high"), [(1, 3), (1, 5), (2, 3), (2, 5)])
@each_row("stale", [False, True])
def test_the_frame_of_another_entry_is_not_read_as_this_one(
    new_log: Any, frames: Any, low: int, high: int, stale: bool
) -> None:
    """Its checksums are right. It is of another entry (a write to the wrong place), or what was there before (a write
    that was lost)."""
    fs, log = new_log()
    (first,) = frames(log.tail, [10])
    log.append([first])
    (before,) = frames(log.tail, [10])
    entries = [first, *frames(log.tail, [10] * 3, term=2)]
    log.append(entries[1:])
    wrong, right = before if stale else entries[2], entries[1]
    assert len(wrong.payload) == len(right.payload)
    file = fs.open(log.state.segments[0].path)
    file.pwritev([wrong.header + wrong.payload], LOCAL_HEADER_SIZE + right.position)
    if low == right.index:
        with pytest.raises(DamagedLogError):
            read(log, low, high)
    else:
        assert read(log, low, high) == [first], "reads stop in front of it"
    assert [found[2:4] for found in log.damage.ranges] == [(right.index, right.index)]
    assert read(log, 3, 5) == entries[2:]


@pytest.mark.parametrize(("error", "told"), [(errno.EIO, None), (errno.EMFILE, "raised")])
def test_FIRST_that_cannot_be_read_is_damaged_and_one_that_cannot_be_opened_now_is_not(
    error: int, told: str | None
) -> None:
    class Refusing(MemoryFileSystem):
        def open(self, path: Path, *, create: bool = False) -> MemoryFile:
            if not create:
                raise OSError(error, "no")
            return super().open(path, create=create)

    fs = Refusing()
    fs.mkdir(LOG)
    fs.open(LOG / layout.FIRST, create=True).pwritev([b"x" * 100], 0)
    if told:
        with pytest.raises(OSError, match="no"):
            log_first.load(fs, LOG, GROUP)
    else:
        assert log_first.load(fs, LOG, GROUP) is None


def test_a_file_that_goes_with_its_sidecar_has_no_places(new_log: Any, frames: Any) -> None:
    """While the log is open: where its entries lay is not known until a peer gives them again."""
    disk = Disk(new_log, frames, clean=True)
    log = disk.open()
    disk.fs.unlink(disk.paths[1])
    disk.fs.unlink(disk.paths[1].with_suffix(layout.INDEX_SUFFIX))
    for index in (4, 5, 6):
        with pytest.raises(DamagedLogError):
            log.position_of(index)
    (hole,) = log.damage.ranges
    assert (hole.first_index, hole.last_index, hole.located) == (4, 6, False)
    assert log.position_of(7) == disk.entries[7].position


@pytest.mark.parametrize("payload", [b"", b"123456789", b"12345678901"])
def test_a_payload_of_another_length_is_told_by_its_length(new_log: Any, frames: Any, payload: bytes) -> None:
    """A checksum of 32 bits may be right by chance."""
    _, log = new_log()
    (entry,) = frames(log.tail, [10])
    with pytest.raises(FrameError, match=f"payload has {len(payload)} bytes, the header says 10"):
        FrameHeader(entry.header, GROUP).entry(payload)
    with pytest.raises(FrameError, match="payload CRC mismatch at index 1, position"):
        FrameHeader(entry.header, GROUP).entry(b"1234567890")
