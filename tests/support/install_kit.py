"""Nodes without a network: a giver whose log is trimmed, a taker that is behind, and what carries the bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from cluster.repair.fetch import LOG, PIECE, STATE, Fetched, FetchError, FetchRefused
from cluster.repair.log_source import SEGMENT, log_source, segment_source, state_source
from cluster.repair.peer_requests import at_once
from cluster.repair.progress import InstallMetrics, InstallProgress
from cluster.repair.snapshot_fetch import Snapshot, SnapshotTake, Where
from cluster.runtime.figures.row_count import counted
from cluster.state.checkpoints import Checkpoints
from jepsen_like.fakes.memory_fs import MemoryFileSystem
from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.storage.files.genesis import Genesis
from raftlog.storage.files.identity import Identity
from raftlog.storage.node_dir import NodeDir, create_node_dir, open_node_dir
from raftlog.types import FIRST_GROUP, HardState, NodeId, Voter
from statemachine.broker_state import BrokerState
from statemachine.rows.digest import digest
from tests.support.node_kit import GROUP, START_MS, entries_after

SEGMENT_SIZE = 4096
DATA = Path("/data")
VOTERS = tuple(Voter(NodeId(i), UUID(int=i)) for i in (1, 2, 3))
GENESIS = Genesis(UUID(int=7), GROUP, SEGMENT_SIZE, START_MS, VOTERS)
TWO, THREE = NodeId(2), NodeId(3)


class Checkpointer:
    """The part of a running node that the STATE source needs. `make` is called when another checkpoint is wanted."""

    def __init__(self, checkpoints: Checkpoints, make: Callable[[], object]) -> None:
        self.checkpoints = checkpoints
        self.frozen = self.wanted = False
        self.held: list[str] = []
        self._make = make

    def want_checkpoint(self) -> None:
        self._make()

    def hold(self, name: str) -> None:
        self.held.append(name)


class Giver:
    """A node with everything, as its sources show it."""

    def __init__(self, count: int = 100, term: int = 1) -> None:
        self.fs = MemoryFileSystem()
        create_node_dir(self.fs, DATA, Identity(GENESIS.cluster_uuid, GROUP, TWO, UUID(int=2), START_MS), GENESIS)
        self.directory = open_node_dir(self.fs, DATA)
        self.log = self.directory.log
        self.kv = MemoryKV(fs=self.fs)
        self.state = BrokerState(self.kv)
        self.state.apply(self.log.read_entries(0, 1, 1))
        self.checkpoints = Checkpoints(self.fs, DATA, GROUP)
        self.checkpointer = Checkpointer(self.checkpoints, self.checkpoint)
        self.grow(count, term)

    def grow(self, count: int, term: int = 1) -> None:
        entries = entries_after(self.log.tail, count, segment_size=SEGMENT_SIZE, term=term)
        if self.directory.hard_state_store.load().term < term:
            self.directory.hard_state_store.save(HardState(term, TWO, 0))
        self.log.append(entries)
        self.state.apply(entries)

    def checkpoint(self) -> str:
        return self.checkpoints.make(self.kv, {}, START_MS).path.name

    def trim(self, position: int) -> int:
        """Gives up whole segments below; returns where the log begins now."""
        self.log.remove_files(self.log.trim(position))
        return self.log.first_index

    @property
    def sources(self) -> dict[str, Any]:
        return {
            STATE: state_source(self.fs, self.checkpointer),
            LOG: log_source(self.log, lambda: self.log.tail.index),
            SEGMENT: segment_source(self.log),
        }


class Peers:
    """Stands for a FetchClient; `before(peer, what, arguments)` and `after(..., answer)` interfere."""

    group = FIRST_GROUP
    busy_pause_s = 0.0

    def __init__(self, givers: dict[int, Giver], piece_bytes: int = PIECE) -> None:
        """`piece_bytes`: no giver gives more at a time."""
        self._piece_bytes = piece_bytes
        self.sources = {peer: giver.sources for peer, giver in givers.items()}
        self.before: Callable[[int, str, list[Any]], None] = lambda peer, what, arguments: None
        self.after: Callable[[int, str, list[Any], Fetched], Fetched] = lambda peer, what, arguments, answer: answer
        self.asked: list[tuple[int, str, list[Any]]] = []
        self.dead: set[int] = set()

    async def fetch(self, peer: int, what: str, arguments: list[Any], timeout_ms: int) -> Fetched:
        await asyncio.sleep(0)
        self.asked.append((peer, what, arguments))
        self.before(peer, what, arguments)
        if peer in self.dead:
            raise FetchError(NodeId(peer), what, None, "the connection closed")
        try:
            answer: Fetched = self.sources[peer][what](self._limited(what, arguments))
        except FetchRefused as error:
            raise FetchError(NodeId(peer), what, error.status, str(error)) from None
        return self.after(peer, what, arguments, answer)

    def _limited(self, what: str, arguments: list[Any]) -> list[Any]:
        if what == LOG or arguments[0] == "file":
            return [*arguments[:-1], min(arguments[-1], self._piece_bytes)]
        return arguments


class Taker:
    """Node 1, whose log ended at `last` when it went away; a node that joins has 0."""

    def __init__(self, last: int = 20) -> None:
        self.fs = MemoryFileSystem()
        create_node_dir(self.fs, DATA, Identity(GENESIS.cluster_uuid, GROUP, NodeId(1), UUID(int=1), START_MS), GENESIS)
        opened = self.open()
        opened.hard_state_store.save(HardState(1, TWO, 0))
        opened.log.append(entries_after(opened.log.tail, last, segment_size=SEGMENT_SIZE))
        opened.close(clean=False)

    def open(self) -> NodeDir:
        return open_node_dir(self.fs, DATA)

    @property
    def where(self) -> Where:
        return Where(self.fs, DATA, GROUP, lambda path: counted(MemoryKV.load(self.fs, path)))

    def take(
        self, peers: Peers, order: Sequence[int] = (2, 3), at_least: Callable[[], int] = lambda: 21
    ) -> tuple[Snapshot | None, SnapshotTake]:
        """One attempt over all peers."""
        take = SnapshotTake(self.where, peers, at_once, progress(), at_least=at_least)
        return asyncio.run(take.run([NodeId(peer) for peer in order])), take

    def install(self, snapshot: Snapshot) -> NodeDir:
        snapshot.commit(self.where, START_MS)
        return self.open()

    def check(self, opened: NodeDir, giver: Giver) -> None:
        """The log is the giver's from some segment on, and a checkpoint of its last entry gives the giver's rows."""
        log = opened.log
        assert opened.installed is not None
        assert opened.installed.done
        assert log.previous == giver.log.segment_at(log.first_position).previous
        last = log.tail.index
        assert log.read_entries(log.first_index, last + 1, 1 << 30) == giver.log.read_entries(
            log.first_index, last + 1, 1 << 30
        )
        checkpoint = Checkpoints(self.fs, DATA, GROUP).load(opened.installed.checkpoint)
        assert checkpoint is not None
        assert checkpoint.manifest.mark.index == last
        assert not list(Checkpoints(self.fs, DATA, GROUP).problems(checkpoint))
        kv = MemoryKV.load(self.fs, checkpoint.path)
        state = BrokerState(kv)
        if last < giver.log.tail.index:
            state.apply(giver.log.read_entries(last + 1, giver.log.tail.index + 1, 1 << 30))
        assert digest(kv) == digest(giver.kv)


def progress() -> InstallProgress:
    return InstallProgress(InstallMetrics(), lambda: 0.0)
