"""The effects of a real file system without room on RocksDB, and what is left to do."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.tools import needs

pytestmark = needs("mount")

FILL = """
import os, sys
from pathlib import Path

place = Path(sys.argv[1])

class Ballast:
    def __init__(self):
        self.file = open(place / "ballast", "wb", buffering=0)

    def fill(self):
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    self.file.write(bytes(size))
            except OSError:
                pass

    def free(self):
        self.file.truncate(0)
        self.file.seek(0)

ballast = Ballast()
"""

ROCKS = (
    FILL
    + """
from statemachine.rows.kv import FAMILIES, Batch, KVFullError
from statemachine.rows.rocksdb_store import RocksKV

def write(kv, number):
    batch = Batch()
    batch.put(FAMILIES[-1], b"%08d" % number, os.urandom(200))
    kv.write(batch)

path = str(place / "state")
kv = RocksKV(path)
for number in range(5):
    write(kv, number)
ballast.fill()
number = 5
try:
    while True:
        write(kv, number)
        number += 1
except KVFullError as error:
    assert "No space left" in str(error)
assert number and kv.get(FAMILIES[-1], b"%08d" % (number - 1)) is not None
ballast.free()
try:
    write(kv, number)
    print("resumed")
except KVFullError:
    print("stays closed")
for call in (kv.flush_wal, kv.flush_tables, lambda: kv.checkpoint(str(place / "copy"))):
    try:
        call()
    except KVFullError:
        pass
kv.close()
kv = RocksKV(path)
assert all(kv.get(FAMILIES[-1], b"%08d" % n) is not None for n in range(number))
assert kv.get(FAMILIES[-1], b"%08d" % number) is None
write(kv, number)
kv.close()
print("whole")
"""
)


def test_rocksdb_must_be_opened_again_after_a_full_disk_and_has_lost_nothing(small_disk: Callable[..., str]) -> None:
    """Should a later RocksDB resume by itself, the restart in the process (`cluster.retention.disk_space`) is not
    needed."""
    assert small_disk(ROCKS).split("\n")[:2] == ["stays closed", "whole"]


LOG = (
    FILL
    + """
from uuid import UUID
from cluster.replication.append_lane import RETRY, AppendLane, PersistJob, PrepareLane
from raftlog.frame import make_entry, tail_after
from raftlog.storage.files.fs import OsFileSystem
from raftlog.storage.files.genesis import Genesis, Voter
from raftlog.storage.files.hard_state import HardStateStore
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.types import EntryType, HardState, NodeId

fs, size = OsFileSystem(), 4 << 20
genesis = Genesis(UUID(int=1), 7, size, 0, (Voter(NodeId(1), UUID(int=1)),))
log = SegmentedLog.create(fs, place, genesis=genesis.entry(), segment_size=size)
hard = HardStateStore.create(fs, place / "hard_state", 7)
lane, prepare = AppendLane(log, hard, 10), PrepareLane(log, lambda: 0.0)
tail, parked, term = log.tail, 0, 1
entries = []
for number in range(40):
    if number == 10:
        ballast.fill()
    entry = make_entry(
        tail, term=term, entry_type=EntryType.MESSAGES, payload=bytes(700_000), timestamp_ms=0, group_id=7,
        segment_size=size,
    )
    tail = tail_after(tail, entry)
    entries.append(entry)
    prepare.drain([True])
    term += 1
    done = lane.drain([PersistJob(HardState(term - 1, NodeId(1), 0), [entry], ())])
    parked += bool(done.parked)
    if number == 30:
        ballast.free()
        done = lane.drain([RETRY])
        assert not done.parked, done.parked
        assert done.last == entry.id and done.jobs > 15
        ballast.free()
assert parked > 15, parked
assert hard.load().term == 40
log.close(clean=False)
log = SegmentedLog.open(fs, place, group_id=7)
assert log.read_entries(1, 41, 1 << 30) == entries
print("whole", parked)
"""
)


def test_log_and_vote_on_a_disk_that_fills_up_and_is_freed(small_disk: Callable[..., str]) -> None:
    assert small_disk(LOG, size="64m").startswith("whole")
