"""Everything that a node takes from the machine, as one value. The simulator passes another value and runs the same
node."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

from cluster.config.config import Config
from cluster.runtime.clock import Clock, SystemClock
from cluster.runtime.figures.row_count import CountedRows, count_apart
from cluster.runtime.host.cgroup import memory_bytes
from cluster.runtime.lanes import Lane, LaneRunner, ThreadLaneRunner
from cluster.runtime.turns.work import TURN_SHARE
from raftlog.storage.files.fs import FileSystem, OsFileSystem
from statemachine.checkpoint_reader import CheckpointReader
from statemachine.levels import LEVEL
from statemachine.rows.kv import KV
from statemachine.rows.rocksdb_store import RocksKV

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
CHECKPOINT_BYTES = 64 * 1024 * 1024
"""Bytes of log applied since the newest checkpoint after which another checkpoint is due."""
CHECKPOINT_EVERY_MS = 60_000
"""Milliseconds after the newest checkpoint after which another one is due if anything was applied since."""
SWEEP_ROWS = 512
"""The number of rows of the state that one slice of a sweep visits. A slice takes about 10 ms if all its rows are
removed (docs/adr/0057)."""
APPLY_BYTES = 1024 * 1024
"""The most bytes of entries that the apply lane applies in one drain. A byte of commands counts as several
(`COMMAND_WEIGHT` of `cluster.replication.apply_lane`)."""
SEND_BYTES = 2 * 1024 * 1024
"""The most bytes of entries that one turn of the driver sends to all followers together: about 2 ms of copies and a few
reads of the log. Followers that need more get it in the next turns."""
PAGE_SEGMENTS = 512
"""Full segments of the log in one page of the tier's manifest: some 250 KB of JSON (docs/adr/0072)."""
LOCK_TTL_MS = 60_000
"""Milliseconds of log time for which a queue lock is held (RocketMQ: REBALANCE_LOCK_MAX_LIVE_TIME). Clients stop
reading after half of it."""
ROUTE_AGE_MS = 70_000
"""Milliseconds after a change of a topic after which no client still sends by its old route: a little more than two of
the intervals (30 s) at which RocketMQ's clients ask for routes."""


def boot_id() -> bytes:
    """Returns 16 bytes that change when the machine starts; zeros if the kernel does not supply them."""
    try:
        return UUID(BOOT_ID.read_text().strip()).bytes
    except (OSError, ValueError):
        return bytes(16)


class Rows(Protocol):
    """A source of rows: an open store, or a reader of a closed one."""

    def get(self, family: str, key: bytes) -> bytes | None:
        """Returns the row's value; None if there is no such row."""


def open_rows(path: Path) -> AbstractContextManager[Rows]:
    """Opens the rows of a checkpoint. Raises KVCorruptError if it is damaged, KVError if it cannot be opened."""
    return CheckpointReader(path, strict=True)


class RunnerFactory(Protocol):
    """Makes the runner of a lane, which decides where the lane runs."""

    def __call__(
        self,
        name: str,
        lane: Lane[Any, Any],
        loop: asyncio.AbstractEventLoop,
        on_done: Callable[[Any], None],
        on_failure: Callable[[BaseException], None],
    ) -> LaneRunner[Any]:
        """Returns the runner of a lane; it calls `on_done` and `on_failure` on `loop`."""


@dataclass(frozen=True, slots=True)
class Environment:
    """Everything that a node takes from the machine; by default, the real machine. Sockets are not part of it: they
    come from the running event loop."""

    fs: FileSystem = field(default_factory=OsFileSystem)
    open_kv: Callable[[str], KV] = RocksKV
    """Opens the database at a path."""
    open_rows: Callable[[Path], AbstractContextManager[Rows]] = open_rows
    """Opens a checkpoint read-only."""
    count_rows: Callable[[Path], CountedRows] = count_apart
    """Counts all rows of a checkpoint. It may take minutes and blocks the calling thread."""
    clock: Clock = field(default_factory=SystemClock)
    runner: RunnerFactory = ThreadLaneRunner
    apply_runner: RunnerFactory | None = None
    """Makes the runner of the apply lane; None for the default of `cluster.replication.apply_lane`."""
    append_runner: RunnerFactory | None = None
    """Makes the runner of the lane that writes the log; None for the default of `cluster.replication.append_runner`."""
    entropy: Callable[[int], bytes] = os.urandom
    """Returns the given number of random bytes."""
    boot_id: Callable[[], bytes] = boot_id
    pid: Callable[[], int] = os.getpid
    memory_bytes: Callable[[], int] = memory_bytes
    checkpoint_bytes: int = CHECKPOINT_BYTES
    checkpoint_every_ms: int = CHECKPOINT_EVERY_MS
    """Milliseconds after the newest checkpoint after which another one is due if anything was applied since
    (`cluster.state.checkpointer`)."""
    lock_ttl_ms: int = LOCK_TTL_MS
    """Milliseconds of log time for which a queue lock is held (`cluster.broker.groups.queue_locks`)."""
    route_age_ms: int = ROUTE_AGE_MS
    """Milliseconds after a change of a topic after which no client still sends by its route from before the change
    (`cluster.broker.gathering`)."""
    sweep_rows: int = SWEEP_ROWS
    """The most rows that one slice of a sweep visits (`cluster.retention.service`), and the most names that one log
    entry adds to the journal from which other groups copy changes (`cluster.truth.truth_source`)."""
    apply_bytes: int = APPLY_BYTES
    send_bytes: int = SEND_BYTES
    turn_share: int = TURN_SHARE
    """Units of work that one turn of the loop has for work that is cut into steps (`cluster.runtime.turns.work`)."""
    page_segments: int = PAGE_SEGMENTS
    """Full segments in a page of the tier's manifest (`cluster.tier.manifest_pages`)."""
    read_key_file: Callable[[Path], tuple[bytes, ...]] | None = None
    """Returns the keys in the file that `auth.key_file` names; None for the default of
    `cluster.broker.access.secrets`."""
    open_store: Callable[[str], object] | None = None
    """Opens the object store at a URL; None for the default of `cluster.tier.store.store_by_url`. The result has no
    type here, because the protocol of object stores belongs to a layer above."""
    read_config: Callable[[], Config] | None = None
    """Reads the configuration again (`cluster.config.reload`), and raises ConfigError if it is not valid. None if there
    is none to read."""
    written_keys: Callable[[], frozenset[str]] = frozenset
    """Returns the keys, "section.name", that this node's file and variables set."""
    fit_config: Callable[[Config], Config] = lambda config: config
    """Returns the configuration as this process can use it (`cluster.runtime.host.descriptors`). Raises ConfigError if
    the process cannot use it."""
    level: int = LEVEL
    """The highest level that this node knows and announces (`statemachine.levels.LEVEL`)."""
    gives_config: bool = True
    """True if a leader sets values for the keys of the cluster that have none (`cluster.node.cluster_config`)."""
    watches_turns: bool = True
    """True if a thread measures the length of turns of the event loop (`cluster.runtime.turns.turn_watch`)."""
    serves_admin: bool = True
    """True if the HTTP API is started."""

    def random(self) -> random.Random:
        """Returns a random generator for timeouts, seeded from `entropy`."""
        return random.Random(self.entropy(16))
