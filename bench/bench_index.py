"""What the message index costs per key on each node, in three layouts of its rows, and what a lookup costs then.

    python bench/bench_index.py [--keys 400000] [--json]

Layouts: `row` a RocksDB row per key; `entry` one row per entry, looked up by reading all of them; `merged` the layout
that is used (statemachine/message_index.py). One batch per entry, as apply writes it; CPU time of the process, so
RocksDB's flushes and compactions are in it. Lookups: keys of which one message has the key, and keys that nobody has.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any
from zlib import crc32

from statemachine import keys, message_index
from statemachine.kv import INDEX, KV, Batch
from statemachine.message_index import RECORD, MessageIndex
from statemachine.rocks import RocksKV
from statemachine.stage import Stage

MESSAGE_BYTES = 1100
LOOKUPS = 200

Write = Callable[[KV, int, bytes], None]
Look = Callable[[KV, bytes], int]


def name_of(n: int) -> bytes:
    """A UNIQ_KEY as RocketMQ's clients make them."""
    return b"0A0000011F9018B4AAC2%08X%04X" % (1_234_567 + n // 40, n & 0xFFFF)


def leader(count: int, per_entry: int) -> tuple[list[bytes], float]:
    """The records of each entry, and the leader's µs of CPU per key for them."""
    names = [name_of(n) for n in range(count)]
    entries, cpu = [], process_time()
    for at in range(0, count, per_entry):
        records: list[int] = []
        position = at * MESSAGE_BYTES
        for name in names[at : at + per_entry]:
            records.append(crc32(name, 1) << 32 | position & 0xFFFFFFFF)
            position += MESSAGE_BYTES
        entries.append(struct.pack(f">{len(records)}Q", *records))
    return entries, (process_time() - cpu) / count * 1e6


def write_rows(kv: KV, position: int, records: bytes) -> None:
    """A row per key: hash, position."""
    batch = Batch()
    for at in range(0, len(records), 8):
        batch.put(INDEX, records[at : at + 8], b"")
    kv.write(batch)


def look_rows(kv: KV, name: bytes) -> int:
    """One seek."""
    wanted = crc32(name, 1).to_bytes(4, "big")
    return sum(1 for _ in kv.scan(INDEX, wanted, wanted + b"\xff" * 5))


def write_entry(kv: KV, position: int, records: bytes) -> None:
    """A row per entry, as the leader sent it."""
    batch = Batch()
    batch.put(INDEX, position.to_bytes(8, "big"), records)
    kv.write(batch)


def look_entries(kv: KV, name: bytes) -> int:
    """Every row, searched."""
    wanted = crc32(name, 1).to_bytes(4, "big")
    return sum(1 for _, value in kv.scan(INDEX, b"", b"\xff" * 9) if value.find(wanted) >= 0)


class Merged:
    """The index itself."""

    def __init__(self, kv: KV) -> None:
        self.index = MessageIndex(kv)

    def write(self, kv: KV, position: int, records: bytes) -> None:
        """As `BrokerState.apply`."""
        stage = Stage(kv)
        self.index.add(stage, position, position + len(records) // 8 * MESSAGE_BYTES, 1, records)
        kv.write(stage.batch())
        self.index.publish()

    def look(self, kv: KV, name: bytes) -> int:
        """Every bucket, newest first."""
        found, below = 0, keys.U64_MAX
        while (bucket := self.index.bucket_below(below)) is not None:
            found += sum(map(len, self.index.candidates(bucket, 1, name)))
            below = bucket.base
        return found


def measure(layout: str, entries: list[bytes], count: int) -> dict[str, Any]:
    """One row of the table."""
    per_entry = len(entries[0]) // RECORD.size
    with tempfile.TemporaryDirectory() as folder:
        kv = RocksKV(str(Path(folder) / "db"))
        merged = Merged(kv)
        write: Write = {"row": write_rows, "entry": write_entry, "merged": merged.write}[layout]
        look: Look = {"row": look_rows, "entry": look_entries, "merged": merged.look}[layout]
        cpu, slowest = process_time(), 0.0
        for at, records in enumerate(entries):
            start = perf_counter()
            write(kv, at * per_entry * MESSAGE_BYTES, records)
            slowest = max(slowest, perf_counter() - start)
        cpu = process_time() - cpu
        known = timed_lookups(look, kv, [name_of(n * (count // LOOKUPS)) for n in range(LOOKUPS)])
        unknown = timed_lookups(look, kv, [b"nobody has %d" % n for n in range(LOOKUPS)])
        size = sum(file.stat().st_size for file in Path(folder).rglob("*.sst"))
        kv.close()
    return {
        "layout": layout,
        "keys_per_entry": per_entry,
        "cpu_us_per_key": round(cpu / count * 1e6, 3),
        "slowest_write_ms": round(slowest * 1e3, 1),
        "lookup_us": known,
        "lookup_of_nothing_us": unknown,
        "sst_bytes_per_key": round(size / count, 1),
    }


def timed_lookups(look: Look, kv: KV, names: list[bytes]) -> float:
    """Mean µs."""
    start = perf_counter()
    for name in names:
        look(kv, name)
    return round((perf_counter() - start) / len(names) * 1e6, 1)


def main() -> None:
    """Prints the table, or with --json one object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=400_000, help="how many keys (default 400000)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    leaders = {}
    for per_entry in (1, 16, 100, 1000):
        count = options.keys // (20 if per_entry == 1 else 1) // per_entry * per_entry
        entries, leaders[per_entry] = leader(count, per_entry)
        rows += [measure(layout, entries, count) for layout in ("row", "entry", "merged")]
    told = {
        "rows": rows,
        "leader_us_per_key": {str(n): round(us, 3) for n, us in leaders.items()},
        "records_max": message_index.RECORDS_MAX,
    }
    if options.json:
        sys.stdout.write(json.dumps(told) + "\n")
        return
    sys.stdout.write(" ".join(f"{name:>20}" for name in rows[0]) + "\n")
    for row in rows:
        sys.stdout.write(" ".join(f"{value:>20}" for value in row.values()) + "\n")
    sys.stdout.write(f"leader, µs per key by keys per entry: {told['leader_us_per_key']}\n")


if __name__ == "__main__":
    main()
