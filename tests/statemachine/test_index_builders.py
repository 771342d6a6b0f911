"""Two builders of index files, one from rows and one from entries, come to the same bytes for every closed segment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import BytesIO
from itertools import pairwise
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.errors import InvariantViolationError
from raftlog.types import FLAG_ROLL, Entry, EntryType
from statemachine import payload
from statemachine.broker_state import BrokerState
from statemachine.index_file.index_check import check_index
from statemachine.index_file.index_format import IndexFileError, IndexMeta, key_row, pack_keys
from statemachine.index_file.index_of_log import write_index_of_log
from statemachine.index_file.index_of_rows import key_partitions, sorted_rows, write_index
from statemachine.index_file.index_reader import drive
from statemachine.message_index import RECORD, key_hash
from statemachine.removal_slices import DeleteTopic
from statemachine.rows import keys
from statemachine.rows.kv import CQ, INDEX, KV, Batch
from statemachine.topics.topics import CreateTopic
from statemachine.trim import Trim, encode
from tests.support.rows import each_row

SIZE = 120


def feed(log: Any, rng: Random, entries: int, queues: int) -> None:
    """Topic 1 and entries of messages that lie where their items say, with keys; some wait for their time."""
    log.add(EntryType.GENESIS)
    log.command(CreateTopic({"name": "t", "read_queues": 2, "write_queues": 2}, True))
    for _ in range(entries):
        log.now_ms += rng.randrange(5)
        place = log.tail.end_position + payload.MESSAGES_AT
        runs, records, stored = [], [], 0
        for queue_id in sorted(rng.sample(range(queues), min(queues, rng.randint(1, 3)))):
            count = rng.choice([1, 1, 2, 30, 300])
            items = b"".join(
                payload.ITEM.pack(place + (stored + i) * SIZE, SIZE, i, 0, log.now_ms) for i in range(count)
            )
            records += [
                RECORD.pack(key_hash(1, b"%d" % rng.randrange(500)), place + (stored + i) * SIZE & 0xFFFFFFFF)
                for i in range(0, count, 2)
            ]
            kind = payload.RowKind.SCHEDULED if rng.random() < 0.1 and count <= 256 else payload.RowKind.NORMAL
            base = log.now_ms + 5
            if kind == payload.RowKind.NORMAL:
                base = log.ends.get((1, queue_id), 0)
                log.ends[1, queue_id] = base + count
            runs.append(payload.Run(1, queue_id, base, count, kind, items))
            stored += count
        data = payload.encode([b"m" * (stored * SIZE)], stored, runs, keys=b"".join(records))
        log.add(EntryType.MESSAGES, data)


def segments(entries: list[Entry]) -> Iterator[tuple[IndexMeta, list[Entry]]]:
    """Every closed segment with its entries."""
    starts = [number for number, entry in enumerate(entries) if entry.flags & FLAG_ROLL]
    for start, end in pairwise(starts):
        part = entries[start:end]
        first, last = part[0], part[-1]
        yield (
            IndexMeta(
                UUID(int=1), first.position, last.end_position, first.index, last.index, last.term,
                first.timestamp_ms, last.timestamp_ms, 0, 0, 0, 1, last.header_crc,
            ),
            part,
        )  # fmt: skip


def of_rows(kv: KV, meta: IndexMeta) -> bytes:
    out = BytesIO()
    for _ in write_index(kv, meta, out.write):
        pass
    return out.getvalue()


def of_log(entries: list[Entry], meta: IndexMeta) -> bytes:
    out = BytesIO()
    write_index_of_log(entries, meta, out.write)
    return out.getvalue()


def checked(data: bytes) -> IndexMeta:
    return drive(check_index(len(data)), lambda at, length: data[at : at + length]).meta


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_rows_and_entries_come_to_the_same_file(new_log: Callable[..., Any], seed: int) -> None:
    rng = Random(seed)
    log = new_log(segment_size=rng.choice([2**15, 2**17]))
    feed(log, rng, 60, rng.choice([1, 4, 30]))
    kv = MemoryKV()
    BrokerState(kv).apply(log.entries)
    messages = 0
    for meta, part in segments(log.entries):
        data = of_rows(kv, meta)
        assert data == of_log(part, meta)
        messages += checked(data).messages
    opened = log.segments()[-1].position
    below = sum(
        item[0] < opened for _, chunk in kv.scan(CQ, b"", b"\xff" * 20) for item in payload.ITEM.iter_unpack(chunk)
    )
    assert messages == below  # each message below the open segment is in one file


def test_a_file_of_rocksdb_is_that_of_memory(kv: KV, new_log: Callable[..., Any]) -> None:
    log = new_log(segment_size=2**17)
    feed(log, Random(4), 80, 6)
    BrokerState(kv).apply(log.entries)
    found = list(segments(log.entries))
    assert len(found) > 3
    for meta, part in found:
        assert of_rows(kv, meta) == of_log(part, meta)


def test_rows_that_merge_meanwhile_are_not_missed(new_log: Callable[..., Any]) -> None:
    """Between any two reads of the builder, later entries close the block in which the segment ends."""
    log = new_log(segment_size=2**15)
    feed(log, Random(8), 90, 1)
    (meta, part), *_ = list(segments(log.entries))[2:]
    closed = next(number for number, entry in enumerate(log.entries) if entry.position >= meta.end) + 1
    wait, spent = 0, False
    while not spent:
        wait += 1
        kv = Merging(wait)
        state = BrokerState(kv)
        state.apply(log.entries[:closed])
        kv.then = lambda state=state: state.apply(log.entries[closed:])
        assert of_rows(kv, meta) == of_log(part, meta)
        spent = kv.then is not None
    assert wait > 5


class Merging(MemoryKV):
    """Runs `then` after some reads."""

    def __init__(self, wait: int) -> None:
        super().__init__()
        self.wait = wait
        self.then: Callable[[], object] | None = None

    def _count(self) -> None:
        if self.then is not None:
            self.wait -= 1
            if self.wait <= 0:
                then, self.then = self.then, None
                then()

    def seek_last(self, family: str, low: bytes, high: bytes) -> tuple[bytes, bytes] | None:
        found = super().seek_last(family, low, high)
        self._count()
        return found

    def first(self, family: str, start: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        found = super().first(family, start, end)
        self._count()
        return found


def test_a_deleted_topic_is_left_out(new_log: Callable[..., Any]) -> None:
    log = new_log(segment_size=2**15)
    feed(log, Random(1), 40, 3)
    log.command(DeleteTopic("t"))
    kv = MemoryKV()
    BrokerState(kv).apply(log.entries)
    for meta, part in segments(log.entries):
        found = checked(of_rows(kv, meta))
        assert (found.messages, found.queues) == (0, 0)
        assert found.keys == checked(of_log(part, meta)).keys  # lookups meet no topic, and skip them


def test_a_topic_whose_rows_are_still_to_go_is_left_out(new_log: Callable[..., Any]) -> None:
    log = new_log(segment_size=2**15)
    feed(log, Random(1), 40, 3)
    log.command(DeleteTopic("t"))
    log.remove(8)
    kv = MemoryKV()
    state = BrokerState(kv)
    state.apply(log.entries)
    assert state.removing
    for meta, _ in segments(log.entries):
        assert checked(of_rows(kv, meta)).queues == 0


def test_trimmed_queues_keep_what_is_left(new_log: Callable[..., Any]) -> None:
    """Segments above a TRIM are not changed by it."""
    log = new_log(segment_size=2**15)
    feed(log, Random(2), 60, 5)
    kv = MemoryKV()
    state = BrokerState(kv)
    state.apply(log.entries)
    begin = log.segments()[3]
    entry = log.add(EntryType.TRIM, encode(Trim(begin.position, begin.index, "age")))
    state.apply([entry])
    above = [(meta, part) for meta, part in segments(log.entries) if meta.base >= begin.position]
    assert above
    for meta, part in above:
        assert of_rows(kv, meta) == of_log(part, meta)


def test_an_open_bucket_is_refused(new_log: Callable[..., Any]) -> None:
    log = new_log(segment_size=2**15)
    feed(log, Random(2), 60, 5)
    (meta, part), *_ = list(segments(log.entries))[1:]
    kv = MemoryKV()
    BrokerState(kv).apply(log.entries[: part[-1].index + 1])
    with pytest.raises(InvariantViolationError, match="not one closed bucket"):
        of_rows(kv, meta)


def test_a_damaged_file_is_built_again_from_the_log(new_log: Callable[..., Any]) -> None:
    log = new_log(segment_size=2**15)
    feed(log, Random(3), 30, 5)
    meta, part = next(segments(log.entries))
    kv = MemoryKV()
    BrokerState(kv).apply(log.entries)
    data = bytearray(of_rows(kv, meta))
    data[100] ^= 1
    with pytest.raises(IndexFileError):
        checked(bytes(data))
    assert of_log(part, meta) == of_rows(kv, meta)


@each_row("base", [0, 1000, (1 << 32) - 5000, (7 << 32) - 9, (1 << 32) - (64 << 20), (3 << 32) + 77])
def test_records_keep_32_bits_of_positions_that_may_begin_anew_within_a_segment(base: int) -> None:
    rng, length = Random(base), 64 << 20
    bucket = base + 100
    found = [(rng.randrange(1 << 32), rng.randrange(bucket, base + length)) for _ in range(500)]
    found += [(7 << 24, bucket), (7 << 24, base + length - 1)]
    batch = Batch()
    batch.put(INDEX, keys.index_bucket_key(bucket), keys.INDEX_BUCKET.pack(1, 2))
    for partition in sorted({hashed >> 24 for hashed, _ in found}):
        mine = [RECORD.pack(hashed, at & 0xFFFFFFFF) for hashed, at in found if hashed >> 24 == partition]
        batch.put(INDEX, keys.index_merged_key(bucket, partition, bucket), b"".join(mine))
    kv = MemoryKV()
    kv.write(batch)
    rows = b"".join(key_partitions(kv, base, base + length, sorted_rows))
    assert rows == pack_keys(sorted(key_row(hashed, at - base) for hashed, at in found))
