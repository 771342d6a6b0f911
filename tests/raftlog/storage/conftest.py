"""Builders shared by the storage tests: chains of frames, and an empty log in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from jepsen_like.fakes.memory_fs import MemoryFile, MemoryFileSystem
from raftlog.frame import make_entry, tail_after
from raftlog.storage.files.genesis import Genesis, Voter
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.types import Entry, EntryType, LogTail, NodeId
from tests.support.install_node import Giver, Node

GROUP = 7
SEGMENT_SIZE = 4096
DATA = Path("/data")
GENESIS = Genesis(UUID(int=1), GROUP, SEGMENT_SIZE, 1_700_000_000_000, (Voter(NodeId(1), UUID(int=11)),))

Frames = Callable[..., list[Entry]]
NewLog = Callable[..., tuple[MemoryFileSystem, SegmentedLog]]


@pytest.fixture(scope="session")
def genesis() -> Genesis:
    """A group of one voter with 4 KiB segments."""
    return GENESIS


@pytest.fixture(scope="session")
def frames() -> Frames:
    """frames(tail, [payload sizes], term) -> entries that follow `tail`; payloads tell their index."""

    def build(tail: LogTail, sizes: list[int], term: int = 1, segment_size: int = SEGMENT_SIZE) -> list[Entry]:
        entries = []
        for size in sizes:
            payload = (f"{term}:{tail.index + 1};".encode() * (size // 2 + 1))[:size]
            entry = make_entry(
                tail,
                term=term,
                entry_type=EntryType.MESSAGES,
                payload=payload,
                timestamp_ms=0,
                group_id=GROUP,
                segment_size=segment_size,
            )
            entries.append(entry)
            tail = tail_after(tail, entry)
        return entries

    return build


@pytest.fixture(scope="session")
def new_log() -> NewLog:
    """new_log() -> (file system, log) holding GENESIS only, under /data."""

    def build(
        space_left: int = 1 << 40, file_kind: type[MemoryFile] = MemoryFile
    ) -> tuple[MemoryFileSystem, SegmentedLog]:
        fs = MemoryFileSystem(space_left, file_kind)
        fs.mkdir(DATA)
        return fs, SegmentedLog.create(fs, DATA, genesis=GENESIS.entry(), segment_size=SEGMENT_SIZE)

    return build


@pytest.fixture(scope="session")
def giver(genesis: Genesis, frames: Frames) -> Giver:
    """The log of the peers, for tests of installs."""
    return Giver(genesis, frames)


@pytest.fixture
def node(giver: Giver) -> Node:
    """A node that was away, on a disk in memory."""
    made = Node(giver, MemoryFileSystem())
    made.create()
    return made
