"""Opening a store reads what must be in memory and nothing for each queue: there are no files of queues to load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.types import EntryType
from statemachine.broker_state import BrokerState
from statemachine.consuming.consumer_offsets import CommitOffsets
from statemachine.message_index import RECORD
from statemachine.payload import encode
from statemachine.rows.kv import CQ, INDEX, META, OFFSETS, TOPICS
from statemachine.topics.topics import CreateTopic

TOPICS_MADE, QUEUES = 300, 20


class CountingKV(MemoryKV):
    """Counts rows read, by family, and forgets nothing of what it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.read: Counter[str] = Counter()

    def get(self, family: str, key: bytes) -> bytes | None:
        self.read[family] += 1
        return super().get(family, key)

    def scan(self, family: str, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        rows = list(super().scan(family, start, end))
        self.read[family] += len(rows)
        return iter(rows)

    def seek_last(self, family: str, low: bytes, high: bytes) -> tuple[bytes, bytes] | None:
        self.read[family] += 1
        return super().seek_last(family, low, high)


def test_e14_opening_reads_no_row_of_any_queue(new_log: Callable[..., Any]) -> None:
    log, kv = new_log(), CountingKV()
    state = BrokerState(kv)
    log.command(*[CreateTopic({"name": f"t{n}", "read_queues": QUEUES}, True) for n in range(TOPICS_MADE)])
    for topic_id in range(1, TOPICS_MADE + 1):
        runs = [log.run(topic_id, queue_id, 3) for queue_id in range(QUEUES)]
        log.messages(*runs, effects=(CommitOffsets([("g", topic_id, 0, 1)]),), keys=RECORD.pack(topic_id, 0))
    state.apply(log.entries)
    kv.read.clear()
    state = BrokerState(kv)
    assert kv.read[CQ] == 0, "queues are read when they are asked for"
    assert kv.read[TOPICS] == TOPICS_MADE
    assert kv.read[META] < 20
    assert kv.read[INDEX] < TOPICS_MADE + 10, "the open bucket's rows, at most 16,384 records"
    assert kv.read[OFFSETS] <= TOPICS_MADE
    assert state.max_offset(TOPICS_MADE, QUEUES - 1) == 3
    assert kv.read[CQ] == 1


def test_e7_no_byte_of_a_message_has_a_say_in_what_is_applied(new_log: Callable[..., Any]) -> None:
    """RocketMQ read DUP_INFO out of messages at a start, and a missing one set its place in the log back to 0."""
    rows = []
    for stored in (b"DUP_INFO\x011_2\x02", b"no properties", b"\x00" * 14):
        log, kv = new_log(), MemoryKV()
        log.command(CreateTopic({"name": "t"}, True))
        for _ in range(5):
            run = log.run(1, 0, 1)
            log.add(EntryType.MESSAGES, encode([stored.ljust(16)], 1, [run]))
        BrokerState(kv).apply(log.entries)
        again = BrokerState(kv)
        assert again.applied.index == len(log.entries) - 1
        assert again.max_offset(1, 0) == 5
        rows.append(list(kv.scan(CQ, b"", b"\xff" * 16)))
    assert rows[0] == rows[1] == rows[2]
