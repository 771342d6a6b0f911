"""A call that `append` refuses changes nothing; after one that failed all are refused; a full disk is given back its
room."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from jepsen_like.fakes.memory_fs import MemoryFile, MemoryFileSystem
from raftlog.errors import DamagedLogError, DiskFullError, FrameError, OutOfRangeError, StorageError
from raftlog.frame import genesis_entry, make_entry
from raftlog.storage.files.fs import storage_error
from raftlog.storage.files.genesis import Genesis
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.types import Entry, EntryType

DATA = Path("/data")
Frames = Callable[..., list[Entry]]
NewLog = Callable[..., tuple[MemoryFileSystem, SegmentedLog]]


def test_entries_that_do_not_follow_are_refused_and_nothing_is_cut(new_log: NewLog, frames: Frames) -> None:
    fs, log = new_log()
    entries = frames(log.tail, [100] * 6)
    log.append(entries)
    conflict = frames(log.tail_at(3), [50, 50, 50], term=2)
    calls = fs.calls
    stranger = make_entry(
        log.tail, term=1, entry_type=EntryType.NOOP, payload=b"", timestamp_ms=0, group_id=8, segment_size=4096
    )
    wrong = {
        "gap": frames(log.tail, [1, 1])[1:],
        "other parent": [frames(log.tail, [1])[0]._replace(parent=1)],
        "gap behind a conflict": [conflict[0], conflict[2]],
        "term runs back": frames(log.tail_at(3), [50], term=0),
        "other group": [stranger],
        "other genesis": [genesis_entry(b"x", timestamp_ms=1, group_id=7)],
    }
    for what, batch in wrong.items():
        with pytest.raises(FrameError):
            log.append(batch)
        assert fs.calls == calls, what
        assert log.read_entries(1, 7, 1 << 20) == entries, what
    log.append(conflict)
    assert log.read_entries(1, 7, 1 << 20) == entries[:3] + conflict
    log.append([])
    log.append(conflict[:1])
    assert log.tail.index == 6, "a re-sent entry that is here does not cut what follows it"


def test_a_failed_log_refuses_everything(new_log: NewLog, frames: Frames) -> None:
    fs, log = new_log()
    entries = frames(log.tail, [100] * 3)
    log.append(entries[:2])
    fs.fail_call(fs.calls + 3)  # mark, frames, fdatasync
    with pytest.raises(StorageError, match=r"syncing /data/log/0{20}\.seg failed: Input/output error"):
        log.append(entries[2:])
    calls = fs.calls
    refusals: list[Callable[[], object]] = [lambda: log.append(entries[2:]), log.write_idle_mark]
    for refused in refusals:
        with pytest.raises(StorageError, match="Input/output error"):
            refused()
    log.close(clean=True)
    assert fs.calls == calls, "not even an orderly stop writes after a failed sync"
    assert log.tail.index == 2
    assert log.read_entries(1, 3, 1 << 20) == entries[:2]


def test_one_append_is_one_sync_and_an_idle_mark_is_written_once(new_log: NewLog, frames: Frames) -> None:
    fs, log = new_log()
    batch = frames(log.tail, [10] * 20)
    log.append(batch[:1])
    for number in (1, 2):
        calls = fs.calls
        log.append(batch[number : number + 1])
        assert fs.calls - calls == 3, "mark and frames, one sync"
        assert fs.trace[-1].startswith("fdatasync")
    log.write_idle_mark()
    calls = fs.calls
    log.write_idle_mark()
    assert fs.calls == calls
    log.append(batch[3:])
    assert fs.calls - calls == 2, "the mark is there already"


def test_preparing_on_a_full_disk_harms_nothing(new_log: NewLog, frames: Frames) -> None:
    fs, log = new_log(space_left=4096 * 3)
    entries = frames(log.tail, [1000] * 3)
    log.append(entries[:2])
    assert log.needs_next()
    left = fs.space_left
    with pytest.raises(DiskFullError, match=r"preparing .*next\.tmp failed: no space left"):
        log.prepare_next()
    assert fs.space_left == left
    assert log.needs_next()
    log.append(entries[2:])
    fs.space_left = 1 << 30
    log.prepare_next()
    assert not log.needs_next()


def test_a_bad_sector_is_damage_and_a_lack_of_descriptors_is_not(new_log: NewLog, frames: Frames) -> None:
    code = 0

    class Unread(MemoryFile):
        def pread(self, size: int, offset: int) -> bytes:
            if code:
                raise OSError(code, os.strerror(code))
            return super().pread(size, offset)

    _, log = new_log(file_kind=Unread)
    log.append(frames(log.tail, [10]))
    for read in (lambda: log.read_entries(0, 2, 1), lambda: log.read_at(0, 10), lambda: log.read_raw(0, 10)):
        code = errno.EMFILE
        with pytest.raises(StorageError, match=r"reading .* failed: Too many open files") as caught:
            read()
        assert type(caught.value) is StorageError
        assert not log.damage
    for read in (lambda: log.read_entries(0, 2, 1), lambda: log.read_at(0, 10), lambda: log.read_raw(0, 10)):
        code = errno.EIO
        with pytest.raises(DamagedLogError, match=r"entry 0 cannot be read: Input/output error"):
            read()
    assert [(found.first_index, found.last_index) for found in log.damage.ranges] == [(0, 1)]


@pytest.mark.parametrize(("low", "high"), [(-1, 1), (0, 3), (3, 4)])
def test_reads_outside_the_log(new_log: NewLog, frames: Frames, low: int, high: int) -> None:
    _, log = new_log()
    log.append(frames(log.tail, [10]))
    with pytest.raises(OutOfRangeError, match=r"which has 0\.\.1"):
        log.read_entries(low, high, 100)


def test_create_refuses_a_log_that_is_there(new_log: NewLog, genesis: Genesis) -> None:
    fs, _ = new_log()
    with pytest.raises(StorageError, match="already holds a log"):
        SegmentedLog.create(fs, DATA, genesis=genesis.entry(), segment_size=genesis.segment_size)
    with pytest.raises(FrameError, match="GENESIS says segment_size 4096, not 8192"):
        SegmentedLog.create(fs, DATA, genesis=genesis.entry(), segment_size=8192)


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (errno.EACCES, "run it as the user who owns /data/VOTE and its directory"),
        (errno.EROFS, "for writing"),
        (errno.EIO, "check the disk."),
    ],
)
def test_a_folder_of_another_user_is_nothing_that_is_wrong_with_the_disk(code: int, advice: str) -> None:
    told = str(storage_error(MemoryFileSystem(), "opening", Path("/data/VOTE"), OSError(code, os.strerror(code))))
    assert advice in told
    assert ("check the disk" in told) is (code != errno.EACCES)
