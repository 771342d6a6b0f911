"""Witnesses of the bugs outside the core (see witnesses.py): parts by themselves where that is enough, else a stage."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from google_crc32c import value as crc32c

from cluster.broker.reads.log_reads import read_intact
from cluster.node.node import Node
from cluster.runtime.framing import FrameBuffer, FrameTooLargeError
from jepsen_like.fakes.memory_fs import PowerCut
from jepsen_like.fakes.memory_kv import MemoryKV
from jepsen_like.sim.machines.disk import FaultyFileSystem, Left
from jepsen_like.sim.scripted import Stage
from raftlog.errors import StorageError
from raftlog.frame import make_entry, tail_after
from raftlog.storage.files.genesis import Genesis, Voter
from raftlog.storage.log.segmented_log import SegmentedLog
from raftlog.types import Entry, EntryType, LogTail, NodeId
from raftmq.client.connection import Connection
from raftmq.client.errors import Unknown
from raftmq.client.producing.send_window import Pending, SendWindow, out_of_time
from raftmq_wire.codec import FLAG_RESPONSE, encode_frame
from raftmq_wire.codes import ResponseCode
from statemachine.broker_state import BrokerState
from statemachine.commands import pack
from statemachine.message_index import RECORD, MessageIndex, key_hash
from statemachine.queue_reads import QueueItem
from statemachine.rows.digest import digest
from statemachine.rows.write_batch import Stage as StagedRows
from statemachine.topics.topics import CreateTopic

T = TypeVar("T")
DATA = Path("/data")
SEGMENT = 16 << 10
GENESIS = Genesis(UUID(int=7), 1, SEGMENT, 0, (Voter(NodeId(1), UUID(int=1)),)).entry()
LED = "nodes 3\nlead 1\n"
TOPIC_ID = 1


def looked(script: str, look: Callable[[Stage], T]) -> T:
    """Returns the view of `look` when the script has been played; nothing is judged before."""
    seen: list[T] = []

    class Looked(Stage):
        def _phases(self) -> None:
            super()._phases()
            seen.append(look(self))

    Looked(script, black_box=True).run()
    return seen[0]


def count_of(name: str) -> Callable[[Stage], int]:
    """Returns a look at the number of operations that ended so, such as "send ok"."""
    return lambda stage: stage.recorder.counts[name]


def node(stage: Stage, number: int) -> Node:
    """The node that runs on a machine."""
    found = stage.machines[NodeId(number)].node
    assert found is not None
    return found


class Disk:
    """A log on a faulty disk."""

    def __init__(self) -> None:
        self.fs = FaultyFileSystem()
        self.log = SegmentedLog.create(self.fs, DATA, genesis=GENESIS, segment_size=SEGMENT)

    def append(self, size: int) -> None:
        self.log.append([self.entry(bytes([7]) * size)])

    def entry(self, payload: bytes, tail: LogTail | None = None) -> Entry:
        return make_entry(
            tail or self.log.tail,
            term=1,
            entry_type=EntryType.COMMAND,
            payload=payload,
            timestamp_ms=1,
            group_id=1,
            segment_size=SEGMENT,
        )

    def opened(self, committed_index: int = -1) -> SegmentedLog:
        return SegmentedLog.open(self.fs, DATA, group_id=1, committed_index=committed_index)

    def pair(self) -> list[Entry]:
        """Two entries for one append, the first within a sector."""
        first = self.entry(bytes([7]) * 20)
        return [first, self.entry(bytes([7]) * 1500, tail_after(self.log.tail, first))]

    def torn(self, left: Left) -> SegmentedLog:
        """The log after power went in the sync of an append of two entries."""
        self.fs.cut_power_in = "fdatasync"
        try:
            self.log.append(self.pair())
        except PowerCut:
            self.fs.crash_leaving(left)
        return self.opened()

    def refuses(self, call: str, code: int) -> bool:
        """Returns True if an append of two entries fails when one of its calls does."""
        self.fs.fail_next[call] = code
        try:
            self.log.append(self.pair())
        except StorageError:
            return True
        return False


# --- state machine and answers ---


def witness_Q01() -> None:
    kv = MemoryKV(model_crash=True)
    disk = Disk()
    for number in range(9):
        create = CreateTopic({"name": f"t{number}", "read_queues": 1, "write_queues": 1, "perm": 6}, False)
        disk.log.append([disk.entry(pack([create]))])
    BrokerState(kv).apply(disk.log.read_entries(0, 10, 1 << 20))
    assert kv.unsynced == 1


def witness_Q02() -> None:
    script = LED + "ask 1\nslow 2 100\nslow 3 100\nask 1 later\nwait 0.02\nsend 1\nwait 1\n"
    assert looked(script, lambda stage: len(node(stage, 2).state._dedup._sessions)) == 2  # connection and producer


def witness_Q03() -> None:
    def sessions(stage: Stage) -> tuple[object, object]:
        running = node(stage, 2).state
        restarted = BrokerState(stage.machines[NodeId(2)].kv)
        names = list(running._dedup._sessions)
        assert len(names) > 1
        return [running.session(name) for name in names], [restarted.session(name) for name in names]

    running, restarted = looked("nodes 3 producers=8\nlead 1\nload 0.5\n", sessions)
    assert running == restarted


def witness_Q06() -> None:
    script = "nodes 3 deadline_ms=5000\nlead 1\nsend 2\ncut 1\nask 1 4 later\nwait 1.5\nheal\nanswered\n"
    assert looked(script, count_of("send ok")) == 2


def witness_Q07() -> None:
    assert not looked(LED + "cut 1\nask 1 later\nwait 0.2\n", count_of("send ok"))


def witness_Q08() -> None:
    def restarted(stage: Stage) -> int:
        return BrokerState(stage.machines[NodeId(2)].kv).max_offset(TOPIC_ID, 0)

    assert looked(LED + "send 12\nwait 0.1\n", restarted) == 12


def witness_Q09() -> None:
    def ahead(stage: Stage) -> int:
        return node(stage, 1).state.applied.index - node(stage, 1).raw.commit_index

    waiting = "cut 1\nask 1 later\nwait 0.05\ncommit 1 later\nwait 0.05\ncommit 1 later\nwait 0.1\n"
    assert looked(LED + "commit 1\n" + waiting + "kill 1\nstart 1\nwait 0.2\n", ahead) <= 0


def witness_Q11() -> None:
    script = LED + "commit 1\nslow 2 100\nslow 3 100\nsend 1 later\nwait 0.02\ncommit 1\nwait 1\n"
    assert looked(script, lambda stage: node(stage, 2).state.offsets_of_group("register"))[0][2] == 2


def witness_Q17() -> None:
    def behind(stage: Stage) -> bool:
        return node(stage, 2).proposals.open and node(stage, 2).state.applied.term < node(stage, 2).raw.term

    assert not looked(LED + "slow-apply 2 1000\nsend 12\nlead 2\n", behind)


# --- the log on its disk ---


def witness_S01() -> None:
    disk = Disk()
    before = disk.log.tail
    assert disk.torn("heads").tail.index <= before.index + 1


def witness_S02() -> None:
    assert Disk().refuses("fdatasync", errno.EIO)


def witness_S03() -> None:
    disk = Disk()
    disk.log.prepare_next()
    while disk.log.tail.segment_base == 0:
        disk.append(1000)
    disk.fs.crash_leaving("nothing")
    assert disk.opened().tail == disk.log.tail


def witness_S04() -> None:
    assert Disk().refuses("pwritev", errno.ENOSPC)


def witness_S05() -> None:
    disk = Disk()
    for _ in range(5):
        disk.append(200)
    disk.log.write_idle_mark()
    entry = disk.log.read_entries(3, 4, 1 << 20)[0]
    segment = disk.log.state.segment_of(3)
    disk.fs.damage(segment.path, segment.file_offset(entry.position) + 100, b"\0")
    disk.fs.restart()
    assert disk.opened(committed_index=4).tail == disk.log.tail


def witness_S07() -> None:
    disk = Disk()
    before = disk.log.tail
    assert disk.torn("heads").tail.index <= before.index + 1


# --- requests and replies ---


def witness_N01() -> None:
    async def paired() -> bool:
        connection = Connection("10.0.0.1:1")
        call = asyncio.ensure_future(connection.call(1, {}, timeout_s=60))
        await asyncio.sleep(0)
        connection.data_received(encode_frame(0, 4711, FLAG_RESPONSE))
        await asyncio.sleep(0)
        done = call.done()
        call.cancel()
        return done

    assert not asyncio.run(paired())


def witness_N02() -> None:
    window = SendWindow(random.Random(1))
    pending = Pending("t", None, (), 1, 0.0, False)  # type: ignore[arg-type]
    window.admit(pending)
    window.answer(pending, ResponseCode.SERVICE_NOT_AVAILABLE, None)
    window.take_again(0.0)
    window.lost()
    assert isinstance(out_of_time(pending), Unknown)


def witness_N03() -> None:
    def held(script: str) -> int:
        """The number of the request that node 2 holds at the end; the first one of a node is random."""
        return max(looked(script, lambda stage: list(node(stage, 2).forwarder._held)))

    first = "nodes 3 deadline_ms=300\nlead 1\ncut 1->2\nquery 2 later\nwait 0.02\n"
    assert held(f"{first}wait 0.38\nquery 2 later\nwait 0.02\n") == held(first) + 1


def witness_N04() -> None:
    try:
        FrameBuffer(100).feed((1 << 30).to_bytes(4, "big"))
    except FrameTooLargeError:
        return
    raise AssertionError


def witness_N05() -> None:
    script = "nodes 3 deadline_ms=1500\nlead 1\npause 2\npause 3\nask 1\n"
    assert not looked(script, count_of("send fail"))


def witness_N06() -> None:
    script = (
        "nodes 3 election_ticks=40\nlead 1\ncommit 1\ncut 2->1\ncommit 2 later\nwait 0.05\nlead 3\nanswered\n"
        "commit 3\nlead 1\nheal\nwait 0.5\n"
    )
    assert looked(script, lambda stage: node(stage, 1).state.offsets_of_group("register"))[0][2] == 3


def indexed(kv: MemoryKV, *, reopened: bool) -> MemoryKV:
    """Ten entries with a key each, then the end of their segment; in between the index may be opened anew."""
    index = MessageIndex(kv)
    for position in range(0, 10_000, 1000):
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
    assert found(indexed(MemoryKV(), reopened=False)) == list(range(104, 10_000, 1000))


def witness_I02() -> None:
    assert digest(indexed(MemoryKV(), reopened=True)) == digest(indexed(MemoryKV(), reopened=False))


def witness_S11() -> None:
    class Rotten:
        def read_log(self, position: int, size: int) -> bytes:
            return b"x" * size

    items = [QueueItem(at, 100 + 4 * at, 4, crc32c(b"good"), 0, 0) for at in range(9)]
    assert read_intact(Rotten(), items) == []
