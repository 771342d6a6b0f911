"""A node's directory without a node: storage is opened, entries appended and applied, files damaged between starts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from cluster.config.config import Config
from cluster.config.node_sections import NodeSection, PeerNode
from cluster.runtime.alarms import Alarms
from cluster.runtime.environment import Environment
from cluster.runtime.failpoints.failpoints import FailpointSet
from cluster.state.checkpoints import Checkpoints
from cluster.state.node_storage import NodeStorage
from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.storage.files.fs import FileSystem, OsFileSystem
from raftlog.storage.files.genesis import Genesis, Voter
from raftlog.storage.files.identity import Identity
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.storage.node_dir import create_node_dir
from raftlog.types import Entry, HardState, NodeId
from statemachine.broker_state import BrokerState
from statemachine.rows.digest import digest
from tests.support.node_kit import GROUP, START_MS, Clock, entries_after

SEGMENT_SIZE = 64 * 1024
CLUSTER = UUID(int=7)
VOTER = Voter(NodeId(1), UUID(int=11))


class Place:
    """DATA of node 1, on a real disk."""

    def __init__(self, path: Path, fs: FileSystem | None = None, **environment: Any) -> None:
        self.path = path
        self.fs = fs or OsFileSystem()
        self.clock = Clock()
        self.alarms = Alarms(self.clock.wall_ms)
        self.environment: dict[str, Any] = {"boot_id": lambda: bytes(16), "pid": lambda: 42, **environment}
        genesis = Genesis(CLUSTER, GROUP, SEGMENT_SIZE, START_MS, (VOTER,))
        create_node_dir(self.fs, path, Identity(CLUSTER, GROUP, VOTER.id, VOTER.uuid, START_MS), genesis)

    @property
    def config(self) -> Config:
        peer = PeerNode(id=1, host="127.0.0.1", port=1, listeners={})
        return Config(node=NodeSection(id=1, data_dir=str(self.path)), peers=(peer,))

    def open(self) -> NodeStorage:
        """Starts: everything but the network."""
        environment = Environment(fs=self.fs, clock=self.clock, serves_admin=False, **self.environment)
        return NodeStorage(self.config, FailpointSet(False), environment, self.alarms)

    @staticmethod
    def write(storage: NodeStorage, count: int, *, apply: int | None = None, term: int = 1) -> list[Entry]:
        """Appends entries durably and applies the first `apply` of them (None: all)."""
        if storage.directory.hard_state_store.load().term < term:
            storage.directory.hard_state_store.save(HardState(term, NodeId(1), 0))
        entries = entries_after(storage.directory.log.tail, count, segment_size=SEGMENT_SIZE, term=term)
        storage.directory.log.append(entries)
        replay(storage, None if apply is None else entries[0].index + apply)
        return entries

    def run(
        self,
        count: int,
        *,
        apply: int | None = None,
        clean: bool = True,
        checkpoint: bool = False,
        kill: bool = False,
        term: int = 1,
    ) -> int:
        """A whole life: opens, replays, writes, stops (`kill`: as kill -9 leaves it). Returns the applied index."""
        storage = self.open()
        replay(storage)
        if count:
            self.write(storage, count, apply=apply, term=term)
        storage.checkpointer.sync()
        if checkpoint:
            storage.checkpointer.checkpoint()
        index = storage.state.applied.index
        if not kill:
            storage.close(clean=clean)
            return index
        image = self.path.with_name(self.path.name + "-killed")
        shutil.copytree(self.path, image)
        storage.close(clean=False)
        shutil.rmtree(self.path)
        image.rename(self.path)
        return index

    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.fs, self.path, GROUP)

    def flip(self, pattern: str, at: int | float = 0.5) -> Path:
        """Flips a bit of the largest file that matches, at an offset or a fraction of its size."""
        file = max(self.path.glob(pattern), key=lambda one: one.stat().st_size)
        data = bytearray(file.read_bytes())
        data[at if isinstance(at, int) else int(len(data) * at)] ^= 4
        file.unlink()  # a hard link elsewhere keeps its bytes
        file.write_bytes(data)
        return file

    def trash(self) -> list[tuple[str, dict[str, Any]]]:
        """(name, report) of what was set aside."""
        folder = self.path / "trash"
        names = sorted(one.name for one in folder.iterdir()) if folder.exists() else []
        return [
            (name, json.loads((folder / f"{name}.json").read_text())) for name in names if not name.endswith(".json")
        ]

    def expected(self, index: int) -> dict[str, int]:
        """The digest of a state that applied the log from the beginning up to `index`."""
        copy = self.path.with_name(self.path.name + "-read")
        shutil.copytree(self.path / "log", copy / "log")
        log = SegmentedLog.open(self.fs, copy, group_id=GROUP)
        kv = MemoryKV()
        BrokerState(kv).apply(log.read_entries(0, index + 1, 1 << 30))
        log.close(clean=False)
        shutil.rmtree(copy)
        return digest(kv)


def replay(storage: NodeStorage, stop: int | None = None) -> None:
    """Applies what the log holds above the state, below index `stop`."""
    first, last = storage.state.applied.index + 1, storage.directory.log.tail.index + 1
    last = last if stop is None else min(stop, last)
    while first < last:
        entries = storage.directory.log.read_entries(first, last, 1 << 20)
        storage.state.apply(entries)
        first = entries[-1].index + 1
    storage.recovery.applied(storage.state.applied.index)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A new node's directory."""
    return Place(tmp_path / "node1")


@pytest.fixture
def new_place() -> Callable[..., Place]:
    """Place(path, fs, **environment)."""
    return Place


@pytest.fixture
def replay_all() -> Callable[..., None]:
    """The function `replay`."""
    return replay


@pytest.fixture
def alarms(place: Place) -> Alarms:
    return place.alarms
