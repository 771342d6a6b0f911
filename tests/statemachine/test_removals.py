"""Rows that commands remove go slice by slice: nobody sees them from the first entry on, no entry is
long, and in the end the same rows are left as if one slice had taken them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jepsen_like.fakes.memory_kv import MemoryKV
from statemachine import payload
from statemachine.broker_state import BrokerState
from statemachine.commands import Command
from statemachine.consuming.consumer_offsets import CommitOffsets, ResetOffsets
from statemachine.consuming.groups import PutGroup
from statemachine.consuming.queue_locks import LockQueues, UnlockQueues
from statemachine.dedup import EndSessions
from statemachine.delivery.staged_writes import (
    LOSERS_AT_ONCE,
    STAGED_DUE,
    AttemptState,
    CommitWrite,
    DiscardAttempts,
    ForgetWrite,
    OpenAttempt,
)
from statemachine.delivery.timers import DropStaged
from statemachine.removal_slices import DeleteGroup, DeleteTopic, Expire
from statemachine.removals import Removals
from statemachine.rows import keys, running_digest
from statemachine.rows.kv import CQ, DEDUP, FAMILIES, LOCKS, META, OFFSETS, RESETS, TIMER, Batch, Op
from statemachine.topics.topics import CreateTopic

ROWS = 8
BATCH_MAX = 3 * ROWS + 16
"""Steps of the batch of a slice: rows that go, the rows that spare others, what is known of the removal and the log."""
TTL_MS = 60_000


class Recording(MemoryKV):
    """Keeps what was written last."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[Op] = []
        self.starts: list[tuple[str, bytes]] = []
        """The keys at which scans began."""

    def scan(self, family: str, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        self.starts.append((family, start))
        return super().scan(family, start, end)

    def write(self, batch: Batch) -> None:
        self.ops = list(batch.ops)
        super().write(batch)


class Broker:
    """A state, and the log that feeds it."""

    def __init__(self, log: Any) -> None:
        self.log, self.kv = log, Recording()
        self.state = BrokerState(self.kv)

    def run(self, *run: Command) -> Any:
        return self.state.apply([self.log.command(*run)]).results[0]

    def apply(self, entry: Any) -> None:
        self.state.apply([entry])

    def slice(self, rows: int = ROWS) -> None:
        self.apply(self.log.remove(rows))
        assert len(self.kv.ops) <= BATCH_MAX
        assert self.state.sums.totals == running_digest.count(self.kv)

    def finish_at_once(self) -> None:
        """Removes all in one slice."""
        self.apply(self.log.remove(1 << 30))
        assert not self.state.removing

    def finish(self) -> int:
        """Returns the number of slices that it took until nothing was left to remove."""
        count = 0
        while self.state.removing:
            self.slice()
            count += 1
        return count

    def reopen(self) -> None:
        self.state = BrokerState(self.kv)

    def rows(self, *families: str) -> dict[str, list[tuple[bytes, bytes]]]:
        wanted = families or tuple(family for family in FAMILIES if family != META)
        return {family: list(self.kv.scan(family, b"", b"\xff" * 64)) for family in wanted}

    def meta(self, prefix: bytes) -> list[bytes]:
        return [key for key, _ in self.kv.scan(META, prefix, prefix + b"\xff" * 64)]


@pytest.fixture
def broker(new_log: Callable[[], Any]) -> Broker:
    return Broker(new_log())


def fill(broker: Broker) -> None:
    """Topic 1 is to be deleted; topic 2 has the same beside it."""
    broker.run(CreateTopic({"name": "t", "read_queues": 9}, True), CreateTopic({"name": "u"}, True))
    for group in ("g", "h", "i"):
        broker.run(
            PutGroup({"name": group}, True),
            CommitOffsets([(group, topic, queue, queue) for topic in (1, 2) for queue in range(9)]),
            LockQueues(group, "c", 1000, 1000 + TTL_MS, [(topic, at) for topic in (1, 2) for at in range(4)]),
            ResetOffsets(group, 1000, [(topic, at, 0) for topic in (1, 2) for at in range(3)]),
        )
    for _ in range(30):
        broker.log.now_ms += 1000
        runs = [broker.log.run(topic, queue, 20) for topic in (1, 2) for queue in range(3)]
        unique = tuple(payload.UniqueRow(broker.log.now_ms, topic, 0, 0, 1, 7) for topic in (1, 2))
        broker.apply(broker.log.messages(*runs, unique=unique))


def test_a_deleted_topic_goes_in_slices_and_leaves_what_one_slice_leaves(new_log: Callable[[], Any]) -> None:
    whole, sliced = Broker(new_log()), Broker(new_log())
    for broker in (whole, sliced):
        fill(broker)
        assert broker.run(DeleteTopic("t"))[0].value.name == "t"
    assert len(sliced.kv.ops) < 8, "the first entry removes no row of the topic but its own"
    whole.finish_at_once()
    assert len(whole.rows(CQ)[CQ]) < len(sliced.rows(CQ)[CQ])
    assert sliced.finish() > 10
    assert sliced.rows() == whole.rows()
    assert not sliced.meta(b"removal")
    sliced.slice()
    assert sliced.rows() == whole.rows(), "a slice that comes too late"


def test_nobody_sees_a_topic_that_is_being_removed(broker: Broker) -> None:
    fill(broker)
    assert broker.state.fetch(1, 0, 0, 1)
    assert broker.state.unique(1, broker.log.now_ms, 7)
    broker.run(DeleteTopic("t"))
    count = 0
    while broker.state.removing:
        state = broker.state
        assert [state.max_offset(1, 0), state.min_offset(1, 0), state.kept_offset(1, 0)] == [0, 0, 0]
        assert state.fetch(1, 0, 0, 10) == []
        assert state.offset_by_time(1, 0, 0, False) == 0
        assert state.unique(1, broker.log.now_ms, 7) is None
        assert state.offset("g", 1, 0) is None
        assert {topic for topic, _, _ in state.offsets_of_group("g")} == {2}
        assert state.offsets_by_topic("g").keys() == {2}
        assert {topic for topic, _ in state.locks_of_group("g")} == {2}
        assert {topic for topic, _ in state.resets_of_group("g")} == {2}
        assert (1, 0) not in state.locks_of_group("g")
        assert len(state.locks_of_group("g")) == 4
        broker.slice()
        if count % 3 == 0:
            broker.reopen()
        count += 1
    assert count > 10


def test_a_topic_is_made_again_before_the_last_slice(broker: Broker) -> None:
    fill(broker)
    broker.run(DeleteTopic("t"))
    made = broker.run(CreateTopic({"name": "t"}, False), PutGroup({"name": "g"}, True))[0].value
    assert made.id == 3
    broker.apply(broker.log.messages(broker.log.run(3, 0, 300)))
    broker.run(CommitOffsets([("g", 3, 0, 7), ("g", 1, 0, 7)]))
    broker.slice()
    broker.reopen()
    broker.finish()
    assert (broker.state.max_offset(3, 0), broker.state.offset("g", 3, 0)) == (300, 7)
    assert len(broker.state.fetch(3, 0, 0, 400)) == 300
    assert not [key for key, _ in broker.rows(CQ)[CQ] if key[:4] == bytes([0, 0, 0, 1])]


def test_what_is_remembered_of_a_deleted_topics_queues_is_forgotten(broker: Broker) -> None:
    def bounds() -> list[tuple[int, int]]:
        return [(broker.state.min_offset(1, queue), broker.state.max_offset(1, queue)) for queue in range(9)]

    fill(broker)
    broker.apply(broker.log.trim(broker.log.entries[0], *[(1, queue, 25) for queue in range(3)]))
    assert bounds() == [(25, 600)] * 3 + [(0, 0)] * 6
    broker.run(DeleteTopic("t"))
    broker.finish()
    assert 1 not in broker.state[Removals].topics, "no longer hidden"
    assert bounds() == [(0, 0)] * 9


@pytest.mark.parametrize("clean", [False, True])
def test_a_deleted_group_goes_in_slices(new_log: Callable[[], Any], clean: bool) -> None:
    whole, sliced = Broker(new_log()), Broker(new_log())
    for broker in (whole, sliced):
        fill(broker)
        assert broker.run(DeleteGroup("h", clean))[0].ok
    assert len(sliced.kv.ops) < 8
    whole.finish_at_once()
    assert sliced.state.locks_of_group("h") == sliced.state.resets_of_group("h") == {}
    assert sliced.state.offsets_of_group("h") == whole.state.offsets_of_group("h")
    assert sliced.finish() >= 2
    assert sliced.rows() == whole.rows()


def test_a_group_made_again_keeps_what_it_writes(broker: Broker) -> None:
    """Rows of a group bear its name: what is written while those of its predecessor go is told apart, also after a
    restart, and also by a second deletion."""
    fill(broker)
    broker.run(DeleteGroup("h", True), PutGroup({"name": "h"}, True))
    broker.run(CommitOffsets([("h", 1, 8, 88)]), LockQueues("h", "new", 1, 99, [(1, 3), (2, 0)]))
    assert broker.meta(b"spared")
    broker.slice(5)
    broker.run(ResetOffsets("h", 5, [(1, 2, 0)]), LockQueues("h", "new", 1, 99, [(1, 0)]))
    expected = broker.state.offsets_of_group("h"), dict(broker.state.locks_of_group("h"))
    assert expected[0] == [(1, 2, 0), (1, 8, 88)]
    broker.reopen()
    assert (broker.state.offsets_of_group("h"), dict(broker.state.locks_of_group("h"))) == expected
    broker.run(UnlockQueues("h", "new", [(2, 0)]))
    broker.finish()
    broker.reopen()
    assert broker.state.offsets_of_group("h") == expected[0]
    assert set(broker.state.locks_of_group("h")) == {(1, 0), (1, 3)}
    assert set(broker.state.resets_of_group("h")) == {(1, 2)}
    assert not broker.meta(b"spared")


def test_a_group_that_is_deleted_twice_leaves_nothing(broker: Broker) -> None:
    fill(broker)
    broker.run(DeleteGroup("h", True), PutGroup({"name": "h"}, True))
    broker.run(CommitOffsets([("h", 1, queue, 88) for queue in range(9)]))
    broker.slice()
    broker.slice()
    broker.run(DeleteGroup("h", True), PutGroup({"name": "h"}, True))
    broker.run(CommitOffsets([("h", 2, 1, 77)]))
    broker.reopen()
    assert broker.state.offsets_of_group("h") == [(2, 1, 77)]
    broker.finish()
    broker.reopen()
    assert broker.state.offsets_of_group("h") == [(2, 1, 77)]
    assert len([key for key, _ in broker.rows(OFFSETS)[OFFSETS] if key.startswith(b"h\0")]) == 1
    assert not broker.meta(b"spared")


def test_groups_that_have_nothing_of_a_topic_are_passed_within_bounds(broker: Broker) -> None:
    broker.run(CreateTopic({"name": "t"}, True), CreateTopic({"name": "u"}, True))
    broker.run(CommitOffsets([(f"g{number:04}", 2, 0, 1) for number in range(2000)]))
    broker.run(CommitOffsets([("g1999", 1, 0, 1)]), DeleteTopic("t"))
    assert broker.finish() > 2000 / (ROWS * 20)
    assert len(broker.rows(OFFSETS)[OFFSETS]) == 2000


def test_a_sweep_skips_the_queues_of_a_topic_that_is_being_removed(broker: Broker) -> None:
    fill(broker)
    begin = broker.log.messages(broker.log.run(2, 0, 1))
    broker.apply(begin)
    broker.run(DeleteTopic("t"))
    removed = [row for row in broker.rows(CQ)[CQ] if row[0][3] == 1]
    cut = broker.log.cut(begin)
    broker.apply(cut)
    while broker.state.sweep is not None:
        broker.apply(broker.log.slice(cut, ROWS))
        assert [row for row in broker.rows(CQ)[CQ] if row[0][3] == 1] == removed
    assert broker.state.trim_position == begin.position
    assert broker.state.min_offset(2, 0) == 600
    broker.finish()
    assert not [row for row in broker.rows(CQ)[CQ] if row[0][3] == 1]
    assert broker.state.fetch(2, 0, 600, 9)


def test_a_removal_takes_queues_from_under_a_sweep_that_stands_in_one(broker: Broker) -> None:
    fill(broker)
    begin = broker.log.messages(broker.log.run(2, 0, 1))
    broker.apply(begin)
    cut = broker.log.cut(begin)
    broker.apply(cut)
    broker.apply(broker.log.slice(cut, ROWS))
    broker.run(DeleteTopic("t"))
    broker.slice()
    broker.apply(broker.log.slice(cut, 4))
    broker.finish()
    while broker.state.sweep is not None:
        broker.apply(broker.log.slice(cut, ROWS))
    assert [broker.state.min_offset(2, queue) for queue in range(3)] == [600, 600, 600]
    assert broker.state.sums.totals == running_digest.count(broker.kv)


def test_sessions_and_unique_rows_expire_in_slices(new_log: Callable[[], Any]) -> None:
    whole, sliced = Broker(new_log()), Broker(new_log())
    for broker in (whole, sliced):
        fill(broker)
        sessions = [broker.log.session(producer, 0, [1, 2]) for producer in range(40)]
        broker.apply(broker.log.messages(sessions=tuple(sessions)))
        broker.log.now_ms += 1000
        broker.apply(broker.log.messages(sessions=(broker.log.session(7, 0, [9]),)))
        broker.run(Expire(broker.log.now_ms))
    whole.finish_at_once()
    kept = sliced.rows(OFFSETS, RESETS, CQ)
    assert sliced.finish() > 10
    assert sliced.rows(DEDUP) == whole.rows(DEDUP)
    assert [key for key, _ in sliced.rows(DEDUP)[DEDUP]][:1] == [b"p" + bytes([7]) * 16]
    assert kept == sliced.rows(OFFSETS, RESETS, CQ)


def test_locks_that_expired_long_ago_go_with_the_sessions(broker: Broker) -> None:
    fill(broker)
    broker.run(Expire(1000 + TTL_MS))
    broker.finish()
    assert len(broker.state.locks_of_group("g")) == 8
    broker.run(Expire(1001 + TTL_MS))
    broker.finish()
    assert not broker.rows(LOCKS)[LOCKS]
    assert not broker.state.locks_of_group("g")


def test_a_session_of_many_rows_goes_from_its_beginning(broker: Broker) -> None:
    for sequence in range(30):
        broker.apply(broker.log.messages(sessions=(broker.log.session(1, 0, [sequence]),)))
    broker.log.now_ms += 1000
    broker.run(Expire(broker.log.now_ms), Expire(broker.log.now_ms + 10**6))
    producer = bytes([1]) * 16
    broker.slice()
    session = broker.state.session(producer)
    assert session is not None
    assert session.forgotten(0)
    assert session.find(29) is not None
    broker.reopen()
    assert broker.state.session(producer) == session
    assert broker.finish() > 2
    assert broker.state.session(producer) is None
    assert not broker.rows(DEDUP)[DEDUP]


def test_a_session_that_is_used_again_before_its_slice_is_kept(broker: Broker) -> None:
    for producer in range(20):
        broker.apply(broker.log.messages(sessions=(broker.log.session(producer, 0, [1]),)))
    broker.log.now_ms += 1000
    broker.run(Expire(broker.log.now_ms))
    broker.slice()
    broker.apply(broker.log.messages(sessions=(broker.log.session(19, 0, [2]),)))
    broker.finish()
    assert [broker.state.session(bytes([producer]) * 16) is None for producer in (0, 18, 19)] == [True, True, False]


def test_ending_a_session_of_many_rows_leaves_them_to_expire(broker: Broker) -> None:
    for sequence in range(100):
        broker.apply(broker.log.messages(sessions=(broker.log.session(1, 0, [sequence]),)))
    producer = bytes([1]) * 16
    assert broker.run(EndSessions([producer]))[0].value == 1
    assert len(broker.kv.ops) < 8
    broker.reopen()
    broker.run(Expire(1))
    broker.finish()
    assert broker.state.session(producer) is None
    assert not broker.rows(DEDUP)[DEDUP]


def test_removals_are_carried_out_one_after_the_other(broker: Broker) -> None:
    fill(broker)
    broker.run(DeleteTopic("t"), DeleteGroup("g", True), DeleteTopic("u"), DeleteGroup("i", True))
    assert broker.state.removing == 4
    broker.slice()
    broker.reopen()
    assert broker.state.removing == 4
    broker.finish()
    assert not broker.rows(CQ)[CQ]
    assert {key[:2] for key, _ in broker.rows(OFFSETS)[OFFSETS]} == set()


def test_many_small_removals_need_few_slices(broker: Broker) -> None:
    names = [f"t{number}" for number in range(100)]
    broker.run(*[CreateTopic({"name": name}, True) for name in names])
    broker.run(*[DeleteTopic(name) for name in names])
    assert broker.finish() <= 100 * 5 / ROWS + 1, "a step counts as one row"


# -- attempts at staged writes that did not win


def open_attempts(broker: Broker, count: int, write: int = 1, name: str = "q") -> list[int]:
    """Attempts at the write, with one message each."""
    opened = [result.value for result in broker.run(*[OpenAttempt(name, write, 5)] * count)]
    for number in opened:
        broker.apply(broker.log.messages(broker.log.scheduled(1, 0, 1, STAGED_DUE + number)))
    return opened


def commit(broker: Broker, *winners: int, write: int = 1, name: str = "q") -> Any:
    return broker.run(CommitWrite(name, write, 7, [(number, 1) for number in winners]))[0]


def open_ones(broker: Broker) -> list[int]:
    return [one.number for one in broker.state.writes.attempts() if one.state is AttemptState.OPEN]


@pytest.mark.parametrize("count", [LOSERS_AT_ONCE + 2, 100])
def test_attempts_that_lose_go_in_slices_and_leave_what_one_slice_leaves(
    new_log: Callable[[], Any], count: int
) -> None:
    whole, sliced = Broker(new_log()), Broker(new_log())
    for broker in (whole, sliced):
        broker.run(CreateTopic({"name": "t"}, True))
        lost, winner, *rest = open_attempts(broker, count)
        open_attempts(broker, 3, write=2)
        open_attempts(broker, 3, name="other")
        assert commit(broker, winner).value == 1
        assert len(broker.kv.ops) < 8
        assert not {lost, winner, *rest} & set(open_ones(broker))
        assert len(open_ones(broker)) == 6
        assert commit(broker, lost).code == "committed"
        before = broker.rows()
        broker.apply(broker.log.messages(broker.log.scheduled(1, 0, 1, STAGED_DUE + lost)))
        assert broker.rows() == before, "nothing more is staged for a loser"
    whole.finish_at_once()
    assert [one.number for one in whole.state.writes.attempts()] == [
        one.number for one in sliced.state.writes.attempts()
    ]
    assert len(sliced.state.writes.draining) == 1 < len(whole.state.writes.draining)
    count = 0
    while sliced.state.removing:
        sliced.slice()
        sliced.reopen()
        assert open_ones(sliced) == open_ones(whole)
        count += 1
    assert count >= len(rest) // ROWS
    assert sliced.rows() == whole.rows()
    assert sliced.state.writes.draining == whole.state.writes.draining


def test_a_commit_changes_no_more_rows_than_it_names(broker: Broker) -> None:
    broker.run(CreateTopic({"name": "t"}, True))
    winner, *_ = open_attempts(broker, 600)
    commit(broker, winner)
    assert len(broker.kv.ops) < 8
    assert broker.finish() >= 600 // ROWS


@pytest.mark.parametrize("slices", [0, 1, 99])
def test_a_name_that_is_forgotten_meanwhile_begins_anew(broker: Broker, slices: int) -> None:
    """Attempts that are opened after the commit are none of its losers, although their write is as low."""
    broker.run(CreateTopic({"name": "t"}, True))
    winner, *_ = open_attempts(broker, 50, write=3)
    commit(broker, winner, write=3)
    broker.run(ForgetWrite("q"))
    again = open_attempts(broker, 30, write=1)
    assert open_ones(broker) == again
    broker.reopen()
    for _ in range(slices):
        broker.slice()
    assert open_ones(broker) == again
    assert commit(broker, again[0]).ok
    assert open_ones(broker) == []
    assert broker.state.removing == (1 if slices == 99 else 2), "the lower write is no part of what is pending"
    broker.finish()
    won, lost = set(broker.state.writes.draining), AttemptState.DISCARDED
    assert {number for number in won if broker.state.writes.draining[number] is not lost} == {winner, again[0]}
    assert len(won) == 80


def test_attempts_that_a_slice_has_passed_lose_to_the_next_commit(broker: Broker) -> None:
    broker.run(CreateTopic({"name": "t"}, True))
    open_attempts(broker, 30, write=2)
    open_attempts(broker, 30, write=1)
    commit(broker)
    broker.slice()
    commit(broker, write=2)
    assert broker.finish() >= 60 // ROWS
    broker.reopen()
    assert len(broker.state.writes.draining) == 60


def test_commits_one_after_the_other_need_no_more_than_two_removals(broker: Broker) -> None:
    broker.run(CreateTopic({"name": "t"}, True))
    open_attempts(broker, 30, write=99)
    for write in range(1, 20):
        open_attempts(broker, 2, write=write)
        assert commit(broker, write=write).ok
        broker.slice(4)
        broker.reopen()
        assert broker.state.removing <= 2
        assert {one.write for one in broker.state.writes.attempts() if one.state is AttemptState.OPEN} == {99}
    broker.finish()
    assert len(broker.state.writes.draining) == 38
    assert len(open_ones(broker)) == 30


def test_rows_of_a_loser_may_be_dropped_before_its_slice(broker: Broker) -> None:
    broker.run(CreateTopic({"name": "t"}, True))
    winner, *rest = open_attempts(broker, 30)
    commit(broker, winner)
    assert [broker.run(DropStaged(number, 9))[0].value for number in rest] == [1] * 29
    assert [one.number for one in broker.state.writes.attempts()] == [winner]
    broker.finish()
    assert [one.number for one in BrokerState(broker.kv).writes.attempts()] == [winner]


def test_slices_of_a_discarded_attempt_begin_where_the_last_one_ended(broker: Broker) -> None:
    """A slice does not pass rows again that were removed: a store keeps them for a while."""
    broker.run(CreateTopic({"name": "t"}, True))
    (number,) = open_attempts(broker, 1)
    for _ in range(60):
        broker.apply(broker.log.messages(broker.log.scheduled(1, 0, 1, STAGED_DUE + number)))
    broker.run(DiscardAttempts([number]))
    rows = [row.position for row in broker.state.timers.staged(STAGED_DUE + number)]
    for at in range(0, 60, 10):
        broker.kv.starts.clear()
        assert broker.run(DropStaged(number, 10))[0].value == 10
        begun = [start for family, start in broker.kv.starts if family == TIMER and start[:1] == b"d"]
        assert begun == [keys.timer_key(STAGED_DUE + number, rows[at - 1] if at else 0)]
    broker.reopen()
    assert broker.run(DropStaged(number, 10))[0].value == 1
    assert not broker.rows(TIMER)[TIMER]
