"""The next file is prepared on another thread while the log rolls: the two must never hold the same file."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from jepsen_like.fakes.memory_fs import MemoryFile, MemoryFileSystem
from raftlog.frame import make_entry
from raftlog.storage.files.genesis import Genesis, Voter
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.types import EntryType, NodeId

SEGMENT = 64 * 1024


def new_log(fs: MemoryFileSystem) -> SegmentedLog:
    directory = Path("/node")
    fs.mkdir(directory)
    genesis = Genesis(UUID(int=1), 1, SEGMENT, 0, (Voter(NodeId(1), UUID(int=2)),))
    return SegmentedLog.create(fs, directory, genesis=genesis.entry(), segment_size=SEGMENT)


def append(log: SegmentedLog, number: int) -> None:
    entry = make_entry(
        log.tail,
        term=1,
        entry_type=EntryType.MESSAGES,
        payload=bytes([number]) * 6000,
        timestamp_ms=number,
        group_id=1,
        segment_size=SEGMENT,
    )
    log.append([entry])


def test_a_preparation_that_starts_during_a_roll_leaves_the_new_file_alone() -> None:
    fs = MemoryFileSystem()
    log = new_log(fs)
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
        append(log, number)
        if log.needs_next():
            log.prepare_next()
    assert raced >= 3
    found = log.read_entries(1, log.tail.index + 1, 1 << 30)
    assert [e.payload[0] for e in found] == list(range(40))


def test_a_sidecar_that_is_removed_while_it_is_to_be_synced_is_no_failure() -> None:
    """A cut or a trim takes it away with its segment; that is no reason to stop the node."""
    fs = MemoryFileSystem()
    log = new_log(fs)
    for number in range(20):
        append(log, number)
    removed: list[Path] = []
    opens = fs.open

    def open_after_it_is_gone(path: Path, *, create: bool = False) -> MemoryFile:
        if path.suffix == ".idx" and not create and not removed:
            fs.unlink(path)
            removed.append(path)
        return opens(path, create=create)

    fs.open = open_after_it_is_gone  # type: ignore[method-assign]
    log.prepare_next()
    assert removed
    assert not fs.exists(removed[0])
    append(log, 20)
    assert log.read_entries(1, log.tail.index + 1, 1 << 30)[-1].payload[0] == 20
