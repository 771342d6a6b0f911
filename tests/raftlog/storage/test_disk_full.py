"""A log and a vote on a disk without room: nothing that was refused counts, and the same call made again succeeds.

Every call of a scripted life that is not a sync finds no space, once: then the same append is made again, and the log
must be, byte for byte, the one of a life without a full disk. A sync that finds no space is final.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from jepsen_like.fakes.memory_fs import MemoryFile, MemoryFileSystem, PowerCut
from raftlog.errors import DiskFullError, OutOfSpaceError, StorageError
from raftlog.storage.files.fs import Buffers
from raftlog.storage.files.hard_state import HardStateStore
from raftlog.storage.files.run_file import Run, RunFile, RunState
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.storage.segments.segment import LOCAL_HEADER_SIZE, newest_mark
from raftlog.types import Entry, HardState, NodeId

DATA = Path("/data")
GROUP = 7
SIZES = ([100, 0, 700], [900] * 3, [1500, 1500, 600, 600], [600] * 8, [6000, 20], [3000, 3000, 3000, 3000])
Frames = Callable[..., list[Entry]]
NewLog = Callable[..., tuple[MemoryFileSystem, SegmentedLog]]


def life(log: SegmentedLog, frames: Frames, prepared: bool) -> tuple[list[Entry], int]:
    """Appends all batches, each again for as long as there is no space; returns what was appended, and the refusals."""
    done, refusals = log.read_entries(0, 1, 1), 0
    for number, sizes in enumerate(SIZES):
        batch = frames(log.tail, sizes)
        while True:
            try:
                log.append(batch)
                break
            except OutOfSpaceError:
                refusals += 1
                assert log.read_entries(0, len(done), 1 << 30) == done
        done += batch
        log.write_idle_mark()
        if prepared and number % 2 and log.needs_next():
            log.prepare_next()
    return done, refusals


@pytest.mark.parametrize("prepared", [False, True])
def test_every_call_finds_no_space_once(new_log: NewLog, frames: Frames, prepared: bool) -> None:
    fs, log = new_log()
    begin = fs.calls
    whole, _ = life(log, frames, prepared)
    total, refused, final = fs.calls, 0, 0
    for number in range(begin + 1, total + 1):
        fs, log = new_log()
        fs.fail_call(number, errno.ENOSPC)
        try:
            found, refusals = life(log, frames, prepared)
        except DiskFullError:
            final += 1
            assert fs.trace[-1].startswith(("fsync_dir", "fdatasync")) or "next.tmp" in str(fs.trace), fs.trace
            continue
        refused += refusals
        assert found == whole, number
        assert log.read_entries(0, len(whole), 1 << 30) == whole, number
        fs.crash(number)
        log = SegmentedLog.open(fs, DATA, group_id=GROUP)
        assert log.read_entries(0, len(whole), 1 << 30) == whole, number
        assert not log.report.damaged, number
    assert refused > 20
    assert final > 10


def test_power_is_lost_while_there_is_no_space(new_log: NewLog, frames: Frames) -> None:
    """A refused batch is gone or whole, and the log takes it again."""
    for seed in range(40):
        fs, log = new_log()
        done = log.read_entries(0, 1, 1)
        fs.space_left = 1000 + 517 * seed
        batch = frames(log.tail, [700] * 30)

        def append_all(log: SegmentedLog = log, done: list[Entry] = done, batch: list[Entry] = batch) -> None:
            for entry in batch:
                log.append([entry])
                done.append(entry)

        with pytest.raises(OutOfSpaceError, match="continues by itself"):
            append_all()
        fs.crash(seed)
        fs.space_left = 1 << 40
        log = SegmentedLog.open(fs, DATA, group_id=GROUP)
        assert log.read_entries(0, len(done), 1 << 30) == done, seed
        log.append(batch)
        assert log.read_entries(1, len(batch) + 1, 1 << 30) == batch, seed


def test_a_sync_without_space_is_final(new_log: NewLog, frames: Frames) -> None:
    fs, log = new_log()
    batch = frames(log.tail, [10, 20])
    log.append(batch[:1])
    fs.fail_call(fs.calls + 3, errno.ENOSPC)
    with pytest.raises(DiskFullError, match="syncing") as caught:
        log.append(batch[1:])
    assert not isinstance(caught.value, OutOfSpaceError)
    with pytest.raises(StorageError, match="start again"):
        log.append(batch[1:])


def test_another_leader_goes_on_where_space_ran_out(new_log: NewLog, frames: Frames) -> None:
    """The refused entries give way to others of a later term; files made for them do not confuse."""
    fs, log = new_log()
    first = frames(log.tail, [1500, 1500])
    log.append(first)
    old, refusals = frames(log.tail, [1500, 1500]), 0
    for space in range(0, 12_000, 500):
        fs.space_left = space
        try:
            log.append(old)
            break
        except OutOfSpaceError:
            refusals += 1
    assert refusals > 3
    fs.space_left = 1 << 40
    new = frames(log.tail_at(2), [900] * 6, term=2)
    log.append(new)
    assert log.read_entries(1, 9, 1 << 30) == first + new
    fs.crash(3)
    assert SegmentedLog.open(fs, DATA, group_id=GROUP).read_entries(1, 9, 1 << 30) == first + new


def test_a_conflict_over_whole_files_is_cut_when_there_is_space_for_their_reports(
    new_log: NewLog, frames: Frames
) -> None:
    """Files are moved to trash/ with a report, which needs space. Nothing is left half-way: the cut goes on later, the
    log opens after a loss of power, and only a name or a mark that may be lost is final."""
    refused = final = 0
    for number in range(1, 200):
        fs, log = new_log()
        old = frames(log.tail, [1500] * 8)
        log.append(old)
        new = frames(log.tail_at(2), [900] * 6, term=2)
        call = fs.calls + number
        fs.fail_call(call, errno.ENOSPC)
        try:
            log.append(new)
        except OutOfSpaceError:
            refused += 1
            kept = log.read_entries(1, log.tail.index + 1, 1 << 30)
            assert kept in (old[: len(kept)], (old[:2] + new)[: len(kept)]), number
            if number % 2:
                fs.crash(number)
                log = SegmentedLog.open(fs, DATA, group_id=GROUP)
                assert log.read_entries(1, 3, 1 << 30) == old[:2], number
                assert not log.report.damaged, number
            log.append(new)
        except DiskFullError:
            assert fs.trace[-1].startswith(("fsync_dir", "fdatasync")) or fs.trace[-1].endswith(".seg"), fs.trace
            assert "json" not in str(fs.trace[-1:]), fs.trace
            final += 1
            continue
        assert log.read_entries(1, 9, 1 << 30) == old[:2] + new, number
        fs.crash(number)
        again = SegmentedLog.open(fs, DATA, group_id=GROUP)
        assert again.read_entries(1, 9, 1 << 30) == old[:2] + new, number
        if fs.calls < call:
            break
    assert refused > 30
    assert final < 30


@pytest.mark.parametrize("call", [1, 3])
def test_a_vote_is_written_when_it_is_saved_again(call: int) -> None:
    """Both slots take the vote; which of them was refused, and whether half of it was written, does not matter."""
    path = DATA / "hard_state"
    fs = MemoryFileSystem()
    fs.mkdir(DATA)
    store = HardStateStore.create(fs, path, GROUP)
    store.save(HardState(1, NodeId(1), 0))
    fs.fail_call(fs.calls + call, errno.ENOSPC)
    vote = HardState(2, NodeId(3), 0)
    with pytest.raises(OutOfSpaceError):
        store.save(vote)
    store.save(vote)
    assert store.load() == vote
    for slot in (0, 4096):
        copy = MemoryFileSystem()
        copy.mkdir(DATA)
        file = copy.open(path, create=True)
        file.pwritev([fs.open(path).pread(8192, 0)], 0)
        copy.damage(path, slot + 20, b"\xee\xee")
        assert HardStateStore.open(copy, path, GROUP).load() == vote


@pytest.mark.parametrize("call", [1, 3])
def test_a_refused_vote_never_takes_the_last_promise_with_it(call: int) -> None:
    for seed in range(20):
        path = DATA / "hard_state"
        fs = MemoryFileSystem()
        fs.mkdir(DATA)
        store = HardStateStore.create(fs, path, GROUP)
        store.save(HardState(1, NodeId(1), 0))
        fs.fail_call(fs.calls + call, errno.ENOSPC)
        with pytest.raises(OutOfSpaceError):
            store.save(HardState(2, NodeId(3), 0))
        fs.crash(seed)
        found = HardStateStore.open(fs, path, GROUP).load()
        assert found in (HardState(1, NodeId(1), 0), HardState(2, NodeId(3), 0))


def watched_disk() -> tuple[MemoryFileSystem, list[int]]:
    """A disk, and the offsets of every write to it that follows."""
    offsets: list[int] = []

    class Watched(MemoryFile):
        def pwritev(self, buffers: Buffers, offset: int) -> None:
            offsets.append(offset)
            super().pwritev(buffers, offset)

    fs = MemoryFileSystem(file_kind=Watched)
    fs.mkdir(DATA)
    return fs, offsets


def test_the_next_try_of_a_vote_leaves_the_slot_alone_that_is_whole() -> None:
    fs, offsets = watched_disk()
    store = HardStateStore.create(fs, DATA / "hard_state", GROUP)
    for term, call in ((2, 1), (3, 3), (4, 3), (5, 1)):
        vote = HardState(term, NodeId(3), 0)
        fs.fail_call(fs.calls + call, errno.ENOSPC)
        with pytest.raises(OutOfSpaceError):
            store.save(vote)
        refused = offsets[-1]
        offsets.clear()
        store.save(vote)
        assert offsets[0] == refused, "the other one may be the only good one"
        assert set(offsets) == {0, 4096}


def test_the_next_try_of_a_mark_leaves_the_mark_alone_that_is_whole(new_log: NewLog, frames: Frames) -> None:
    for seed in range(20):
        fs, log = new_log()
        log.append(frames(log.tail, [10]))
        log.append(frames(log.tail, [10]))
        fs.fail_call(fs.calls + 1, errno.ENOSPC)
        with pytest.raises(OutOfSpaceError):
            log.append(frames(log.tail, [10]))
        fs.cut_power_at(fs.calls + 1)
        with pytest.raises(PowerCut):
            log.append(frames(log.tail, [10]))
        path = log.state.segments[-1].path
        fs.crash(seed)
        assert newest_mark(fs.open(path).pread(LOCAL_HEADER_SIZE, 0)) is not None, seed


def test_the_next_try_of_run_leaves_the_slot_alone_that_is_whole() -> None:
    fs, offsets = watched_disk()
    file = RunFile(fs, DATA, group_id=GROUP)
    for index in (1, 2):
        file.write(run_of(index))
    fs.fail_call(fs.calls + 1, errno.ENOSPC)
    with pytest.raises(OutOfSpaceError):
        file.write(run_of(3))
    refused = offsets[-1]
    file.write(run_of(4))
    assert offsets[-1] == refused
    file.write(run_of(5))
    assert offsets[-1] != refused


def run_of(index: int) -> Run:
    return Run(RunState.RUNNING, 1, bytes(16), 0, index, 1, 0)
