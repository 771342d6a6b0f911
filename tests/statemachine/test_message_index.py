"""The message index against a list of all that was written: every key is found, newest first, and rows are few."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.types import FLAG_ROLL
from statemachine import message_index
from statemachine.broker_state import BrokerState
from statemachine.message_index import RECORD, RECORDS_MAX, Bucket, MessageIndex, key_hash
from statemachine.removal_slices import Expire
from statemachine.rows import keys
from statemachine.rows.kv import INDEX, KV
from statemachine.rows.write_batch import Stage
from statemachine.topics.topics import CreateTopic

MANY = RECORDS_MAX


def records(topic_id: int, written: list[tuple[bytes, int]]) -> bytes:
    """Returns the records that a leader would put into an entry for (key, position)."""
    return b"".join(RECORD.pack(key_hash(topic_id, key), position & 0xFFFFFFFF) for key, position in written)


class Writer:
    """Applies entries to an index as `BrokerState` does, and remembers what it wrote."""

    def __init__(self, kv: KV, base: int = 0) -> None:
        self.kv = kv
        self.index = MessageIndex(kv)
        self.position = base
        self.now_ms = 1000
        self.written: dict[bytes, list[int]] = {}

    def add(self, *names: bytes, roll: bool = False, topic_id: int = 1) -> None:
        """One entry with one message of 100 bytes for each key, in a batch of its own."""
        stage = Stage(self.kv)
        if roll:
            self.index.roll(stage, self.now_ms)
        placed = [(name, self.position + 104 + 100 * n) for n, name in enumerate(names)]
        end = self.position + 104 + 100 * len(names)
        if names:
            self.index.add(stage, self.position, end, self.now_ms, records(topic_id, placed))
            for name, position in placed:
                self.written.setdefault(name, []).append(position)
        self.kv.write(stage.batch())
        self.index.publish()
        self.position = end
        self.now_ms += 10

    def found(self, name: bytes, topic_id: int = 1) -> list[int]:
        """Everything the index knows of the key, newest first."""
        return [at for bucket in self.buckets() for at in found_in(self.index, bucket, name, topic_id)]

    def buckets(self) -> list[Bucket]:
        """All buckets, newest first."""
        found: list[Bucket] = []
        below = keys.U64_MAX
        while (bucket := self.index.bucket_below(below)) is not None:
            found.append(bucket)
            below = bucket.base
        return found

    def row_kinds(self) -> list[int]:
        return [key[8] for key, _ in self.kv.scan(INDEX, keys.FIRST, keys.LAST)]


def found_in(index: MessageIndex, bucket: Bucket, name: bytes, topic_id: int = 1) -> list[int]:
    batches = [list(reversed(batch)) for batch in index.candidates(bucket, topic_id, name)]
    return [position for batch in batches for position in batch]


def test_d3_a_key_is_found_newest_first(kv: KV) -> None:
    writer = Writer(kv)
    writer.add(b"a", b"b", b"a")
    writer.add(b"c", b"a")
    assert writer.found(b"a") == sorted(writer.written[b"a"], reverse=True)
    assert len(writer.found(b"a")) == 3
    assert writer.found(b"none") == []


def test_a_key_belongs_to_its_topic(kv: KV) -> None:
    writer = Writer(kv)
    writer.add(b"a", topic_id=1)
    assert writer.found(b"a", topic_id=2) == []
    assert len(writer.found(b"a", topic_id=1)) == 1


def test_full_entries_become_one_row_for_each_first_byte(kv: KV) -> None:
    writer = Writer(kv)
    names = [b"key-%d" % n for n in range(MANY)]
    for at in range(0, MANY, 1024):
        writer.add(*names[at : at + 1024])
    kinds = writer.row_kinds()
    assert kinds.count(0) == 1
    assert kinds.count(1) == 256
    assert kinds.count(2) == 0
    for name in Random(1).sample(names, 200):
        assert writer.found(name) == writer.written[name]
    writer.add(b"key-7")
    assert writer.found(b"key-7") == sorted(writer.written[b"key-7"], reverse=True)


def test_no_partition_is_crowded_by_the_keys_that_clients_make() -> None:
    """UNIQ_KEYs differ in a counter only; their hashes still spread over all rows."""
    counts = [0] * 256
    for n in range(MANY):
        counts[key_hash(1, b"0A0000011F9018B4AAC2%08X%04X" % (123456 + n // 7, n & 0xFFFF)) >> 24] += 1
    assert min(counts) > 16
    assert max(counts) < 256


def test_d5_a_segment_closes_its_bucket_and_reopening_goes_on(kv: KV) -> None:
    writer = Writer(kv)
    writer.add(b"a", b"b")
    first_roll_ms = writer.now_ms
    writer.add(b"a", roll=True)
    writer.add(roll=True)  # a segment without keys has no bucket
    writer.add(b"b", b"a", roll=True)
    buckets = writer.buckets()
    assert [bucket.base for bucket in buckets] == [612, 304, 0]
    assert [bucket.first_ms for bucket in buckets] == [1030, 1010, 1000]
    assert [bucket.last_ms for bucket in buckets] == [keys.U64_MAX, 1020, first_roll_ms]
    again = Writer(kv, writer.position)
    again.written = writer.written
    assert again.buckets() == buckets
    again.add(b"a")
    assert len(again.buckets()) == 3
    for name in (b"a", b"b"):
        assert again.found(name) == sorted(writer.written[name], reverse=True)


def test_rows_of_a_bucket_go_with_one_range(kv: KV) -> None:
    """A trim of the log will remove rows so."""
    writer = Writer(kv)
    writer.add(*[b"k%d" % n for n in range(40)])
    writer.add(b"k1", roll=True)
    stage = Stage(kv)
    stage.delete_range(INDEX, keys.FIRST, keys.index_bucket_key(writer.buckets()[0].base))
    kv.write(stage.batch())
    assert writer.found(b"k1") == writer.written[b"k1"][-1:]
    assert Writer(kv, writer.position).found(b"k2") == []


@pytest.mark.parametrize("base", [0, (1 << 32) - 500, (5 << 32) + 7])
def test_positions_on_both_sides_of_4_gib(base: int) -> None:
    writer = Writer(MemoryKV(), base)
    for _ in range(4):
        writer.add(b"a", b"b", b"a")
    assert writer.found(b"a") == sorted(writer.written[b"a"], reverse=True)


def test_a_bucket_never_spans_4_gib() -> None:
    writer = Writer(MemoryKV())
    writer.add(b"a")
    writer.position = (1 << 32) - 100
    writer.add(b"a")
    assert [bucket.base for bucket in writer.buckets()] == [(1 << 32) - 100, 0]
    assert writer.found(b"a") == sorted(writer.written[b"a"], reverse=True)


def test_records_that_meet_another_records_bytes_are_not_found() -> None:
    """Hashes are looked for at whole records only: a position may hold the same four bytes."""
    writer = Writer(MemoryKV())
    wanted = key_hash(1, b"wanted")
    stage = Stage(writer.kv)
    data = RECORD.pack(1, wanted) + RECORD.pack(wanted, 404) + RECORD.pack(2, wanted) + RECORD.pack(wanted, 808)
    writer.index.add(stage, 0, 1000, 1, data)
    writer.kv.write(stage.batch())
    writer.index.publish()
    assert writer.found(b"wanted") == [808, 404]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_every_key_is_found_however_the_log_was_cut(seed: int) -> None:
    """Random entries, segments and restarts, with merges made frequent."""
    rng = Random(seed)
    small = rng.choice([1, 3, 16])
    writer = Writer(MemoryKV(), rng.randrange(1 << 34))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(message_index, "RECORDS_MAX", small)
        for _ in range(rng.randrange(1, 60)):
            writer.add(*[b"k%d" % rng.randrange(9) for _ in range(rng.randrange(5))], roll=rng.random() < 0.1)
            if rng.random() < 0.1:
                writer.index = MessageIndex(writer.kv)
        for n in range(9):
            name = b"k%d" % n
            assert writer.found(name) == sorted(writer.written.get(name, []), reverse=True), name


def test_what_is_merged_while_a_reader_looks_is_seen_once(kv: KV) -> None:
    """A lookup goes on over turns of the loop; apply merges between its steps."""
    writer = Writer(kv)
    writer.add(*[b"a"] * (RECORDS_MAX - 1))
    writer.add(b"a")  # merged
    writer.add(b"a", b"b", b"a")
    before = len(writer.written[b"a"])
    reading = writer.index.candidates(writer.buckets()[0], 1, b"a")
    got = list(reversed(next(reading)))
    writer.add(*[b"a"] * (RECORDS_MAX - 3))  # merges what was given, and these
    writer.add(b"a", roll=True)
    got += [at for batch in reading for at in reversed(batch)]
    assert got == sorted(writer.written[b"a"][:before], reverse=True)


def test_entries_without_keys_are_no_rows_and_old_logs_go_on(new_log: Callable[[], Any]) -> None:
    """Version 1 payloads before, version 2 after: the index begins at the first entry that has keys."""
    log, kv = new_log(), MemoryKV()
    log.command(CreateTopic({"name": "t"}, True))
    log.messages(log.run(1, 0, 3))
    state = BrokerState(kv)
    state.apply(log.entries)
    assert not list(kv.scan(INDEX, keys.FIRST, keys.LAST))
    entry = log.messages(log.run(1, 0, 1), keys=records(1, [(b"k", log.tail.end_position + 104)]))
    state = BrokerState(kv)
    state.apply([entry])
    bucket = state.message_index.bucket_below(keys.U64_MAX)
    assert bucket == Bucket(entry.position, entry.timestamp_ms, keys.U64_MAX)
    assert found_in(state.message_index, bucket, b"k") == [entry.position + 104]


def test_a_roll_of_any_entry_closes_the_bucket(new_log: Callable[..., Any]) -> None:
    log, kv = new_log(segment_size=400), MemoryKV()
    state = BrokerState(kv)
    log.command(CreateTopic({"name": "t"}, True))
    log.messages(log.run(1, 0, 1), keys=records(1, [(b"k", 1)]))
    while not log.entries[-1].flags & FLAG_ROLL:
        log.command(Expire(0))
    state.apply(log.entries)
    bucket = state.message_index.bucket_below(keys.U64_MAX)
    assert bucket is not None
    assert bucket.last_ms == log.entries[-1].timestamp_ms
