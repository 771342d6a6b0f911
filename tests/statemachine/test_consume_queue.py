"""Chunks: how they are cut and merged, read back, searched by time, and read while they are being merged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.errors import InvariantViolationError
from statemachine import payload, queue_reads
from statemachine.broker_state import BrokerState
from statemachine.consume_queue import BLOCK, TAIL_BYTES, ConsumeQueues
from statemachine.rows import keys
from statemachine.rows.kv import CQ, KV, Batch
from statemachine.rows.write_batch import Stage
from statemachine.topics.topics import CreateTopic
from tests.support.rows import each_row


def chunks(kv: KV, topic_id: int = 1, queue_id: int = 0) -> list[tuple[int, int]]:
    """(base offset, count) of every chunk of the queue."""
    rows = kv.scan(CQ, keys.cq_key(topic_id, queue_id, 0), keys.cq_key(topic_id, queue_id, 2**64 - 1))
    return [(keys.cq_base(key), len(value) // payload.ITEM.size) for key, value in rows]


def fed(log: Any, kv: KV, *counts: int) -> BrokerState:
    """A state with one topic whose queue 0 got these runs, one entry each, all applied at once."""
    state = BrokerState(kv)
    state.apply([log.command(CreateTopic({"name": "a"}, True)), *(log.messages(log.run(1, 0, n)) for n in counts)])
    return state


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([1, 2, 3], [(0, 1), (1, 2), (3, 3)]),
        ([255], [(0, 255)]),
        ([256], [(0, 256)]),
        ([100, 155, 1], [(0, 256)]),
        ([100, 157], [(0, 256), (256, 1)]),
        ([10, 600, 3], [(0, 256), (256, 256), (512, 98), (610, 3)]),
        ([1024], [(0, 256), (256, 256), (512, 256), (768, 256)]),
    ],
)
def test_where_chunks_are_cut_and_merged(
    new_log: Callable[[], Any], kv: KV, counts: list[int], expected: list[tuple[int, int]]
) -> None:
    fed(new_log(), kv, *counts)
    assert chunks(kv) == expected


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.integers(1, 400), min_size=1, max_size=12),
    start=st.integers(-5, 2000),
    count=st.integers(0, 600),
)
def test_fetch_gives_exactly_the_items_of_the_log(
    new_log: Callable[[], Any], counts: list[int], start: int, count: int
) -> None:
    log = new_log()
    state = fed(log, MemoryKV(), *counts)
    expected = [
        (run.base_offset + at, *item)
        for entry in log.entries[1:]
        for run in payload.decode(entry.payload).decoded_runs()
        for at, item in enumerate(payload.ITEM.iter_unpack(run.items))
    ]
    assert state.max_offset(1, 0) == len(expected)
    assert state.fetch(1, 0, start, count) == (expected[start : start + count] if start >= 0 else [])


def test_few_tails_in_memory_give_the_same_rows(new_log: Callable[[], Any], rows_of: Any) -> None:
    """A tail that was dropped is read back; within a run nothing is dropped that the store does not hold yet."""

    class Counting(MemoryKV):
        reads = 0

        def get(self, family: str, key: bytes) -> bytes | None:
            self.reads += 1
            return super().get(family, key)

        def scan(self, family: str, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
            self.reads += 1
            return super().scan(family, start, end)

        def seek_last(self, family: str, low: bytes, high: bytes) -> tuple[bytes, bytes] | None:
            self.reads += 1
            return super().seek_last(family, low, high)

    entries = list(queue_appends(new_log()))
    stores, reads = [], []
    for bytes_max in (0, 2 * TAIL_BYTES + BLOCK * payload.ITEM.size, 2**20):
        kv = Counting()
        queues = ConsumeQueues(kv, bytes_max)
        for at in range(0, len(entries), 3):
            stage = Stage(kv)
            for run in entries[at : at + 3]:
                queues.append(stage, run.topic_id, run.queue_id, run.base_offset, run.count, run.items)
            kv.write(stage.batch())
            queues.publish()
        reads.append(kv.reads)
        stores.append(rows_of(kv))
    assert stores[0] == stores[1] == stores[2]
    assert reads[0] > reads[1] > reads[2] == 2 * 3, "of the end of each queue once, and of what was dropped"


def queue_appends(log: Any) -> Iterator[payload.Run]:
    for n in range(200):
        yield log.run(1, n * n % 5, 1 + n * 7 % 90)


def test_ends_are_found_after_a_restart(new_log: Callable[[], Any], kv: KV) -> None:
    log = new_log()
    fed(log, kv, 300)
    state = BrokerState(kv)
    assert [state.max_offset(1, queue) for queue in (0, 1)] == [300, 0]
    state.apply([log.messages(log.run(1, 0, 250), log.run(1, 1, 1))])
    assert [state.max_offset(1, queue) for queue in (0, 1)] == [550, 1]
    assert chunks(kv) == [(0, 256), (256, 256), (512, 38)]


def test_queues_do_not_see_each_other(new_log: Callable[[], Any], kv: KV) -> None:
    log = new_log()
    state = BrokerState(kv)
    state.apply([log.command(*(CreateTopic({"name": name}, True) for name in "ab"))])
    state.apply([log.messages(log.run(1, 1, 3), log.run(2, 0, 4), log.run(2, 2**32 - 1, 2))])
    assert [state.max_offset(*queue) for queue in ((1, 0), (1, 1), (2, 0), (2, 1), (2, 2**32 - 1))] == [0, 3, 4, 0, 2]
    assert [len(state.fetch(*queue, 0, 99)) for queue in ((1, 0), (1, 1), (2, 0), (2, 1))] == [0, 3, 4, 0]


@each_row(
    ("time", "lower", "upper"),
    [(0, 0, 0), (100, 0, 0), (101, 1, 1), (149, 49, 48), (150, 49, 52), (151, 53, 53), (1000, 400, 399)],
)
def test_offset_by_time(time: int, lower: int, upper: int) -> None:
    """Offsets 0..399 at times 100, 101, ... with 49..52 all at 150."""
    kv = MemoryKV()
    times = [100 + n if n < 49 else 150 if n < 53 else 98 + n for n in range(400)]
    batch = Batch()
    for base, stop in ((0, 256), (256, 300), (300, 400)):
        items = b"".join(payload.ITEM.pack(n, 1, 1, 1, times[n]) for n in range(base, stop))
        batch.put(CQ, keys.cq_key(1, 0, base), items)
    kv.write(batch)
    state = BrokerState(kv)
    assert state.offset_by_time(1, 0, time, upper=False) == lower
    assert state.offset_by_time(1, 0, time, upper=True) == upper


def test_offset_by_time_in_an_empty_queue() -> None:
    state = BrokerState(MemoryKV())
    assert [state.offset_by_time(1, 0, 5, upper) for upper in (False, True)] == [0, 0]


class MergingKV(MemoryKV):
    """Runs `between` once, after the next seek: what the apply lane may do while a reader is at work."""

    def __init__(self) -> None:
        super().__init__()
        self.between: Callable[[], object] | None = None

    def seek_last(self, family: str, low: bytes, high: bytes) -> tuple[bytes, bytes] | None:
        row = super().seek_last(family, low, high)
        between, self.between = self.between, None
        if between is not None:
            between()
        return row


@pytest.mark.parametrize("start", [0, 3, 149, 150])
def test_a_merge_between_seek_and_scan_hides_nothing(new_log: Callable[[], Any], start: int) -> None:
    log, kv = new_log(), MergingKV()
    state = fed(log, kv, 100, 50, 60)
    kv.between = lambda: state.apply([log.messages(log.run(1, 0, 200))])
    offsets = [item.queue_offset for item in state.fetch(1, 0, start, 500)]
    assert offsets == list(range(start, 210))
    assert chunks(kv) == [(0, 256), (256, 154)]


def test_an_end_asked_for_while_it_grows_is_not_set_back(new_log: Callable[[], Any]) -> None:
    log, kv = new_log(), MergingKV()
    fed(log, kv, 10)
    state = BrokerState(kv)
    kv.between = lambda: state.apply([log.messages(log.run(1, 0, 5))])
    assert state.max_offset(1, 0) == 15
    assert state.max_offset(1, 0) == 15


def test_rows_missing_from_the_store_are_an_invariant_violation(new_log: Callable[[], Any]) -> None:
    kv = MemoryKV()
    fed(new_log(), kv, 300)
    batch = Batch()
    batch.delete(CQ, keys.cq_key(1, 0, 0))
    kv.write(batch)
    with pytest.raises(InvariantViolationError, match="has 0 rows from offset 10, expected 20"):
        queue_reads.fetch(kv, 1, 0, 10, 30)


def test_block_is_what_the_format_says() -> None:
    """Chunks of older data on disk are aligned to it."""
    assert BLOCK == 256
