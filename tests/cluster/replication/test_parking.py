"""The append lane on a full disk: work is put aside in order, nothing is reported, and all of it is done later."""

from __future__ import annotations

import errno
import random
import traceback
from pathlib import Path
from uuid import UUID

import pytest

from cluster.replication.append_lane import RETRY, AppendLane, PersistJob, PrepareLane
from jepsen_like.fakes.memory_fs import MemoryFileSystem
from raftlog.errors import DiskFullError
from raftlog.frame import make_entry, tail_after
from raftlog.messages import AppendEntriesReply, Message, RequestVoteReply
from raftlog.storage.files.genesis import Genesis, Voter
from raftlog.storage.files.hard_state import HardStateStore
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.types import Entry, EntryId, EntryType, HardState, LogTail, NodeId
from tests.support.rows import each_row

DATA = Path("/data")
GROUP = 7
SEGMENT = 1 << 16
GENESIS = Genesis(UUID(int=1), GROUP, SEGMENT, 1_700_000_000_000, (Voter(NodeId(1), UUID(int=11)),))


class FillableFileSystem(MemoryFileSystem):
    """While `full`, no write of a segment file finds space."""

    full = False

    def step(self, call: str, path: Path, half: object = None) -> OSError | None:
        """Fails writes of segments while the disk is full."""
        error = super().step(call, path, half)
        if error is None and self.full and call == "pwritev" and path.suffix == ".seg":
            return OSError(errno.ENOSPC, "No space left on device", str(path))
        return error


class Disk:
    """A log and a hard state in memory, and the lane over both."""

    def __init__(self) -> None:
        self.fs = FillableFileSystem()
        self.fs.mkdir(DATA)
        self.log = SegmentedLog.create(self.fs, DATA, genesis=GENESIS.entry(), segment_size=SEGMENT)
        self.hard = HardStateStore.create(self.fs, DATA / "hard_state", GROUP)
        self.reserved = ""
        self.lane = AppendLane(self.log, self.hard, 10, lambda: self.reserved)

    def entries(
        self, sizes: list[int], tail: LogTail | None = None, kind: EntryType = EntryType.MESSAGES, term: int = 1
    ) -> list[Entry]:
        """Entries that follow `tail`, by default the log's."""
        made, tail = [], tail or self.log.tail
        for size in sizes:
            entry = make_entry(
                tail,
                term=term,
                entry_type=kind,
                payload=b"\x01" * size,
                timestamp_ms=0,
                group_id=GROUP,
                segment_size=SEGMENT,
            )
            made.append(entry)
            tail = tail_after(tail, entry)
        return made


def ack(entry: Entry) -> Message:
    return AppendEntriesReply(NodeId(2), NodeId(1), entry.term, False, entry.index, EntryId(0, 0))


def vote(term: int) -> Message:
    return RequestVoteReply(NodeId(2), NodeId(1), term, True, False, 0)


def test_what_found_no_space_is_reported_once_it_is_there() -> None:
    disk = Disk()
    entries = disk.entries([100, 100, 100])
    disk.fs.full = True
    done = disk.lane.drain([PersistJob(None, entries[:1], [ack(entries[0])])])
    assert (done.last, done.messages, done.jobs) == (None, [], 0)
    assert "no space left" in done.parked
    done = disk.lane.drain([PersistJob(None, entries[1:], [ack(entries[2])])])
    assert done.parked
    done = disk.lane.drain([RETRY])
    assert done.parked
    disk.fs.full = False
    done = disk.lane.drain([RETRY])
    assert done == done._replace(last=entries[2].id, messages=[ack(entries[0]), ack(entries[2])], jobs=2, parked="")
    assert disk.log.read_entries(1, 4, 1 << 20) == entries


def test_term_and_vote_leave_while_entries_wait() -> None:
    """Else two nodes of which one has a full disk could not elect anybody."""
    disk = Disk()
    entries = disk.entries([100])
    disk.fs.full = True
    assert disk.lane.drain([PersistJob(None, entries, [ack(entries[0])])]).parked
    done = disk.lane.drain([PersistJob(HardState(2, NodeId(1), 0), (), [vote(2)])])
    assert done.parked
    assert done.messages == [vote(2)]
    assert disk.hard.load().term == 2
    disk.fs.full = False
    done = disk.lane.drain([RETRY])
    assert done.messages == [ack(entries[0])]
    assert done.jobs == 2


