"""`python bench/bench_checkpoint.py`: how long the interpreter stands still while the state is written and copied.

A state of ROWS (6,000,000) rows is filled, then RATE (20,000) messages a second are applied to it, three rows each,
while CHECKPOINTS (4) checkpoints are made, and while BIG MiB (256) are written as fast as they can be, which RocksDB
holds back. Another thread wakes each millisecond. Printed is how late it was at most, less the time for which it waited
for a core: for so long somebody held the interpreter's lock. JSON=1 prints {"rows": [...]} alone.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from rich.table import Table
from tables import console

from cluster.state.checkpoints import Checkpoints
from cluster.state.tables import Tables
from raftlog.storage.fs import OsFileSystem
from statemachine import keys
from statemachine.kv import CQ, DEDUP, INDEX, META, Batch
from statemachine.rocks import RocksKV

ROWS = int(os.environ.get("ROWS", "6000000"))
RATE = int(os.environ.get("RATE", "20000"))
CHECKPOINTS = int(os.environ.get("CHECKPOINTS", "4"))
BIG_MIB = int(os.environ.get("BIG", "256"))
RUN = 100
"""Messages that are applied together."""


class Watch:
    """A thread that wakes each millisecond; `longest` counts from the last `begin`."""

    def __init__(self) -> None:
        self.longest_ms = 0.0
        self._ends = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """Forgets what was."""
        self.longest_ms = 0.0

    def close(self) -> None:
        """Ends the thread."""
        self._ends = True
        self._thread.join()

    def _run(self) -> None:
        times = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        waited, at = _waited_ns(times), time.perf_counter()
        while not self._ends:
            time.sleep(0.001)
            now, for_core = time.perf_counter(), _waited_ns(times)
            late_ms = (now - at) * 1000 - 1 - (for_core - waited) / 1e6
            self.longest_ms = max(self.longest_ms, late_ms)
            at, waited = now, for_core
        os.close(times)


def _waited_ns(times: int) -> int:
    return int(os.pread(times, 100, 0).split()[1])


class Load:
    """Writes what apply writes."""

    def __init__(self, kv: RocksKV) -> None:
        self._kv = kv
        self._rng = Random(1)
        self.messages = 0
        self._ends = threading.Event()

    def run(self, messages: int) -> None:
        """One run of apply."""
        batch, draw = Batch(), self._rng.randbytes
        for _ in range(messages):
            self.messages = n = self.messages + 1
            batch.put(CQ, (n % 64).to_bytes(4, "big") + n.to_bytes(8, "big"), bytes(40))
            batch.put(INDEX, draw(16), bytes(32))
            batch.put(DEDUP, draw(16), bytes(16))
        n = self.messages
        batch.put(META, keys.APPLIED_KEY, keys.APPLIED.pack(1, n, 100 * n, 0, n))
        self._kv.write(batch)

    def steady(self) -> None:
        """RATE messages a second, until the end."""
        at = time.perf_counter()
        while not self._ends.is_set():
            self.run(RUN)
            at += RUN / RATE
            time.sleep(max(0.0, at - time.perf_counter()))

    def end(self) -> None:
        """Ends `steady`."""
        self._ends.set()


def flood(kv: RocksKV) -> None:
    """More than RocksDB can flush meanwhile."""
    rng, value = Random(2), bytes(4000)
    for _ in range(BIG_MIB * 256 // 200):
        batch = Batch()
        for _ in range(100):
            batch.put(CQ, rng.randbytes(8), value)
            batch.put(INDEX, rng.randbytes(8), value)
        kv.write(batch)


def measure() -> list[dict[str, Any]]:
    """The rows of the report."""
    sys.setswitchinterval(0.0005)
    with tempfile.TemporaryDirectory() as folder:
        data, fs = Path(folder), OsFileSystem()
        kv = RocksKV(str(data / "state"))
        load = Load(kv)
        while 3 * load.messages < ROWS:
            load.run(500)
        tables, checkpoints = Tables(fs, data / "state", 1), Checkpoints(fs, data, 1)
        watch, found = Watch(), []

        def row(what: str, act: Callable[[], object]) -> None:
            watch.begin()
            began = time.perf_counter()
            act()
            found.append({"what": what, "seconds": time.perf_counter() - began, "held_ms": watch.longest_ms})

        def checkpoint() -> None:
            kv.flush_wal()
            tables.refresh(kv)
            checkpoints.make(kv, tables.crcs, 0)
            checkpoints.prune()

        writer = threading.Thread(target=load.steady)
        writer.start()
        row("the load alone", lambda: time.sleep(5))
        for number in range(CHECKPOINTS):
            row(f"checkpoint {number + 1}", checkpoint)
            time.sleep(2)
        load.end()
        writer.join()
        row(f"{BIG_MIB} MiB at once", lambda: flood(kv))
        watch.close()
        kv.close()
    return found


def main() -> None:
    """Prints the report."""
    found = measure()
    if os.environ.get("JSON") == "1":
        print(json.dumps({"rows": found}))
        return
    table = Table("what", "s", "interpreter held, ms")
    for row in found:
        table.add_row(row["what"], f"{row['seconds']:.2f}", f"{row['held_ms']:.1f}")
    console().print(table)


if __name__ == "__main__":
    main()
