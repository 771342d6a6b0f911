"""The next file is prepared on another thread while the log rolls: the two must never hold the same file."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from jepsen_like.fakes.memory_fs import MemoryFileSystem
from raftlog.frame import make_entry, tail_after
from raftlog.storage.genesis import Genesis, Voter
from raftlog.storage.segmented_log import SegmentedLog
from raftlog.types import EMPTY_TAIL, EntryType, NodeId

SEGMENT = 64 * 1024


def test_a_preparation_that_starts_during_a_roll_leaves_the_new_file_alone() -> None:
    fs = MemoryFileSystem()
    directory = Path("/node")
    fs.mkdir(directory)
    genesis = Genesis(UUID(int=1), 1, SEGMENT, 0, (Voter(NodeId(1), UUID(int=2)),))
    log = SegmentedLog.create(fs, directory, genesis=genesis.entry(), segment_size=SEGMENT)
    tail = tail_after(EMPTY_TAIL, genesis.entry())
    raced = 0
    rename = fs.rename

    def rename_while_the_other_thread_prepares(source: Path, target: Path) -> None:
        nonlocal raced
        if target.name.endswith(".seg"):
            raced += 1
            if log.needs_next():
                log.prepare_next()
        rename(source, target)

    fs.rename = rename_while_the_other_thread_prepares  # type: ignore[method-assign]
    for number in range(40):
        entry = make_entry(
            tail,
            term=1,
            entry_type=EntryType.MESSAGES,
            payload=bytes([number]) * 6000,
            timestamp_ms=number,
            group_id=1,
            segment_size=SEGMENT,
        )
        log.append([entry])
        tail = tail_after(tail, entry)
        if log.needs_next():
            log.prepare_next()
    assert raced >= 3
    found = log.read_entries(1, tail.index + 1, 1 << 30)
    assert [e.payload[0] for e in found] == list(range(40))
