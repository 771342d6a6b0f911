"""Witnesses of planted bugs in modes and full disks (see witnesses.py)."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from cluster.config.config import ModesSection
from cluster.flow.gate import Gate
from cluster.replication.acks.early_answers import EarlyAnswers, Stage
from cluster.replication.append_lane import RETRY, AppendLane, PersistJob
from jepsen_like.sim.machines.disk import FaultyFileSystem
from raftlog.frame import make_entry
from raftlog.messages import TimeoutNow
from raftlog.storage.files.genesis import Genesis, Voter
from raftlog.storage.files.hard_state import HardStateStore
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.types import Entry, EntryId, EntryType, NodeId
from tests.support.bug_schedules import holds
from tests.support.contexts import CONFIG

DATA = Path("/data")
SEGMENT = 16 << 10
GENESIS = Genesis(UUID(int=7), 1, SEGMENT, 0, (Voter(NodeId(1), UUID(int=1)),)).entry()


class Disk:
    """A log in memory, and the append lane over it."""

    def __init__(self) -> None:
        self.fs = FaultyFileSystem()
        self.fs.mkdir(DATA)
        self.log = SegmentedLog.create(self.fs, DATA, genesis=GENESIS, segment_size=SEGMENT)
        self.lane = AppendLane(self.log, HardStateStore.create(self.fs, DATA / "hard_state", 1), 10)

    def entry(self) -> Entry:
        return make_entry(
            self.log.tail,
            term=1,
            entry_type=EntryType.MESSAGES,
            payload=b"x" * 100,
            timestamp_ms=1,
            group_id=1,
            segment_size=SEGMENT,
        )


def witness_M01() -> None:
    raw: Any = SimpleNamespace(
        term=2,
        persisted_index=5,
        status=lambda: SimpleNamespace(node_id=1),
        membership=SimpleNamespace(voter_ids=(1, 2, 3)),
    )
    early = EarlyAnswers(ModesSection(flush_disk_type="ASYNC_FLUSH"), raw, SimpleNamespace(), Gate(CONFIG), None)
    entry_id = EntryId(2, 5)
    early.written(NodeId(1), entry_id)
    assert not early._reached(Stage.QUORUM_WRITTEN, entry_id, raw), "nobody but node 1 has it, be it on its disk"
    early.written(NodeId(3), EntryId(2, 4))
    assert not early._reached(Stage.QUORUM_WRITTEN, entry_id, raw), "node 3 has all but the last"
    early.written(NodeId(3), entry_id)
    assert early._reached(Stage.QUORUM_WRITTEN, entry_id, raw)


def witness_M02() -> None:
    disk = Disk()
    told: list[EntryId] = []
    disk.log.tell_written(told.append)
    entry = disk.entry()
    disk.log.append([entry])
    assert told == [entry.id]
    disk.fs.crash_leaving("nothing")
    assert SegmentedLog.open(disk.fs, DATA, group_id=1).tail.index == entry.index


def _put_aside() -> tuple[Disk, Entry]:
    disk = Disk()
    entry = disk.entry()
    disk.fs.fail_call(disk.fs.calls + 2, errno.ENOSPC)
    done = disk.lane.drain([PersistJob(None, [entry], [TimeoutNow(NodeId(1), NodeId(2), 1)])])
    assert (done.last, done.messages, done.jobs) == (None, [], 0)
    return disk, entry


def witness_M03() -> None:
    _put_aside()


def witness_M04() -> None:
    disk, entry = _put_aside()
    done = disk.lane.drain([RETRY])
    assert (done.last, len(done.messages), done.jobs) == (entry.id, 1, 1)


def witness_A38() -> None:
    holds("A38")


def witness_A39() -> None:
    holds("A39")
