"""A job that has nothing but entries takes a short way through the append lane, and ends as on the long one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cluster.replication.append_lane import RETRY, AppendLane, Persisted, PersistJob
from raftlog.errors import OutOfSpaceError
from raftlog.frame import make_entry, tail_after
from raftlog.messages import AppendEntriesReply
from raftlog.types import EMPTY_TAIL, Entry, EntryId, EntryType, HardState, NodeId
from tests.support.rows import each_row

REPLY = AppendEntriesReply(NodeId(2), NodeId(1), 1, False, 2, EntryId(0, -1))


class Log:
    """A log on a disk that has no space for the first `full` appends."""

    def __init__(self, full: int) -> None:
        self.full = full
        self.entries: list[Entry] = []

    def append(self, entries: Sequence[Entry]) -> None:
        if self.full:
            self.full -= 1
            raise OutOfSpaceError("no space")
        self.entries += entries

    def write_idle_mark(self) -> None:
        raise AssertionError("nobody asked for it")

    def needs_next(self) -> bool:
        return False


def entries(count: int, kind: int = EntryType.NOOP) -> list[Entry]:
    tail, made = EMPTY_TAIL, []
    for _ in range(count):
        kinds: dict[str, Any] = {"term": 1, "entry_type": kind, "payload": b"x" * 80}
        made.append(make_entry(tail, timestamp_ms=1, group_id=1, segment_size=1 << 20, **kinds))
        tail = tail_after(tail, made[-1])
    return made


class HardStates:
    def save(self, hard_state: HardState) -> None:
        raise AssertionError("no vote was given")


def drained(batch: list[PersistJob], full: int, reserved: str) -> tuple[list[Persisted], list[Entry]]:
    """What the drain of these jobs, and two more tries, report; and the log then."""
    log = Log(full)
    lane = AppendLane(log, HardStates(), 0, lambda: reserved, clock=float)
    return [lane.drain(batch), lane.drain([RETRY]), lane.drain([RETRY])], log.entries


@each_row(
    ("count", "kind", "full", "reserved"),
    [
        (1, EntryType.NOOP, 0, ""),
        (3, EntryType.NOOP, 0, ""),
        (1, EntryType.NOOP, 0, "little is left"),
        (2, EntryType.MESSAGES, 0, "little is left"),
        (2, EntryType.NOOP, 1, ""),
        (2, EntryType.NOOP, 2, ""),
    ],
)
def test_it_ends_as_on_the_long_way(count: int, kind: int, full: int, reserved: str) -> None:
    job = PersistJob(None, entries(count, kind), [REPLY])
    (alone, *tries), log = drained([job], full, reserved)
    (beside, *others), same = drained([RETRY, job], full, reserved)
    assert log == same
    assert [one._replace(taken=0) for one in (alone, *tries)] == [one._replace(taken=0) for one in (beside, *others)]
    assert (alone.taken, beside.taken) == (1, 2)
