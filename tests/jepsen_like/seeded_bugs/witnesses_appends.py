"""Witnesses of planted bugs in appends on the event loop (see witnesses.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from cluster.replication.append_lane import AppendLane, Persisted, PersistJob
from cluster.replication.append_runner import AppendRunner
from jepsen_like.sim.machines.disk import FaultyFileSystem
from raftlog.frame import make_entry, tail_after
from raftlog.storage.files.genesis import Genesis, Voter
from raftlog.storage.files.hard_state import HardStateStore
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.types import Entry, EntryType, LogTail, NodeId

DATA = Path("/data")
SEGMENT = 16 << 10
GENESIS = Genesis(UUID(int=7), 1, SEGMENT, 0, (Voter(NodeId(1), UUID(int=1)),)).entry()


class Held:
    """A stand-in for the thread: it drains when it is told to."""

    def __init__(
        self, _: str, lane: AppendLane, loop: object, on_done: Callable[[Persisted], None], *rest: object
    ) -> None:
        self.lane, self.on_done = lane, on_done
        self.jobs: list[PersistJob] = []

    def submit(self, job: PersistJob) -> None:
        self.jobs.append(job)

    def close(self) -> None:
        pass

    def drain(self) -> None:
        jobs, self.jobs = self.jobs, []
        self.on_done(self.lane.drain(jobs))


class Loop:
    """A loop in which no time passes."""

    def time(self) -> float:
        return 0.0

    def call_later(self, *_: object) -> object:
        return self


class Quick:
    """A pace that always lets the loop drain."""

    def quick(self, now_s: float) -> bool:
        return True

    def note(self, seconds: float) -> None:
        pass

    def note_inline(self, seconds: float, now_s: float) -> bool:
        return False


class Node:
    """A log in memory under an AppendRunner, which has written one entry on its thread."""

    def __init__(self) -> None:
        self.fs = FaultyFileSystem()
        self.fs.mkdir(DATA)
        self.log = SegmentedLog.create(self.fs, DATA, genesis=GENESIS, segment_size=SEGMENT)
        lane = AppendLane(self.log, HardStateStore.create(self.fs, DATA / "hard_state", 1), 10)
        self.done: list[Persisted] = []
        self.failed: list[BaseException] = []
        self.held: list[Held] = []
        loop: Any = Loop()
        held: Any = self._held
        self.runner = AppendRunner(
            "append", lane, loop, self.done.append, self.failed.append, thread=held, pace=Quick()
        )
        self.tail: LogTail = self.log.tail
        self.submit(self.entry())
        self.held[0].drain()

    def _held(self, *arguments: Any) -> Any:
        self.held.append(Held(*arguments))
        return self.held[-1]

    def entry(self) -> Entry:
        made = make_entry(
            self.tail,
            term=1,
            entry_type=EntryType.MESSAGES,
            payload=b"x" * 100,
            timestamp_ms=1,
            group_id=1,
            segment_size=SEGMENT,
        )
        self.tail = tail_after(self.tail, made)
        return made

    def submit(self, *entries: Entry) -> None:
        self.runner.submit(PersistJob(None, entries, ()))


def _on_disk(told: Sequence[Persisted]) -> int:
    return max(done.last.index for done in told if done.last is not None)


def witness_W01() -> None:
    node = Node()
    node.submit(node.entry())
    assert _on_disk(node.done) == 2
    node.fs.crash_leaving("nothing")
    assert SegmentedLog.open(node.fs, DATA, group_id=1).tail.index == 2


def witness_W02() -> None:
    node = Node()
    node.runner.submit(PersistJob(None, (), ()))  # on the thread, and so is what follows it
    node.submit(node.entry())
    assert len(node.done) == 1
    node.held[0].drain()
    assert [done.last.index for done in node.done if done.last is not None] == [1, 2]
