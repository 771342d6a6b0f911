"""What a durable append costs: `SegmentedLog.append` on zero-filled files, and raw pwrite + fdatasync on both kinds.

    python bench/bench_append.py [--seconds 2] [--dir DIR] [--json]

"python" is the time of an append on a file system whose calls do nothing: what the log itself adds per call.
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
from raftlog.storage.fs import OsFile, OsFileSystem, zero_fill
from raftlog.storage.genesis import Genesis, Voter
from raftlog.storage.segmented_log import SegmentedLog
from raftlog.types import Entry, EntryType, LogTail, NodeId

SIZES = (4 * 1024, 64 * 1024, 1024 * 1024)
SEGMENT_SIZE = 64 * 1024 * 1024


class NullFile(OsFile):
    """Takes every write and keeps nothing."""

    def pwritev(self, buffers: Any, offset: int) -> None:
        pass

    def fdatasync(self) -> None:
        pass


class NullFileSystem(OsFileSystem):
    """Real until `null` is set, then new and reopened files keep nothing."""

    __slots__ = ("null",)

    def __init__(self) -> None:
        self.null = False

    def open(self, path: Path, *, create: bool = False) -> OsFile:
        file = OsFileSystem.open(self, path, create=create)
        return NullFile(path, os.dup(file._fd)) if self.null else file


def new_log(fs: OsFileSystem, directory: Path) -> SegmentedLog:
    """An empty log with 64 MiB segments."""
    genesis = Genesis(UUID(int=1), 1, SEGMENT_SIZE, 1, (Voter(NodeId(1), UUID(int=2)),))
    fs.mkdir(directory)
    return SegmentedLog.create(fs, directory, genesis=genesis.entry(), segment_size=SEGMENT_SIZE)


def next_entry(tail: LogTail, payload: bytes) -> Entry:
    """A frame as the leader would stamp it."""
    return make_entry(
        tail,
        term=1,
        entry_type=EntryType.MESSAGES,
        payload=payload,
        timestamp_ms=1,
        group_id=1,
        segment_size=SEGMENT_SIZE,
    )


def bench_log(log: SegmentedLog, size: int, seconds: float, prepare: bool) -> list[float]:
    """Seconds of each append. The next file is prepared between appends, outside the measured time."""
    payload = os.urandom(size - 64)
    tail = log.tail
    times: list[float] = []
    end = perf_counter() + seconds
    while perf_counter() < end:
        entry = next_entry(tail, payload)
        tail = tail_after(tail, entry)
        start = perf_counter()
        log.append((entry,))
        times.append(perf_counter() - start)
        if prepare and log.needs_next():
            pause = perf_counter()
            log.prepare_next()
            end += perf_counter() - pause
    return times


def bench_raw(directory: Path, size: int, seconds: float, zeroed: bool) -> list[float]:
    """Seconds of each pwrite + fdatasync of `size` bytes, up to 256 MiB in a file."""
    data = os.urandom(size)
    limit = 256 * 1024 * 1024
    file = OsFileSystem().open(directory / f"raw-{size}-{zeroed}", create=True)
    if zeroed:
        zero_fill(file, 0, limit)
        file.fdatasync()
    times: list[float] = []
    at, end = 0, perf_counter() + seconds
    while perf_counter() < end and at + size <= limit:
        start = perf_counter()
        file.pwritev([data], at)
        file.fdatasync()
        times.append(perf_counter() - start)
        at += size
    return times


def row(what: str, size: int, times: list[float]) -> dict[str, Any]:
    """One line of the table."""
    ordered = sorted(times)
    return {
        "what": what,
        "size": size,
        "appends": len(times),
        "per_second": round(len(times) / sum(times)),
        "mb_per_second": round(size * len(times) / sum(times) / 1e6, 1),
        "p50_us": round(ordered[len(ordered) // 2] * 1e6, 1),
        "p99_us": round(ordered[len(ordered) * 99 // 100] * 1e6, 1),
    }


def main() -> None:
    """Runs all rows and prints them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="per row")
    parser.add_argument("--dir", type=Path, default=None, help="where to write (default: a temporary directory)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="bench-append-", dir=args.dir))
    rows = []
    try:
        for size in SIZES:
            rows.append(row("raw, growing file", size, bench_raw(root, size, args.seconds, zeroed=False)))
            rows.append(row("raw, zeroed file", size, bench_raw(root, size, args.seconds, zeroed=True)))
            log = new_log(OsFileSystem(), root / f"log-{size}")
            rows.append(row("log", size, bench_log(log, size, args.seconds, prepare=True)))
            shutil.rmtree(root / f"log-{size}")
        fs = NullFileSystem()
        new_log(fs, root / "null").close(clean=True)
        fs.null = True
        log = SegmentedLog.open(fs, root / "null", group_id=1)
        rows.append(row("python", SIZES[0], bench_log(log, SIZES[0], min(args.seconds, 0.2), prepare=False)))
    finally:
        shutil.rmtree(root, ignore_errors=True)
    if args.json:
        json.dump({"rows": rows}, sys.stdout)
        return
    columns = list(rows[0])
    print("".join(f"{column:>16}" for column in columns))
    for line in rows:
        print("".join(f"{line[column]:>16}" for column in columns))


if __name__ == "__main__":
    main()
