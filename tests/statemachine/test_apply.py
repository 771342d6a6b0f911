"""Apply: entries in order, one batch per run, visible only once written, and a stop at what must not exist."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.errors import InvariantViolationError
from raftlog.types import EntryId, EntryType
from statemachine import payload
from statemachine.broker_state import AppliedMark, BrokerState
from statemachine.consuming.consumer_offsets import CommitOffsets
from statemachine.consuming.groups import PutGroup, Subscribe
from statemachine.removal_slices import DeleteTopic
from statemachine.rows.kv import META, Batch, KVError
from statemachine.topics.topics import CreateTopic

CREATE = CreateTopic({"name": "a"}, True)


class WatchedKV(MemoryKV):
    """Calls `on_write` just before a batch takes effect."""

    def __init__(self) -> None:
        super().__init__()
        self.on_write: Callable[[], None] = lambda: None
        self.writes = 0

    def write(self, batch: Batch) -> None:
        self.on_write()
        super().write(batch)
        self.writes += 1


@pytest.fixture
def log(new_log: Callable[[], Any]) -> Any:
    return new_log()


def test_an_empty_state(log: Any) -> None:
    state = BrokerState(MemoryKV())
    assert state.applied == EntryId(0, -1)
    assert state.apply([]) == ([], set())
    assert (state.topics, state.groups, state.session(b"x" * 16), state.unique(1, 2, 3)) == ({}, {}, None, None)
    assert (state.max_offset(1, 0), state.fetch(1, 0, 0, 32), state.fetch(1, 0, -1, 32)) == (0, [], [])


def test_a_run_is_one_batch_with_its_applied_mark(log: Any) -> None:
    kv = WatchedKV()
    state = BrokerState(kv)
    entries = [log.add(EntryType.GENESIS), log.add(EntryType.NOOP), log.command(CREATE), log.add(EntryType.DIGEST)]
    log.now_ms += 5
    entries.append(log.messages(log.run(1, 0, 2), log.run(1, 3, 1), effects=(DeleteTopic("x"),)))
    run = state.apply(entries)
    assert kv.writes == 1
    assert [[result.code for result in results] for results in run.results] == [[], [], [""], [], ["not_found"]]
    assert run.grown == {(1, 0), (1, 3)}
    last = entries[-1]
    assert state.applied == last.id == EntryId(1, 4)
    mark = AppliedMark(1, 4, last.end_position, last.timestamp_ms, last.header_crc)
    assert state.applied_mark == BrokerState(kv).applied_mark == mark


def test_nothing_is_visible_before_its_batch_is_written(log: Any) -> None:
    kv = WatchedKV()
    state = BrokerState(kv)
    state.apply([log.command(CREATE, PutGroup({"name": "g"}, True))])
    state.apply([log.messages(log.run(1, 0, 5), sessions=(log.session(1, 0, [1]),))])

    def view() -> list[object]:
        return [
            state.applied,
            dict(state.topics),
            dict(state.topics_by_id),
            state.queue_count,
            dict(state.groups),
            state.max_offset(1, 0),
            state.max_offset(1, 1),
            state.fetch(1, 0, 0, 999),
            state.session(b"\1" * 16),
            state.offset("g", 1, 0),
            state.offsets_of_group("g"),
            state.unique(1, 7, 9),
        ]

    before = view()
    seen: list[object] = []
    kv.on_write = lambda: seen.append(view())
    state.apply(
        [
            log.messages(
                log.run(1, 0, 300),
                log.run(1, 1, 1),
                sessions=(log.session(1, 0, [2]),),
                unique=(payload.UniqueRow(7, 1, 0, 5, 99, 9),),
                effects=(
                    CommitOffsets([("g", 1, 0, 3)]),
                    CreateTopic({"name": "b"}, True),
                    PutGroup({"name": "h"}, True),
                    Subscribe("g", []),
                ),
            ),
        ]
    )
    assert seen == [before]
    assert all(old != new for old, new in zip(before, view(), strict=True))


def test_deleted_things_stay_visible_until_the_batch_is_written(log: Any) -> None:
    kv = WatchedKV()
    state = BrokerState(kv)
    state.apply([log.command(CREATE, CommitOffsets([("g", 1, 0, 3)])), log.messages(log.run(1, 0, 5))])
    seen: list[object] = []
    kv.on_write = lambda: seen.append((len(state.fetch(1, 0, 0, 9)), state.offset("g", 1, 0), list(state.topics)))
    state.apply([log.command(DeleteTopic("a"))])
    assert seen == [(5, 3, ["a"])]


def test_rows_of_the_entry_that_deletes_their_topic_do_not_exist(log: Any) -> None:
    state = BrokerState(MemoryKV())
    state.apply([log.command(CREATE)])
    with pytest.raises(InvariantViolationError, match=r"index 1\): 2 rows for topic id 1, which does not exist"):
        state.apply([log.messages(log.run(1, 0, 2), effects=(DeleteTopic("a"),))])


@pytest.mark.parametrize("base", [0, 4, 6, 261])
def test_a_row_that_does_not_continue_its_queue_stops_the_node(log: Any, base: int) -> None:
    kv = MemoryKV()
    state = BrokerState(kv)
    state.apply([log.command(CREATE), log.messages(log.run(1, 0, 5))])
    bad = log.messages(payload.Run(1, 0, base, 1, 0, log.items(base, 1)))
    with pytest.raises(InvariantViolationError, match=rf"index 2\): 1 rows at offset {base} of queue 0 .* ends at 5"):
        state.apply([bad])
    assert state.applied.index == BrokerState(kv).applied.index == 1
    with pytest.raises(InvariantViolationError, match="frozen"):
        state.apply([bad])
    assert len(state.fetch(1, 0, 0, 9)) == 5


@pytest.mark.parametrize(
    ("kind", "data", "why"),
    [
        (77, b"", "type 77"),
        (EntryType.MESSAGES, b"short", "at least 40 bytes"),
        (EntryType.COMMAND, b"\x01", "not an array"),
    ],
)
def test_entries_that_cannot_be_applied_stop_the_node(log: Any, kind: int, data: bytes, why: str) -> None:
    kv = MemoryKV()
    state = BrokerState(kv)
    good = log.command(CREATE)
    with pytest.raises(InvariantViolationError, match=rf"index 1\).*{why}"):
        state.apply([good, log.add(kind, data)])
    assert (state.applied.index, dict(state.topics), kv.get(META, b"applied")) == (-1, {}, None)


def test_entries_must_follow_each_other(log: Any) -> None:
    entries = [log.add(EntryType.NOOP, term=2) for _ in range(3)]
    state = BrokerState(MemoryKV())
    state.apply(entries[:1])
    for wrong in ([entries[0]], [entries[2]], [entries[1]._replace(term=1)]):
        again = BrokerState(MemoryKV())
        again.apply(entries[:1])
        with pytest.raises(InvariantViolationError, match="does not follow"):
            again.apply(wrong)


def test_a_failed_write_freezes_the_state(log: Any) -> None:
    kv = WatchedKV()
    state = BrokerState(kv)

    def refuse() -> None:
        raise KVError("disk full")

    kv.on_write = refuse
    entry = log.command(CREATE)
    with pytest.raises(KVError):
        state.apply([entry])
    with pytest.raises(InvariantViolationError, match="frozen: disk full"):
        state.apply([entry])
    assert dict(state.topics) == {}


def test_rows_of_a_newer_format_are_refused() -> None:
    kv = MemoryKV()
    batch = Batch()
    batch.put(META, b"format", b"\0\0\0\x0b")
    kv.write(batch)
    with pytest.raises(KVError, match="format 11: a newer RaftMQ"):
        BrokerState(kv)
