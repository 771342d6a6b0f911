"""Opening what a node stands on: directory, log, RocksDB, core; each stage timed, each refusal with what to type."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from uuid import UUID

from cluster.config import Config
from cluster.environment import Environment
from cluster.failpoint_fs import FailpointFileSystem
from cluster.failpoints import FailpointSet
from cluster.peer.transport import Membership
from raftlog.core.config import RaftConfig
from raftlog.core.raw_node import RawNode
from raftlog.errors import CorruptLogError
from raftlog.storage import layout
from raftlog.storage.fs import FileSystem
from raftlog.storage.identity import Expected
from raftlog.storage.members import members_at_opening
from raftlog.storage.node_dir import NodeDir, open_node_dir
from statemachine.broker_state import BrokerState


class Stages:
    """Milliseconds per stage of the start, in order."""

    def __init__(self) -> None:
        self.milliseconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Times one stage."""
        start = perf_counter()
        yield
        self.milliseconds[name] = round((perf_counter() - start) * 1000, 2)


class Parts:
    """What was opened. `close` undoes it in reverse."""

    def __init__(self, config: Config, failpoints: FailpointSet, environment: Environment) -> None:
        """Raises IdentityError, StorageError or KVError, each saying what to type."""
        self.stages = Stages()
        fs = environment.fs
        hard_state_fs: FileSystem | None = None
        if failpoints.enabled:
            hard_state_fs = FailpointFileSystem(fs, failpoints, sync_point="hardstate.fdatasync")
            fs = FailpointFileSystem(fs, failpoints, sync_point="append.fdatasync", write_point="append.write")
        expected = Expected(
            cluster_uuid=UUID(config.cluster.id) if config.cluster.id else None, group_id=None, node_id=config.node_id
        )
        path = Path(config.node.data_dir)
        with self.stages.stage("log"):
            self.directory: NodeDir = open_node_dir(fs, path, expected, hard_state_fs=hard_state_fs)
        try:
            with self.stages.stage("state"):
                self.kv = environment.open_kv(str(path / layout.STATE))
                self.state = BrokerState(self.kv)
            self._check_state_fits_log()
            log, identity = self.directory.log, self.directory.identity
            self.members = members_at_opening(
                path, identity, log.genesis, log, self.state.membership, self.state.applied.index
            )
        except BaseException:
            self.directory.close(clean=False)
            raise

    def _check_state_fits_log(self) -> None:
        """The applied mark must be a frame of this log: never serve rows that another log made."""
        mark, log = self.state.applied_mark, self.directory.log
        if mark.index < 0:
            return
        if mark.index > log.tail.index:
            raise CorruptLogError(
                f"{self.directory.path}: RocksDB has applied index {mark.index}, the log ends at {log.tail.index}.\n"
                "The log lost entries that were durable, or one of the two was put back from another time.\n"
                "Put both back from the same backup, or replace this node."
            )
        if mark.index < log.first_index:
            return
        (entry,) = log.read_entries(mark.index, mark.index + 1, 1)
        if entry.header_crc != mark.header_crc:
            raise CorruptLogError(
                f"{self.directory.path}: RocksDB was made from another log: at index {mark.index} it saw frame "
                f"{mark.header_crc:08x}, the log holds {entry.header_crc:08x}.\n"
                "One of the two was put back from elsewhere.\n"
                "Put both back from the same backup, or replace this node."
            )

    def membership(self) -> Membership:
        """Who this node is and who the others are."""
        identity = self.directory.identity
        return Membership(
            str(identity.cluster_uuid), identity.group_id, identity.node_id, str(identity.node_uuid),
            {node_id: str(node_uuid) for node_id, node_uuid in self.members.node_uuids.items()},
        )  # fmt: skip

    def raw_node(self, config: Config, rng: random.Random) -> RawNode:
        """The core over this directory."""
        genesis = self.directory.log.genesis
        raft = config.raft
        return RawNode(
            RaftConfig(
                node_id=config.node_id, group_id=genesis.group_id, election_ticks=raft.election_ticks,
                heartbeat_ticks=raft.heartbeat_ticks, inflight_bytes_max=raft.inflight_bytes_max,
                append_bytes_max=raft.append_bytes_max, segment_size=genesis.segment_size,
            ),
            hard_state=self.directory.hard_state_store.load(),
            log=self.directory.log,
            voters=self.members.voter_ids,
            applied_index=self.state.applied.index,
            rng=rng,
        )  # fmt: skip

    def close(self, clean: bool) -> None:
        """Closes RocksDB, then the directory. `clean` only when every lane finished without a failure."""
        if clean:
            self.state.flush()
        self.kv.close()
        self.directory.close(clean)
