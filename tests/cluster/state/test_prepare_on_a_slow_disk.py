"""Preparing the next segment leaves a slow disk to the appends."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from cluster.replication.append_lane import PrepareLane
from cluster.runtime.failpoints.failpoint_fs import FailpointFileSystem
from cluster.runtime.failpoints.failpoints import FailpointSet
from raftlog.frame import make_entry, tail_after
from raftlog.storage.files.fs import OsFileSystem
from raftlog.storage.files.genesis import Genesis, Voter
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.types import EMPTY_TAIL, EntryType, NodeId

SEGMENT = 16 << 20


@pytest.mark.parametrize(
    ("rate", "zeroed_mib", "took_s", "wait_s", "syncs"),
    [("400MB", 16, 0.05, 0.002, 35), ("4000MB", 16, 0.005, 0.002, 10), ("4MB", 0.75, 0.25, 0.07, 4)],
)
def test_the_next_file_gets_no_more_zeroes_than_the_disk_has_time_for(
    tmp_path: Path, rate: str, zeroed_mib: float, took_s: float, wait_s: float, syncs: int
) -> None:
    """16 MiB of zeroes keep a disk of 4 MB/s from the appends for four seconds: each 256 KiB are a wait of 66 ms. A
    quick disk needs fewer syncs for them."""
    now = [0.0]
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        now[0] += seconds

    points = FailpointSet(True, sleep=sleep, clock=lambda: now[0])
    fs = FailpointFileSystem(OsFileSystem(), points, sync_point="append.fdatasync", write_point="append.write")
    genesis = Genesis(UUID(int=1), 1, SEGMENT, 0, (Voter(NodeId(1), UUID(int=2)),))
    log = SegmentedLog.create(fs, tmp_path, genesis=genesis.entry(), segment_size=SEGMENT)
    entry = make_entry(
        tail_after(EMPTY_TAIL, genesis.entry()),
        term=1,
        entry_type=EntryType.MESSAGES,
        payload=bytes(SEGMENT // 3),
        timestamp_ms=1,
        group_id=1,
        segment_size=SEGMENT,
    )
    log.append([entry])
    points.set("append.fdatasync", f"rate:{rate}")
    lane = PrepareLane(log, lambda: now[0])
    now[0] += 100.0
    before = now[0]
    waits.clear()
    lane.drain([True])
    assert now[0] - before <= took_s
    assert max(waits) < wait_s
    assert len(waits) <= syncs
    file = (tmp_path / "log" / "next.tmp").stat()
    assert file.st_size == 4096 + SEGMENT
    assert abs(file.st_blocks * 512 / (1 << 20) - zeroed_mib) < 0.1
    assert not log.needs_next()
    log.close(clean=False)
