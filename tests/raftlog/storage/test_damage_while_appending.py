"""A follower must look at an entry that its disk has lost, to take what a leader sends: it waits, and goes on."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from jepsen_like.fakes.memory_fs import MemoryFileSystem
from raftlog.core.raw_node import RawNode
from raftlog.core.state.config import RaftConfig
from raftlog.errors import DamagedLogError
from raftlog.frame import make_entry, tail_after
from raftlog.membership import Membership
from raftlog.messages import AppendEntries, AppendEntriesReply
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.storage.segments.segment import LOCAL_HEADER_SIZE
from raftlog.types import NOBODY, Entry, EntryId, EntryType, HardState, LogTail, NodeId, Voter

ONE, TWO = NodeId(1), NodeId(2)
GROUP = 7
Frames = Callable[..., list[Entry]]
NewLog = Callable[..., tuple[MemoryFileSystem, SegmentedLog]]


def entry_after(tail: LogTail, term: int) -> Entry:
    return make_entry(
        tail,
        term=term,
        entry_type=EntryType.MESSAGES,
        payload=bytes(100),
        timestamp_ms=tail.timestamp_ms,
        group_id=GROUP,
        segment_size=1 << 20,
    )


@pytest.mark.parametrize("prev", [2, 3], ids=["late or repeated", "next"])
def test_what_stands_before_a_conflict_is_damaged_and_the_append_waits_for_its_repair(
    new_log: NewLog, frames: Frames, prev: int
) -> None:
    fs, log = new_log()
    entries = [*log.read_entries(0, 1, 1), *frames(log.tail, [500] * 3)]
    log.append(entries[1:])
    tail = log.tail
    log.append([entry_after(tail, 1)])  # index 4: nobody else has it
    place = LOCAL_HEADER_SIZE + entries[3].position + 70
    path = next(Path("/data/log") / name for name in fs.listdir(Path("/data/log")) if name.endswith(".seg"))
    (byte,) = fs.open(path).pread(1, place)
    fs.damage(path, place, bytes([byte ^ 1]))
    members = Membership(UUID(int=1), (Voter(ONE, UUID(int=1)), Voter(TWO, UUID(int=2)), Voter(NodeId(3), UUID(int=3))))
    raw = RawNode(
        RaftConfig(ONE, GROUP),
        hard_state=HardState(1, NOBODY, 3),
        log=log,
        members=[members],
        applied_index=3,
        rng=random.Random(1),
    )
    with pytest.raises(DamagedLogError):
        log.read_entries(3, 4, 1 << 20)
    raw.ready()
    theirs = [*entries, entry_after(tail, 2)]
    theirs.append(entry_after(tail_after(tail, theirs[4]), 2))
    message = AppendEntries(TWO, ONE, 2, EntryId(entries[prev].term, prev), 3, tuple(theirs[prev + 1 :]))
    raw.step(message)
    assert raw.last_index == 4, "nothing was changed"
    ready = raw.ready()
    said = (*ready.messages, *ready.messages_after_persist)
    assert not [message for message in said if isinstance(message, AppendEntriesReply)]
    (found,) = log.damage.ranges
    log.repair(found, entries[3].header + entries[3].payload)
    raw.repaired()
    raw.step(message)
    assert (raw.last_index, raw.raft.log.tail.id) == (5, EntryId(2, 5))
    ready = raw.ready()
    assert [entry.index for entry in ready.entries] == [4, 5]
    assert [each.match_index for each in ready.messages_after_persist if isinstance(each, AppendEntriesReply)] == [5]
