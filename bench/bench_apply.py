"""What apply costs per MESSAGES entry and per message, on both stores; and what an idle store weighs.

    python bench/bench_apply.py [--json]

CPU time of the process (user and system), so RocksDB's background work is in it. One run per entry is the leader's
normal case at low load; entries are gathered into larger runs when apply falls behind, and in replay.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import psutil

from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.frame import make_entry, tail_after
from raftlog.types import EMPTY_TAIL, Entry, EntryType
from statemachine import commands, payload
from statemachine.broker_state import BrokerState
from statemachine.kv import KV, Batch
from statemachine.rocks import RocksKV

QUEUES = 8
MESSAGE_BYTES = 1024


def entries(count: int, messages: int, queues_per_entry: int) -> Iterator[Entry]:
    """A topic, then entries of `messages` messages over `queues_per_entry` queues, with one producer session each."""
    tail = EMPTY_TAIL
    ends = [0] * QUEUES
    create = commands.pack([["create_topic", {"name": "bench", "read_queues": QUEUES}, True]])
    first = make_entry(
        tail, term=1, entry_type=EntryType.COMMAND, payload=create, timestamp_ms=1, group_id=1, segment_size=2**40
    )
    yield first
    tail = tail_after(tail, first)
    sequence = 0
    for n in range(count):
        runs = []
        share = messages // queues_per_entry
        for k in range(queues_per_entry):
            queue = (n + k) % QUEUES
            items = b"".join(payload.ITEM.pack(n, MESSAGE_BYTES, 7, 0, n) for _ in range(share))
            runs.append(payload.Run(1, queue, ends[queue], share, 0, items))
            ends[queue] += share
        rows = b"".join(payload.SESSION_ROW.pack(sequence + i, 1, 0, 0, 0) for i in range(messages))
        session = payload.SessionRows(b"p" * 16, max(0, sequence - 4 * messages), sequence + messages - 1, rows)
        sequence += messages
        body = payload.encode([bytes(MESSAGE_BYTES * messages)], messages, runs, [session])
        entry = make_entry(
            tail, term=1, entry_type=EntryType.MESSAGES, payload=body, timestamp_ms=n, group_id=1, segment_size=2**40
        )
        tail = tail_after(tail, entry)
        yield entry


class DiscardKV(MemoryKV):
    """Writes nothing: what is left is Python."""

    def write(self, batch: Batch) -> None:
        """Drops the batch."""


def stores(folder: Path) -> dict[str, KV]:
    """A fresh store of each kind."""
    return {"none": DiscardKV(), "rocksdb": RocksKV(str(folder / "db"))}


def measure(messages: int, queues_per_entry: int, group: int) -> list[dict[str, Any]]:
    """One row per store."""
    log = list(
        entries(3000, messages, queues_per_entry) if messages < 100 else entries(600, messages, queues_per_entry)
    )
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, kv in stores(Path(folder)).items():
            state = BrokerState(kv)
            state.apply(log[:1])
            cpu, wall = process_time(), perf_counter()
            for at in range(1, len(log), group):
                state.apply(log[at : at + group])
            cpu, wall = process_time() - cpu, perf_counter() - wall
            kv.close()
            count = len(log) - 1
            rows.append(
                {
                    "store": name,
                    "messages_per_entry": messages,
                    "queues_per_entry": queues_per_entry,
                    "entries_per_run": group,
                    "cpu_us_per_entry": round(cpu / count * 1e6, 1),
                    "cpu_us_per_message": round(cpu / count / messages * 1e6, 3),
                    "wall_us_per_entry": round(wall / count * 1e6, 1),
                }
            )
    return rows


def idle_rss_mib() -> float:
    """What opening a store and writing 100 MiB to it adds to the process, MiB."""
    before: int = psutil.Process().memory_info().rss
    with tempfile.TemporaryDirectory() as folder:
        kv = RocksKV(str(Path(folder) / "db"))
        for n in range(12_800):
            batch = Batch()
            batch.put("cq", n.to_bytes(16, "big"), n.to_bytes(2, "big") * 4096)
            kv.write(batch)
        used: int = psutil.Process().memory_info().rss - before
        kv.close()
    return round(used / 2**20, 1)


def main() -> None:
    """Prints the table, or with --json one object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()
    rss = idle_rss_mib()
    cases = [(1, 1, 1), (1, 1, 64), (16, 1, 1), (64, 8, 1), (256, 8, 1), (1000, 8, 1)]
    rows = [row for case in cases for row in measure(*case)]
    if options.json:
        sys.stdout.write(json.dumps({"rows": rows, "rocksdb_rss_mib": rss}) + "\n")
        return
    sys.stdout.write(" ".join(f"{name:>18}" for name in rows[0]) + "\n")
    for row in rows:
        sys.stdout.write(" ".join(f"{value:>18}" for value in row.values()) + "\n")
    sys.stdout.write(f"RocksDB after 100 MiB of writes: {rss} MiB of memory\n")


if __name__ == "__main__":
    main()
