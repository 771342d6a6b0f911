"""What a snapshot costs the node that takes it, without a network: files, rows, frames, and the opening afterwards.

    python bench/bench_install.py [--messages 200000] [--segment-mib 16] [--dir DIR] [--json]

A giver with that many messages of 1 KiB and a RocksDB state; its sources are asked directly, on the same disk.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any
from uuid import UUID

from prometheus_client import CollectorRegistry

from cluster.repair.asking import at_once
from cluster.repair.fetch import LOG, STATE, Fetched
from cluster.repair.install_metrics import InstallMetrics
from cluster.repair.log_source import log_source
from cluster.repair.progress import Progress
from cluster.repair.segment_source import SEGMENT, segment_source
from cluster.repair.snapshot import SnapshotTake, Where
from cluster.repair.state_source import state_source
from cluster.runtime.row_count import Counted, count_apart
from cluster.state.checkpoints import Checkpoints
from raftlog.frame import make_entry, tail_after
from raftlog.storage.fs import OsFileSystem
from raftlog.storage.genesis import Genesis
from raftlog.storage.identity import Identity
from raftlog.storage.node_dir import NodeDir, create_node_dir, open_node_dir
from raftlog.storage.segmented_log import SegmentedLog
from raftlog.types import Entry, EntryType, HardState, NodeId, Voter
from statemachine import commands, payload
from statemachine.broker_state import BrokerState
from statemachine.rocks import RocksKV

BATCH, BODY = 64, 1024
VOTERS = (Voter(NodeId(1), UUID(int=1)), Voter(NodeId(2), UUID(int=2)))
FS = OsFileSystem()


class Checkpointer:
    """What the state source needs of a running node."""

    frozen = wanted = False

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints

    def hold(self, name: str) -> None:
        """Nothing is removed here."""


class Direct:
    """A FetchClient without a wire; counts bytes."""

    def __init__(self, sources: dict[str, Any]) -> None:
        self._sources = sources
        self.bytes: dict[str, int] = dict.fromkeys(sources, 0)

    async def fetch(self, peer: NodeId, what: str, arguments: list[Any], timeout_ms: int) -> Fetched:
        """See FetchClient."""
        answer: Fetched = self._sources[what](arguments)
        self.bytes[what] += len(answer.payload)
        return answer


def node(root: Path, number: int, segment_size: int) -> NodeDir:
    """An open directory with GENESIS."""
    genesis = Genesis(UUID(int=7), 1, segment_size, 1, VOTERS)
    create_node_dir(FS, root, Identity(genesis.cluster_uuid, 1, NodeId(number), UUID(int=number), 1), genesis)
    return open_node_dir(FS, root)


def entry_of(log: SegmentedLog, number: int) -> Entry:
    """A topic first, then batches of messages, round robin over its queues."""
    tail = log.tail
    if number == 1:
        kind, data = EntryType.COMMAND, commands.pack([["create_topic", {"name": "t"}, False]])
    else:
        base = (number - 2) // 8 * BATCH
        items = b"".join(payload.ITEM.pack(tail.end_position + i * BODY, BODY, i, i, number) for i in range(BATCH))
        run = payload.Run(1, (number - 2) % 8, base, BATCH, 0, items)
        kind, data = EntryType.MESSAGES, payload.encode([bytes(BODY * BATCH)], BATCH, [run], (), (), b"")
    return make_entry(
        tail, term=1, entry_type=kind, payload=data, timestamp_ms=number, group_id=1, segment_size=log.segment_size
    )


def fill(directory: NodeDir, state: BrokerState, messages: int) -> None:
    """Appends and applies."""
    log = directory.log
    directory.hard_state_store.save(HardState(1, NodeId(2), 0))
    state.apply(log.read_entries(0, 1, 1))
    for number in range(1, messages // BATCH + 2):
        entry = entry_of(log, number)
        assert tail_after(log.tail, entry).index == number
        log.append([entry])
        state.apply([entry])
        if log.needs_next():
            log.prepare_next(zeroed=False)


def measure(root: Path, messages: int, segment_size: int) -> dict[str, Any]:
    """One install, in seconds per step."""
    giver = node(root / "giver", 2, segment_size)
    kv = RocksKV(str(root / "giver" / "state"))
    fill(giver, BrokerState(kv), messages)
    kv.flush_wal()
    checkpoints = Checkpoints(FS, root / "giver", 1)
    made = checkpoints.make(kv, {}, 1)
    client = Direct(
        {
            STATE: state_source(FS, Checkpointer(checkpoints)),
            LOG: log_source(giver.log, lambda: giver.log.tail.index),
            SEGMENT: segment_source(giver.log),
        }
    )
    node(root / "taker", 1, segment_size).close(clean=True)
    seconds: dict[str, float] = {}

    def timed_count(path: Path) -> Counted:
        start = perf_counter()
        counted = count_apart(path)
        seconds["rows"] = perf_counter() - start
        return counted

    where = Where(FS, root / "taker", 1, timed_count)
    progress = Progress(InstallMetrics(CollectorRegistry()), perf_counter)
    start = perf_counter()
    taken = asyncio.run(SnapshotTake(where, client, at_once, progress, at_least=lambda: 1).run([NodeId(2)]))
    assert taken is not None
    seconds["all that is copied and proved"] = perf_counter() - start
    start = perf_counter()
    taken.commit(where, 1)
    opened = open_node_dir(FS, root / "taker")
    assert opened.installed is not None
    assert opened.installed.done
    checkpoint = Checkpoints(FS, root / "taker", 1).load(opened.installed.checkpoint)
    assert checkpoint is not None
    Checkpoints(FS, root / "taker", 1).install(checkpoint, root / "taker" / "state")
    seconds["commit and opening"] = perf_counter() - start
    return {
        "messages": messages,
        "state_files": len(made.manifest.files),
        "state_bytes": made.manifest.size,
        "log_bytes": client.bytes[LOG],
        "giver_log_bytes": giver.log.tail.end_position,
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
    }


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, nargs="+", default=[200_000])
    parser.add_argument("--segment-mib", type=int, default=16)
    parser.add_argument("--dir", type=Path, default=None)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    for messages in options.messages:
        root = Path(tempfile.mkdtemp(prefix="raftmq-bench-", dir=options.dir))
        try:
            row = measure(root, messages, options.segment_mib << 20)
        finally:
            shutil.rmtree(root, ignore_errors=True)
        if options.json:
            print(json.dumps(row))
        else:
            print(
                f"{messages} messages: state {row['state_bytes'] / 1e6:.1f} MB in {row['state_files']} files, "
                f"{row['log_bytes'] / 1e6:.1f} MB of {row['giver_log_bytes'] / 1e6:.1f} MB of log; seconds "
                + ", ".join(f"{name} {value}" for name, value in row["seconds"].items())
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
