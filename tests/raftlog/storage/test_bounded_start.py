"""The bytes that a start reads after a kill do not grow with the log, nor with its segments."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from jepsen_like.fakes.memory_fs import MemoryFileSystem
from raftlog.frame import make_entry
from raftlog.storage.files import layout
from raftlog.storage.files.fs import read_file
from raftlog.storage.files.genesis import Genesis, Voter
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.storage.recovery import recovery_active
from raftlog.storage.segments import active_index, scan
from raftlog.storage.segments.segment_index import SegmentIndex, decode_index
from raftlog.types import LogTail, NodeId
from tests.support.rows import each_row

DATA = Path("/data")
GROUP = 7
UNIT = 4096
"""Stands for a MiB: all that is measured in MiB is this many times smaller here."""


@pytest.mark.parametrize("segment_units", [64, 1024])
@pytest.mark.parametrize("power", [False, True])
def test_a_killed_node_scans_the_same_at_every_size(
    segment_units: int, power: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logs of half a unit's thousand, one and two; files of 64 and 1024: never more than 64 units are read."""
    monkeypatch.setattr(active_index, "DISTANCE", 16 * UNIT)
    monkeypatch.setattr(recovery_active, "ZEROES_ENOUGH", 16 * UNIT)
    monkeypatch.setattr(recovery_active, "ZERO_CHUNK", bytes(UNIT))
    monkeypatch.setattr(scan, "_WINDOW", UNIT)
    fs = MemoryFileSystem()
    fs.mkdir(DATA)
    size = segment_units * UNIT
    genesis = Genesis(UUID(int=1), GROUP, size, 1, (Voter(NodeId(1), UUID(int=11)),))
    log = SegmentedLog.create(fs, DATA, genesis=genesis.entry(), segment_size=size)
    scanned = []
    for units in (512, 1024, 2048):
        while log.tail.end_position < (units - 3) * UNIT:
            entry = make_entry(
                log.tail,
                term=1,
                entry_type=3,
                payload=bytes(UNIT - 64),
                timestamp_ms=0,
                group_id=GROUP,
                segment_size=size,
            )
            log.append([entry])
            if log.needs_next():
                log.prepare_next(zeroed=False)
        tail = log.tail
        fs.crash(units) if power else fs.restart()
        log = SegmentedLog.open(fs, DATA, group_id=GROUP)
        assert log.tail == tail
        scanned.append(log.report.bytes_scanned)
        assert tail.end_position - log.report.scanned_from <= 17 * UNIT
    assert max(scanned) <= 64 * UNIT, scanned


@each_row("seed", range(8))
def test_the_kept_index_is_on_disk_when_it_has_its_name(seed: int) -> None:
    """A name that survives the power leads to all of its bytes: a start need not scan what it covers."""
    fs = MemoryFileSystem()
    fs.mkdir(DATA / "log")
    tail, index = LogTail(1, 4, 500, 7, 0, 0), SegmentIndex(0, 0)
    for position in range(0, 500, 100):
        index.add(position, 1)
    active_index.write(fs, DATA / "log", index, tail, GROUP)
    fs.crash(seed)
    head, found = decode_index(read_file(fs, DATA / "log" / layout.ACTIVE_INDEX), GROUP)
    assert (head.tail, found.offsets) == (tail, index.offsets)
