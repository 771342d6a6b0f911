"""What a start reads after a kill: `SegmentedLog.open` on logs of 0.5, 1 and 2 GiB that were let go without closing.

    python bench/bench_start.py [--segment-mib 64] [--frame-bytes 16384] [--gib 0.5 1 2] [--dir DIR] [--json]

Writes as much as the largest log. Batches of 1 MiB, files that are holes, the background lane's work after each batch.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any
from uuid import UUID

from raftlog.frame import make_entry, tail_after
from raftlog.storage import layout
from raftlog.storage.fs import OsFileSystem
from raftlog.storage.genesis import Genesis, Voter
from raftlog.storage.segmented_log import SegmentedLog
from raftlog.types import EntryType, NodeId

GIB = 1 << 30
BATCH = 1 << 20


def grow(log: SegmentedLog, end: int, payload: bytes) -> None:
    """Appends batches up to position `end`."""
    while log.tail.end_position < end:
        batch, tail = [], log.tail
        for _ in range(max(1, BATCH // (len(payload) + 64))):
            entry = make_entry(
                tail,
                term=1,
                entry_type=EntryType.MESSAGES,
                payload=payload,
                timestamp_ms=1,
                group_id=1,
                segment_size=log.segment_size,
            )
            batch.append(entry)
            tail = tail_after(tail, entry)
        log.append(batch)
        if log.needs_next():
            log.prepare_next(zeroed=False)


def measure(root: Path, segment_size: int, frame_bytes: int, sizes: list[float]) -> list[dict[str, Any]]:
    """One row per size of the log, in GiB."""
    fs = OsFileSystem()
    genesis = Genesis(UUID(int=1), 1, segment_size, 1, (Voter(NodeId(1), UUID(int=2)),))
    log = SegmentedLog.create(fs, root, genesis=genesis.entry(), segment_size=segment_size)
    payload = os.urandom(frame_bytes - 64)
    rows = []
    for size in sorted(sizes):
        grow(log, int(size * GIB) - 5_000_000, payload)
        start = perf_counter()
        log = SegmentedLog.open(fs, root, group_id=1)
        milliseconds = (perf_counter() - start) * 1000
        kept = root / layout.LOG / layout.ACTIVE_INDEX
        rows.append(
            {
                "log_gib": size,
                "segment_mib": segment_size >> 20,
                "frame_bytes": frame_bytes,
                "entries": log.report.entries,
                "scanned_mib": round(log.report.bytes_scanned / 2**20, 1),
                "ms": round(milliseconds),
                "active_idx_bytes": kept.stat().st_size if kept.exists() else 0,
            }
        )
    return rows


def main() -> None:
    """Runs all sizes and prints them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--segment-mib", type=int, default=64)
    parser.add_argument("--frame-bytes", type=int, default=16384)
    parser.add_argument("--gib", type=float, nargs="+", default=[0.5, 1, 2])
    parser.add_argument("--dir", type=Path, default=None, help="where to write (default: a temporary directory)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="bench-start-", dir=args.dir))
    try:
        rows = measure(root, args.segment_mib << 20, args.frame_bytes, args.gib)
    finally:
        shutil.rmtree(root)
    if args.json:
        sys.stdout.write(json.dumps(rows) + "\n")
        return
    for row in rows:
        sys.stdout.write("  ".join(f"{key} {value}" for key, value in row.items()) + "\n")


if __name__ == "__main__":
    main()
