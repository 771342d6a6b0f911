"""TRIM: where the log begins, what goes with what lies below, and that nothing else does."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.errors import InvariantViolationError
from raftlog.types import Entry, EntryType
from statemachine import keys, query, sums, trim
from statemachine.broker_state import BrokerState
from statemachine.kv import CQ, INDEX, KV, Batch, Op
from statemachine.message_index import key_hash
from statemachine.payload import MESSAGES_AT
from statemachine.query import QueueItem

CREATE = ["create_topic", {"name": "t"}, False]


@pytest.fixture
def log(new_log: Callable[..., Any]) -> Any:
    """A log in small segments, with topic 1."""
    log = new_log(segment_size=4096)
    log.add(EntryType.GENESIS)
    log.command(CREATE)
    return log


def applied(log: Any, kv: KV | None = None) -> BrokerState:
    state = BrokerState(kv or MemoryKV())
    state.apply(log.entries[state.applied.index + 1 :])
    return state


def fill(log: Any, counts: list[int], queue_id: int = 0) -> list[Entry]:
    return [log.messages(log.run(1, queue_id, count)) for count in counts]


def kept(state: BrokerState, topic_id: int, queue_id: int) -> list[QueueItem]:
    low, high = state.min_offset(topic_id, queue_id), state.max_offset(topic_id, queue_id)
    return state.fetch(topic_id, queue_id, low, high - low)


def test_payloads_come_back_and_keys_have_one_order() -> None:
    for said in (trim.Trim(0, 0, ""), trim.Trim(2**63, 7, "age: 72 h", ((1, 2, 3), (4, 0, 2**40)))):
        assert trim.decode(trim.encode(said)) == said
    assert list(msgpack.unpackb(trim.encode(said))) == ["format", "position", "first_index", "reason", "queues"]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgpack.packb([1]),
        msgpack.packb({"format": 2}),
        msgpack.packb({"format": 1}),
        msgpack.packb({"format": 1, "position": -1, "first_index": 0, "reason": "", "queues": []}),
        msgpack.packb({"format": 1, "position": 1, "first_index": 0, "reason": "", "queues": [[1, 2]]}),
        msgpack.packb({"format": 1, "position": 1, "first_index": True, "reason": "", "queues": []}),
    ],
)
def test_what_is_no_trim_stops_the_node(log: Any, payload: bytes) -> None:
    with pytest.raises(trim.TrimError):
        trim.decode(payload)
    state = applied(log)
    with pytest.raises(InvariantViolationError, match="TRIM"):
        state.apply([log.add(EntryType.TRIM, payload)])


def test_queues_begin_at_their_first_message_above_the_position(log: Any) -> None:
    fill(log, [40, 40, 40])  # 40 items, 1.4 KB: three entries do not fit into a segment of 4 KiB
    log.messages(log.run(1, 1, 1))
    fill(log, [40, 40])
    state = applied(log)
    rolls = log.segments()
    assert len(rolls) >= 3
    second = rolls[1]
    state.apply([log.trim(second)])
    assert state.trim_mark == trim.TrimMark(second.position, second.index, log.entries[-1].index, log.now_ms)
    assert (state.trim_position, state.trim_index) == (second.position, second.index)
    expected = [item.queue_offset for item in query.fetch(applied(log)._kv, 1, 0, state.min_offset(1, 0), 200)]
    assert [item.queue_offset for item in kept(state, 1, 0)] == expected == list(range(state.min_offset(1, 0), 200))
    assert kept(state, 1, 0)[0].position >= second.position > 0
    assert state.fetch(1, 0, state.min_offset(1, 0) - 1, 10) == []


def test_a_position_inside_a_chunk_cuts_the_queue_there_and_keeps_the_chunk(log: Any) -> None:
    """Aligned chunks span segments."""
    entries = fill(log, [64] * 4)  # one aligned chunk of 256, made of four
    rows = list(applied(log)._kv.scan(CQ, keys.FIRST, keys.LAST))
    assert len(rows) == 1
    at = entries[2]
    state = applied(log)
    state.apply([log.trim(at)])
    assert (state.min_offset(1, 0), state.max_offset(1, 0)) == (128, 256)
    assert [item.queue_offset for item in kept(state, 1, 0)] == list(range(128, 256))
    assert len(list(state._kv.scan(CQ, keys.FIRST, keys.LAST))) == 2, "the chunk, and the bounds"


def test_an_emptied_queue_knows_where_it_goes_on(log: Any) -> None:
    kv = MemoryKV()
    fill(log, [300, 5])
    state = applied(log, kv)
    log.add(EntryType.NOOP)
    fill(log, [100], queue_id=1)
    following = fill(log, [100], queue_id=1)[0]
    state = applied(log, kv)
    state.apply([log.trim(following)])
    for now in (state, BrokerState(kv)):
        assert (now.min_offset(1, 0), now.max_offset(1, 0)) == (305, 305)
        assert now.fetch(1, 0, 305, 10) == now.fetch(1, 0, 0, 10) == []
        assert now.offset_by_time(1, 0, 0, False) == now.offset_by_time(1, 0, 0, True) == 305
    for count in (2, 3):  # with a tail in memory, and with one that is read back
        log.messages(log.run(1, 0, count))
        state.apply(log.entries[-1:])
        state = BrokerState(kv)
    assert [item.queue_offset for item in kept(state, 1, 0)] == list(range(305, 310))


@pytest.mark.parametrize("reopened", [False, True])
def test_a_block_whose_beginning_is_gone_is_merged_from_what_is_left(log: Any, reopened: bool) -> None:
    kv = MemoryKV()
    fill(log, [100, 50])
    middle = log.segments()[1]
    assert middle.index == log.entries[-1].index
    state = applied(log, kv)
    state.apply([log.trim(middle)])
    assert state.min_offset(1, 0) == 100
    if reopened:
        state = BrokerState(kv)
    fill(log, [106, 3])
    state.apply(log.entries[state.applied.index + 1 :])
    bases = [keys.cq_base(key) for key, _ in kv.scan(CQ, keys.cq_key(1, 0, 0), keys.LAST)]
    assert bases == [100, 256], "one chunk for what is left of the block"
    assert [item.queue_offset for item in kept(state, 1, 0)] == list(range(100, 259))
    assert state.sums.totals == sums.count(kv)


def test_queues_named_in_it_lose_more_and_never_more_than_they_have(log: Any) -> None:
    fill(log, [300])
    fill(log, [10], queue_id=1)
    state = applied(log)
    state.apply([log.trim(log.entries[0], (1, 0, 270), (1, 1, 99), (1, 7, 5), (9, 9, 9))])
    assert (state.min_offset(1, 0), state.min_offset(1, 1), state.max_offset(1, 1)) == (270, 10, 10)
    assert state.min_offset(1, 7) == state.max_offset(1, 7) == state.min_offset(9, 9) == 0
    assert state.trim_position == 0, "the log itself still begins where it did"
    state.apply([log.trim(log.entries[0], (1, 0, 30))])
    assert state.min_offset(1, 0) == 270, "never back"


def test_index_buckets_go_with_their_segments(log: Any) -> None:
    entries = []
    for n in range(8):
        record = keys.U64.pack(key_hash(1, b"k%d" % n) << 32 | log.tail.end_position + MESSAGES_AT)
        entries.append(log.messages(log.run(1, 0, 30), keys=record))
    state = applied(log)
    rolls = log.segments()
    second = rolls[2]
    state.apply([log.trim(second)])
    rows = [keys.index_base(key) for key, _ in state._kv.scan(INDEX, keys.FIRST, keys.LAST)]
    assert rows
    assert min(rows) >= second.position
    for n, entry in enumerate(entries):
        found = []
        below = keys.U64_MAX
        while (bucket := state.message_index.bucket_below(below)) is not None:
            below = bucket.base
            found += [p for batch in state.message_index.candidates(bucket, 1, b"k%d" % n) for p in batch]
        assert found == ([entry.position + MESSAGES_AT] if entry.position >= second.position else []), n


def test_a_position_above_the_open_bucket_leaves_it_whole(log: Any) -> None:
    """No leader says so; the sums must hold all the same."""
    kv = MemoryKV()
    log.messages(log.run(1, 0, 1), keys=keys.U64.pack(7))
    state = applied(log, kv)
    state.apply([log.add(EntryType.TRIM, trim.encode(trim.Trim(2**40, 99, "")))])
    log.messages(log.run(1, 0, 1), keys=keys.U64.pack(8) * 20_000)
    state.apply(log.entries[-1:])
    assert state.sums.totals == sums.count(kv)


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_trim_hides_what_is_below_and_nothing_else(draw_log: Callable[[int, int], list[Entry]], seed: int) -> None:
    """What is left of each queue is what it was before, and it begins where the TRIMs said."""
    entries = draw_log(seed, 40)
    kv = MemoryKV()
    state = BrokerState(kv)
    lowest: dict[tuple[int, int], int] = {}
    whole: dict[tuple[int, int], dict[int, QueueItem]] = {}
    rng = Random(seed)
    for entry in entries:
        before = {queue: kept(state, *queue) for queue in queues_of(state)}
        state.apply([entry])
        for queue in queues_of(state):
            if entry.type != EntryType.TRIM:
                whole.setdefault(queue, {}).update((item.queue_offset, item) for item in kept(state, *queue))
        if entry.type == EntryType.TRIM:
            said = trim.decode(entry.payload)
            named = trim.highest(said.queues)
            for queue, items in before.items():
                end = state.max_offset(*queue)
                above = next((item.queue_offset for item in items if item.position >= said.position), end)
                lowest[queue] = max(lowest.get(queue, 0), above, min(named.get(queue, 0), end))
        if rng.random() < 0.1:
            state = BrokerState(kv)
            assert state.sums.totals == sums.count(kv)
    for queue in queues_of(state):
        assert state.min_offset(*queue) == lowest.get(queue, 0), queue
        got = kept(state, *queue)
        assert [item.queue_offset for item in got] == list(range(lowest.get(queue, 0), state.max_offset(*queue)))
        assert got == [whole[queue][item.queue_offset] for item in got]


def queues_of(state: BrokerState) -> list[tuple[int, int]]:
    return [(topic_id, queue_id) for topic_id in state.topics_by_id for queue_id in range(2)]


class TrimmedUnderneath(MemoryKV):
    """Trims a queue right before a reader looks for a chunk."""

    def __init__(self) -> None:
        super().__init__()
        self.then: Callable[[], object] | None = None

    def get(self, family: str, key: bytes) -> bytes | None:
        if family == CQ and len(key) != keys.CQ_BOUNDS_KEY_SIZE:
            self._trim()
        return super().get(family, key)

    def seek_last(self, family: str, low: bytes, high: bytes) -> tuple[bytes, bytes] | None:
        self._trim()
        return super().seek_last(family, low, high)

    def _trim(self) -> None:
        then, self.then = self.then, None
        if then is not None:
            then()


def test_a_reader_that_is_overtaken_finds_nothing_rather_than_a_hole(log: Any) -> None:
    kv = TrimmedUnderneath()
    fill(log, [300, 300])
    state = applied(log, kv)
    entry = log.trim(log.entries[-1])
    kv.then = lambda: state.apply([entry])
    assert state.fetch(1, 0, 0, 10) == []
    assert state.min_offset(1, 0) == 300
    log.trim(log.entries[-1], (1, 0, 450))
    kv.then = lambda: state.apply(log.entries[-1:])
    assert state.offset_by_time(1, 0, 0, False) >= 450, "what was trimmed meanwhile is older than any time"


class Recording(MemoryKV):
    """Keeps what was written last."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[Op] = []

    def write(self, batch: Batch) -> None:
        self.ops = list(batch.ops)
        super().write(batch)


def test_queues_that_lose_nothing_are_not_written(log: Any) -> None:
    kv = Recording()
    fill(log, [10])
    later = fill(log, [100] * 3, queue_id=1)[-1]
    fill(log, [10], queue_id=2)
    state = applied(log, kv)
    state.apply([log.trim(later)])
    state.apply([log.trim(later)])
    assert not [op for op in kv.ops if op.family == CQ], "the second time there is nothing to do"
