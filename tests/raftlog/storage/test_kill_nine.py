"""A writer process is killed with -9 again and again on one real directory: every append it announced is there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random

from raftlog.storage.files.fs import OsFileSystem
from raftlog.storage.files.genesis import Genesis
from raftlog.storage.log.segmented_log import SegmentedLog

GROUP = 7
WRITER = """
import sys
from pathlib import Path
from random import Random
from raftlog.frame import make_entry, tail_after
from raftlog.storage.files.fs import OsFileSystem
from raftlog.storage.log.segmented_log import SegmentedLog
rng = Random(int(sys.argv[2]))
log = SegmentedLog.open(OsFileSystem(), Path(sys.argv[1]), group_id=7)
while True:
    tail, batch = log.tail, []
    for _ in range(rng.randint(1, 5)):
        batch.append(make_entry(tail, term=1, entry_type=3, payload=b"%d" % (tail.index + 1) * rng.randint(0, 300),
                                timestamp_ms=0, group_id=7, segment_size=log.segment_size))
        tail = tail_after(tail, batch[-1])
    log.append(batch)
    if log.needs_next() and rng.random() < 0.5:
        log.prepare_next()
    print(log.tail.index, log.tail.header_crc, flush=True)
"""


def test_killed_writers_lose_nothing(tmp_path: Path, genesis: Genesis) -> None:
    fs = OsFileSystem()
    SegmentedLog.create(fs, tmp_path, genesis=genesis.entry(), segment_size=4096).close(clean=True)
    announced: dict[int, int] = {}
    for seed in range(4):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(seed)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        )
        with writer:
            assert writer.stdout is not None
            for _ in range(Random(seed).randint(1, 120)):
                line = writer.stdout.readline()
                announced[int(line.split()[0])] = int(line.split()[1])
            writer.kill()
            for line in writer.stdout:
                if line.endswith(b"\n"):
                    announced[int(line.split()[0])] = int(line.split()[1])
        log = SegmentedLog.open(fs, tmp_path, group_id=GROUP)
        assert not log.report.clean
        assert log.tail.index >= max(announced)
        entries = log.read_entries(0, log.tail.index + 1, 1 << 30)
        assert {index: entries[index].header_crc for index in announced} == announced, f"seed {seed}"
        log.close(clean=False)
