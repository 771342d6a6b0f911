"""Witnesses of the bugs outside the core (see witnesses.py): parts by themselves where that is enough, else a stage.

    python witnesses_full.py ROOT NAME    runs one against the packages under ROOT: exit code 0 holds, 1 fails
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import raftlog
from jepsen_like.sim.disk import FaultyFileSystem
from jepsen_like.sim.stage import Stage
from raftlog.errors import RaftLogError
from raftlog.frame import make_entry
from raftlog.storage.genesis import Genesis
from raftlog.storage.segmented_log import SegmentedLog
from raftlog.types import EMPTY_TAIL, Entry, EntryType
from statemachine.broker_state import BrokerState
from statemachine.commands import CREATE_TOPIC, pack
from statemachine.digest import digest
from statemachine.kv import KVError
from statemachine.memory_kv import MemoryKV
from statemachine.message_index import RECORD, MessageIndex, key_hash
from statemachine.stage import Stage as StagedRows

T = TypeVar("T")
DATA = Path("/data")
SEGMENT = 16 << 10
LED = "nodes 3\nlead 1\n"


def looked(script: str, look: Callable[[Stage], T]) -> T:
    """What `look` sees when the script has been played; nothing is judged before."""
    seen: list[T] = []

    class Looked(Stage):
        def _phases(self) -> None:
            super()._phases()
            seen.append(look(self))

    Looked(script, black_box=True).run()
    return seen[0]


def count_of(name: str) -> Callable[[Stage], int]:
    """How many operations ended so, such as "send ok"."""
    return lambda stage: stage.recorder.counts[name]


class Disk:
    """A log on a faulty disk."""

    def __init__(self) -> None:
        self.fs = FaultyFileSystem()
        genesis = make_entry(
            EMPTY_TAIL, term=0, entry_type=EntryType.GENESIS, payload=_genesis().entry().payload, timestamp_ms=0,
            group_id=1, segment_size=SEGMENT,
        )  # fmt: skip
        self.log = SegmentedLog.create(self.fs, DATA, genesis=genesis, segment_size=SEGMENT)

    def append(self, payload: bytes) -> None:
        self.log.append([self.entry(payload)])

    def entry(self, payload: bytes) -> Entry:
        return make_entry(
            self.log.tail, term=1, entry_type=EntryType.COMMAND, payload=payload, timestamp_ms=1, group_id=1,
            segment_size=SEGMENT,
        )  # fmt: skip

    def opened(self) -> SegmentedLog:
        return SegmentedLog.open(self.fs, DATA, group_id=1)


def _genesis() -> Genesis:
    from uuid import UUID

    from raftlog.storage.genesis import Voter
    from raftlog.types import NodeId

    return Genesis(UUID(int=7), 1, SEGMENT, 0, (Voter(NodeId(1), UUID(int=1)),))


def witness_Q01() -> None:
    kv = MemoryKV(model_crash=True)
    state = BrokerState(kv)
    genesis = _genesis().entry()
    create = pack([[CREATE_TOPIC, {"name": "t", "read_queues": 1, "write_queues": 1, "perm": 6}, False]])
    command = Disk().entry(create)._replace(index=1)
    state.apply([genesis, command])
    assert kv.unsynced == 1


def witness_Q07() -> None:
    assert not looked(LED + "cut 1\nask 1 later\nwait 0.2\n", count_of("send ok"))


def witness_S03() -> None:
    disk = Disk()
    while disk.log.tail.segment_base == 0:
        disk.append(bytes(1000))
    disk.fs.crash_leaving("nothing")
    assert disk.opened().tail == disk.log.tail


def indexed(kv: MemoryKV, *, reopened: bool) -> MemoryKV:
    """Two entries with a key each, then the end of their segment; in between the index may be opened anew."""
    index = MessageIndex(kv)
    for position in (0, 1000):
        stage = StagedRows(kv)
        index.add(stage, position, position + 500, 1, RECORD.pack(key_hash(1, b"k"), position + 104))
        kv.write(stage.batch())
        index = MessageIndex(kv) if reopened else index
    stage = StagedRows(kv)
    index.roll(stage, 2)
    kv.write(stage.batch())
    return kv


def found(kv: MemoryKV) -> list[int]:
    index = MessageIndex(kv)
    bucket = index.bucket_below(1 << 62)
    assert bucket is not None
    return [position for batch in index.candidates(bucket, 1, b"k") for position in batch]


def witness_I01() -> None:
    assert found(indexed(MemoryKV(), reopened=False)) == [104, 1104]


def witness_I02() -> None:
    assert digest(indexed(MemoryKV(), reopened=True)) == digest(indexed(MemoryKV(), reopened=False))


def main(root: str, name: str) -> int:
    if not Path(raftlog.__file__).is_relative_to(Path(root).resolve()):
        sys.exit(f"raftlog comes from {raftlog.__file__}")
    try:
        globals()[name]()
    except (AssertionError, RaftLogError, KVError):
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