def test_no_vote_leaves_before_it_is_saved() -> None:
    disk = Disk()
    disk.fs.fail_call(disk.fs.calls + 1, errno.ENOSPC)
    done = disk.lane.drain([PersistJob(HardState(2, NodeId(1), 0), (), [vote(2)])])
    assert done.parked
    assert done.messages == []
    done = disk.lane.drain([RETRY])
    assert done.messages == [vote(2)]
    assert disk.hard.load() == HardState(2, NodeId(1), 0)


def test_the_reserve_is_kept_from_messages_alone() -> None:
    disk = Disk()
    disk.reserved = "5 bytes are left"
    command = disk.entries([50], kind=EntryType.COMMAND)
    assert not disk.lane.drain([PersistJob(None, command, ())]).parked
    messages = disk.entries([50])
    assert disk.lane.drain([PersistJob(None, messages, ())]).parked == "5 bytes are left."
    later = disk.entries([50], kind=EntryType.COMMAND, tail=tail_after(disk.log.tail, messages[0]))
    assert disk.lane.drain([PersistJob(None, later, ())]).parked, "nothing overtakes what waits"
    disk.reserved = ""
    assert disk.lane.drain([RETRY]).last == later[0].id


def test_other_errors_stay_final() -> None:
    disk = Disk()
    disk.fs.fail_call(disk.fs.calls + 3, errno.ENOSPC)  # mark, frames, then the sync
    with pytest.raises(DiskFullError, match="start again"):
        disk.lane.drain([PersistJob(None, disk.entries([10]), ())])


@each_row("seed", range(30))
def test_a_life_with_little_space_ends_as_one_with_enough(seed: int) -> None:
    """Appends, conflicts and votes in random order; whatever was refused meanwhile, the disk holds the same at last."""
    rng = random.Random(seed)
    small, large = Disk(), Disk()
    term, told_small, told_large = 1, [], []
    tail = large.log.tail
    for _ in range(40):
        jobs = []
        for _ in range(rng.randrange(1, 4)):
            hard = None
            if rng.random() < 0.2:
                term += 1
                hard = HardState(term, NodeId(1), 0)
                if rng.random() < 0.5 and tail.index > 2:
                    tail = large.log.tail_at(min(tail.index, large.log.tail.index) - 1)
            batch = large.entries([rng.choice((0, 200, 9000))] * rng.randrange(1, 4), tail=tail, term=term)
            for entry in batch:
                tail = tail_after(tail, entry)
            jobs.append(PersistJob(hard, batch, [ack(batch[-1])]))
            told_large += large.lane.drain(jobs[-1:]).messages
        small.fs.space_left = rng.choice((0, 500, 5000, 1 << 30))
        small.fs.full = rng.random() < 0.3
        try:
            told_small += small.lane.drain(jobs).messages
        except DiskFullError as error:  # a cut that breaks off is final; the next start takes it up
            if "_cut_from" not in "".join(traceback.format_exception(error)):
                raise
            small.fs.restart()
            small.fs.space_left, small.fs.full = 1 << 30, False
            SegmentedLog.open(small.fs, DATA, group_id=GROUP).close(clean=True)
            return
        assert told_small == told_large[: len(told_small)]
    small.fs.space_left, small.fs.full = 1 << 30, False
    told_small += small.lane.drain([RETRY]).messages
    assert told_small == told_large
    assert small.log.tail == large.log.tail
    last = small.log.tail.index + 1
    assert small.log.read_entries(0, last, 1 << 30) == large.log.read_entries(0, last, 1 << 30)
    small.fs.crash(seed)
    assert SegmentedLog.open(small.fs, DATA, group_id=GROUP).tail == large.log.tail


def test_no_file_is_made_ahead_out_of_the_reserve() -> None:
    disk = Disk()
    disk.lane.drain([PersistJob(None, disk.entries([9000, 9000]), ())])
    assert disk.log.needs_next()
    reserved = ["too little"]
    lane = PrepareLane(disk.log, clock=lambda: 0.0, reserved=lambda: reserved[0])
    lane.drain([True])
    assert disk.log.needs_next()
    reserved[0] = ""
    lane.drain([True])
    assert not disk.log.needs_next()
