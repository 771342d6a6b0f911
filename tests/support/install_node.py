"""A node that was away, on a disk in memory or a real one, and the log of its peers, for the tests of installs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from jepsen_like.fakes.memory_fs import MemoryFileSystem
from raftlog.frame import tail_after
from raftlog.storage.files.fs import OsFileSystem, read_file
from raftlog.storage.files.genesis import Genesis
from raftlog.storage.files.identity import Identity
from raftlog.storage.log_build import LogBuild
from raftlog.storage.node_dir import NodeDir, create_node_dir, open_node_dir
from raftlog.types import EMPTY_TAIL, Entry, HardState, LogTail, NodeId

DATA = Path("/data")
GROUP = 7
CHECKPOINT = "00000000000000000037-2-0badcafe"
Frames = Callable[..., list[Entry]]
OLD = 10
"""Entries of the old log: what the node had when it went away."""


class Giver:
    """The peers' log, of term 2 from entry 6 on; the node's old one has entries 6.. of term 1 in their place."""

    def __init__(self, genesis: Genesis, frames: Frames) -> None:
        self.genesis = genesis
        self.first = genesis.entry()
        shared = frames(tail_after(EMPTY_TAIL, self.first), [900] * 5)
        after = self.tail([self.first, *shared])
        self.entries = [self.first, *shared, *frames(after, [900] * 40, term=2)]
        self.old = [self.first, *shared, *frames(after, [800] * (OLD - 6), term=1)]
        self.bases = [entry.position for entry in self.entries if entry.flags]

    @staticmethod
    def tail(entries: list[Entry]) -> LogTail:
        tail = EMPTY_TAIL
        for entry in entries:
            tail = tail_after(tail, entry)
        return tail

    def previous(self, base: int) -> LogTail:
        return self.tail([entry for entry in self.entries if entry.position < base])

    def raw(self, start: int, stop: int) -> bytes:
        """Bytes [start, stop) of the log."""
        return b"".join(entry.header + entry.payload for entry in self.entries)[start:stop]


BEGIN = 6
"""Number of the segment with which the new log begins."""
LAST = 37
"""Last entry of the checkpoint, and so of the new log."""


class Node:
    """A node that was away, and installs entries 25..37 of the peers' log."""

    def __init__(self, giver: Giver, fs: MemoryFileSystem | OsFileSystem, data: Path = DATA) -> None:
        self.giver = giver
        self.fs = fs
        self.data = data

    def create(self, old: list[Entry] | None = None) -> None:
        genesis = self.giver.genesis
        voter = genesis.voters[0]
        create_node_dir(self.fs, self.data, Identity(genesis.cluster_uuid, GROUP, voter.id, voter.uuid, 0), genesis)
        opened = self.open()
        opened.hard_state_store.save(HardState(1, NodeId(2), 5))
        opened.log.append((old or self.giver.old)[1:])
        opened.close(clean=False)

    def open(self) -> NodeDir:
        return open_node_dir(self.fs, self.data, now_ms=77)

    def build(self, piece: int = 2500) -> LogBuild:
        giver = self.giver
        build = LogBuild.resume(self.fs, self.data, GROUP)
        if build is None:
            build = LogBuild.begin(self.fs, self.data, GROUP, giver.previous(giver.bases[BEGIN]))
        end = giver.entries[LAST].end_position
        while build.next_position < end:
            build.append_raw(giver.raw(build.next_position, min(end, build.next_position + piece)))
        return build

    def commit(self, build: LogBuild) -> None:
        build.commit(CHECKPOINT, LAST, self.giver.entries[LAST].header_crc, 55)

    def install(self) -> NodeDir:
        self.commit(self.build())
        return self.open()

    def check_new(self, opened: NodeDir) -> None:
        giver, log = self.giver, opened.log
        assert (log.tail.index, log.tail.header_crc) == (LAST, giver.entries[LAST].header_crc)
        assert log.previous == giver.previous(giver.bases[BEGIN])
        assert log.read_entries(log.first_index, LAST + 1, 1 << 30) == giver.entries[log.first_index : LAST + 1]
        assert not log.damage.ranges
        assert opened.hard_state_store.load().term == 2
        assert log.genesis == giver.genesis
        names = self.fs.listdir(self.data)
        assert not {"install", "INSTALL"} & set(names)
        (aside,) = [name for name in self.fs.listdir(self.data / "trash") if name.endswith("-log")]
        report = json.loads(read_file(self.fs, self.data / "trash" / f"{aside}.json"))
        assert "replaced by a log from a peer, entries 25..37" in report["why"]
        log.append(giver.entries[LAST + 1 :])

    def check_old(self, opened: NodeDir, entries: list[Entry] | None = None) -> None:
        entries = entries or self.giver.old
        assert opened.log.read_entries(0, len(entries), 1 << 30) == entries
        assert opened.log.tail.index == len(entries) - 1
