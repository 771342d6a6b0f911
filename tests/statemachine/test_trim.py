"""TRIM: where the log begins, what goes with what lies below, and that nothing else does."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.errors import InvariantViolationError
from raftlog.types import Entry, EntryType
from statemachine import queue_reads, trim
from statemachine.broker_state import BrokerState
from statemachine.message_index import key_hash
from statemachine.payload import MESSAGES_AT
from statemachine.queue_reads import QueueItem
from statemachine.rows import keys, running_digest
from statemachine.rows.kv import CQ, INDEX, KV, Batch, Op
from statemachine.topics.topics import CreateTopic

CREATE = CreateTopic({"name": "t"}, False)


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
    sliced = said._replace(sliced=True)
    assert trim.decode(trim.encode(sliced)) == sliced
    assert trim.decode(trim.encode(trim.Slice(7, 512))) == trim.Slice(7, 512)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgpack.packb([1]),
        msgpack.packb({"format": 2}),
        msgpack.packb({"format": 3, "cut": 1}),
        msgpack.packb({"format": 3, "cut": -1, "rows": 9}),
        msgpack.packb({"format": 4}),
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
    assert (state.trim_position, state.trim_mark.first_index) == (second.position, second.index)
    kv = MemoryKV()
    applied(log, kv)
    expected = [item.queue_offset for item in queue_reads.fetch(kv, 1, 0, state.min_offset(1, 0), 200)]
    assert [item.queue_offset for item in kept(state, 1, 0)] == expected == list(range(state.min_offset(1, 0), 200))
    assert kept(state, 1, 0)[0].position >= second.position > 0
    assert state.fetch(1, 0, state.min_offset(1, 0) - 1, 10) == []


def test_a_position_inside_a_chunk_cuts_the_queue_there_and_keeps_the_chunk(log: Any) -> None:
    """Aligned chunks span segments."""
    entries = fill(log, [64] * 4)  # one aligned chunk of 256, made of four
    kv = MemoryKV()
    state = applied(log, kv)
    assert len(list(kv.scan(CQ, keys.FIRST, keys.LAST))) == 1
    at = entries[2]
    state.apply([log.trim(at)])
    assert (state.min_offset(1, 0), state.max_offset(1, 0)) == (128, 256)
    assert [item.queue_offset for item in kept(state, 1, 0)] == list(range(128, 256))
    assert len(list(kv.scan(CQ, keys.FIRST, keys.LAST))) == 2, "the chunk, and the bounds"


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
    assert state.sums.totals == running_digest.count(kv)


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
    kv = MemoryKV()
    state = applied(log, kv)
    rolls = log.segments()
    second = rolls[2]
    state.apply([log.trim(second)])
    rows = [keys.index_base(key) for key, _ in kv.scan(INDEX, keys.FIRST, keys.LAST)]
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
    assert state.sums.totals == running_digest.count(kv)


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32))
@example(seed=39)  # a queue grows past an offset that a sweep names and that was beyond its end
def test_a_trim_hides_what_is_below_and_nothing_else(draw_log: Callable[[int, int], list[Entry]], seed: int) -> None:
    """The rest of each queue is as it was before. It begins where the TRIMs said; during a sweep, there or where it
    began before."""
    kv = MemoryKV()
    state = BrokerState(kv)
    model = Model()
    rng = Random(seed)
    for entry in draw_log(seed, 40):
        before, sweep = {queue: kept(state, *queue) for queue in queues_of(state)}, state.sweep
        state.apply([entry])
        for queue in queues_of(state):
            if entry.type != EntryType.TRIM:
                model.whole.setdefault(queue, {}).update((item.queue_offset, item) for item in kept(state, *queue))
        if entry.type == EntryType.TRIM:
            model.trimmed(trim.decode(entry.payload), before, state, sweep)
        for queue in queues_of(state):
            assert model.lowest.get(queue, 0) <= state.min_offset(*queue) <= model.highest(queue), queue
        assert (state.sweep is None) <= (model.lowest == model.target)
        if rng.random() < 0.1:
            sweep, state = state.sweep, BrokerState(kv)
            assert state.sweep == sweep
            assert state.sums.totals == running_digest.count(kv)
    for queue in queues_of(state):
        first = state.min_offset(*queue)
        got = kept(state, *queue)
        assert [item.queue_offset for item in got] == list(range(first, state.max_offset(*queue)))
        assert got == [model.whole[queue][item.queue_offset] for item in got]


class Model:
    """The beginnings of queues, by what the entries say."""

    def __init__(self) -> None:
        self.lowest: dict[tuple[int, int], int] = {}
        self.target: dict[tuple[int, int], int] = {}
        """The same once the sweep is over."""
        self.beyond: dict[tuple[int, int], int] = {}
        """Offsets that a sweep under way names and that were beyond the end: queues may grow before it gets there."""
        self.whole: dict[tuple[int, int], dict[int, QueueItem]] = {}

    def highest(self, queue: tuple[int, int]) -> int:
        """Returns the highest offset at which the queue may begin."""
        return max(self.target.get(queue, 0), self.beyond.get(queue, 0))

    def trimmed(
        self,
        said: trim.Trim | trim.Slice | trim.RemoveRows,
        before: dict[tuple[int, int], list[QueueItem]],
        state: BrokerState,
        sweep: trim.Sweep | None,
    ) -> None:
        """A TRIM was applied: `before` is what queues held, `sweep` what was under way."""
        if isinstance(said, trim.RemoveRows):
            assert (state.sweep, before) == (sweep, {queue: kept(state, *queue) for queue in queues_of(state)})
            return
        if isinstance(said, trim.Slice):
            if state.sweep is None:
                for queue, offset in self.beyond.items():
                    self.target[queue] = max(self.target[queue], min(state.min_offset(*queue), offset))
                self.beyond.clear()
                self.lowest = dict(self.target)
            return
        if said.sliced and sweep is not None:
            assert state.sweep == sweep, "one at a time"
            return
        named = trim.highest(said.queues)
        for queue, items in before.items():
            end = state.max_offset(*queue)
            above = next((item.queue_offset for item in items if item.position >= said.position), end)
            first = max(above, min(named.get(queue, 0), end))
            self.target[queue] = max(self.target.get(queue, 0), first)
            if not said.sliced:
                self.lowest[queue] = max(self.lowest.get(queue, 0), first)
            elif named.get(queue, 0) > end:
                self.beyond[queue] = named[queue]
        if sweep is None and not said.sliced:
            self.lowest = dict(self.target)


def queues_of(state: BrokerState) -> list[tuple[int, int]]:
    return [(topic_id, queue_id) for topic_id in state.topics_by_id for queue_id in range(2)]


class TrimmedUnderneath(MemoryKV):
    """Trims a queue while a reader is between two looks."""

    def __init__(self) -> None:
        super().__init__()
        self.then: Callable[[], object] | None = None

    def seek_last(self, family: str, low: bytes, high: bytes) -> tuple[bytes, bytes] | None:
        then, self.then = self.then, None
        if then is not None:
            then()
        return super().seek_last(family, low, high)


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


def test_a_sweep_reads_so_many_rows_in_an_entry_and_ends_where_one_trim_would(log: Any, rows_of: Any) -> None:
    """10,000 queues, then one long one: what an entry does is bounded, and what is left is the same."""
    log.command(CreateTopic({"name": "many", "read_queues": 10_000}, True))
    for first in range(0, 20_000, 500):
        log.messages(*(log.run(2, queue % 10_000, 1) for queue in range(first, first + 500)))
    fill(log, [1] * 255 + [300] * 8)
    middle = log.entries[-4]
    whole, swept = Recording(), Recording()
    one, state = applied(log, whole), applied(log, swept)
    trimmed = log.trim(middle)
    one.apply([trimmed])
    assert len(whole.ops) > 10_000, "in one batch"
    cut = log.add(EntryType.TRIM, trim.encode(trim.Trim(middle.position, middle.index, "age", sliced=True)))
    state.apply([trimmed._replace(payload=cut.payload)])
    slices, first_offset = 0, 0
    while state.sweep is not None:
        assert state.trim_position == 0, "rows that are left refer to what is below"
        entry = log.slice(trimmed, 512)
        state.apply([entry._replace(index=trimmed.index + 1 + slices)])
        assert len(swept.ops) <= 2 * 512 + 16, "a row that goes, and where its queue begins"
        assert first_offset <= state.min_offset(1, 0)
        first_offset = state.min_offset(1, 0)
        slices += 1
    assert slices > 20_000 / 512
    assert (state.trim_position, state.trim_mark.first_index) == (middle.position, middle.index)
    assert rows_of(swept)[CQ] == rows_of(whole)[CQ]
    assert rows_of(swept)[INDEX] == rows_of(whole)[INDEX]
    assert state.sums.totals == running_digest.count(swept)


def test_a_slice_of_another_sweep_changes_nothing(log: Any) -> None:
    later = fill(log, [30] * 3)[-1]
    cut = log.cut(later)
    state = applied(log)
    sweep = state.sweep
    assert sweep is not None
    state.apply([log.slice(later, 99)])
    assert state.sweep == sweep
    state.apply([log.cut(log.entries[0])])
    assert state.sweep == sweep, "one at a time: the leader decides again"
    state.apply([log.slice(cut, 99), log.slice(cut, 99), log.slice(cut, 99)])
    assert state.sweep is None
    assert state.trim_position == later.position
    assert state.trim_mark.index == log.entries[-2].index, "the slice that was the last"


def test_queues_that_grow_or_come_during_a_sweep_keep_what_is_new(log: Any) -> None:
    log.command(CreateTopic({"name": "b", "read_queues": 9}, True))
    for queue in (1, 5):
        fill(log, [1] * 20, queue_id=queue)
    begin = fill(log, [1])[0]
    cut = log.cut(begin)
    state = applied(log)
    state.apply([log.slice(cut, 10)])
    assert 0 < state.min_offset(1, 1) < 20, "in the middle of a queue"
    state.apply([log.messages(log.run(1, 0, 3), log.run(1, 1, 250), log.run(1, 3, 2), log.run(2, 0, 4))])
    while state.sweep is not None:
        state.apply([log.slice(cut, 10)])
    assert [state.min_offset(1, queue) for queue in (0, 1, 3, 5)] == [0, 20, 0, 20]
    assert state.min_offset(2, 0) == 0
    assert [item.queue_offset for item in state.fetch(1, 1, 20, 999)] == list(range(20, 270))
    assert len(state.fetch(2, 0, 0, 9)) == 4


def test_queues_that_lose_nothing_are_not_written(log: Any) -> None:
    kv = Recording()
    fill(log, [10])
    later = fill(log, [100] * 3, queue_id=1)[-1]
    fill(log, [10], queue_id=2)
    state = applied(log, kv)
    state.apply([log.trim(later)])
    state.apply([log.trim(later)])
    assert not [op for op in kv.ops if op[0] == CQ], "the second time there is nothing to do"
