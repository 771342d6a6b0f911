"""Scheduled messages: rows by due time, found by position, counted, and gone with the entry that holds the copies."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.errors import InvariantViolationError
from statemachine.broker_state import BrokerState
from statemachine.commands import Command, CommandResult
from statemachine.delivery.timers import NEVER, DeliverTimers, DropTimers, RecallTimer, TimerCounts, Timers
from statemachine.removal_slices import DeleteTopic
from statemachine.rows import keys, meta_keys
from statemachine.rows.digest import digest
from statemachine.rows.kv import META, TIMER, Batch
from statemachine.rows.running_digest import count
from statemachine.topics.topics import CreateTopic


class Broker:
    """A state with topics 1 and 2, and the log that feeds it."""

    def __init__(self, log: Any) -> None:
        self.log = log
        self.kv = MemoryKV()
        self.state = BrokerState(self.kv)
        for name in ("t", "u"):
            self.run(CreateTopic({"name": name, "read_queues": 2, "write_queues": 2}, True))

    def run(self, *run: Command) -> list[CommandResult]:
        return self.state.apply([self.log.command(*run)]).results[0]

    def schedule(self, due_ms: int, count: int = 1, topic_id: int = 1, queue_id: int = 0, **more: Any) -> int:
        """The position of the row."""
        position: int = self.log.tail.end_position
        self.state.apply([self.log.messages(self.log.scheduled(topic_id, queue_id, count, due_ms), **more)])
        return position

    def due(self, now_ms: int) -> list[tuple[int, int]]:
        return [(row.due_ms, row.position) for row in self.state.timers.due(now_ms)]


@pytest.fixture
def broker(new_log: Callable[[], Any]) -> Broker:
    return Broker(new_log())


def test_rows_come_in_the_order_of_due_time_and_position(broker: Broker) -> None:
    late, first, second = broker.schedule(50), broker.schedule(20), broker.schedule(20)
    assert broker.due(19) == []
    assert broker.due(20) == [(20, first), (20, second)]
    assert broker.due(50) == [(20, first), (20, second), (50, late)]


def test_a_message_that_waits_is_in_no_queue(broker: Broker) -> None:
    broker.schedule(20, count=3)
    assert broker.state.max_offset(1, 0) == 0
    grown = broker.state.apply([broker.log.messages(broker.log.scheduled(1, 1, 1, 9))]).grown
    assert grown == set()


def test_the_earliest_due_time_is_known_without_a_look(broker: Broker) -> None:
    timers = broker.state.timers
    assert timers.earliest == NEVER
    a = broker.schedule(50)
    b = broker.schedule(20)
    assert timers.earliest == 20
    broker.run(DeliverTimers([(20, b)]))
    assert timers.earliest == 50
    c = broker.schedule(10, effects=(DeliverTimers([(50, a)]),))
    assert timers.earliest == BrokerState(broker.kv).timers.earliest == 10
    broker.run(DropTimers([(10, c)]))
    assert timers.earliest == BrokerState(broker.kv).timers.earliest == NEVER


def test_a_message_is_found_by_its_position(broker: Broker) -> None:
    broker.schedule(30)
    position = broker.schedule(20, count=3, queue_id=1)
    for at in range(3):
        row, item = broker.state.timers.at(position + at) or pytest.fail("not found")
        assert (row.due_ms, row.position, row.topic_id, row.queue_id) == (20, position, 1, 1)
        assert item.position == position + at
    assert broker.state.timers.at(position + 3) is None
    assert broker.state.timers.at(0) is None
    broker.run(DeliverTimers([(20, position)]))
    assert broker.state.timers.at(position + 1) is None


def test_what_lies_behind_a_row_is_found_from_there_on(broker: Broker) -> None:
    first, second, third = broker.schedule(20), broker.schedule(20), broker.schedule(30)
    timers = broker.state.timers

    def after(*name: int) -> list[int]:
        return [row.position for row in timers.due(30, (name[0], name[1]))]

    assert after(0, 0) == [first, second, third]
    assert after(20, first) == [second, third]
    broker.run(DeliverTimers([(20, second)]))
    assert after(20, first) == after(20, second) == [third]
    assert after(30, third) == after(99, 0) == []


class Unsearched:
    """The rows of a database in which none is searched."""

    def __init__(self, kv: Any) -> None:
        self._kv = kv

    def __getattr__(self, name: str) -> Any:
        assert name not in ("scan", "first", "seek_last"), "rows were searched"
        return getattr(self._kv, name)


@pytest.mark.parametrize("gone", [[0], [0, 1, 2], [1], [0, 1, 2, 3]])
def test_a_start_reads_no_row_by_due_time(broker: Broker, gone: list[int]) -> None:
    """A start that read rows by due time would pass removed ones one by one."""
    names = [(due, broker.schedule(due)) for due in (10, 20, 30, 40)]
    broker.run(DeliverTimers([names[at] for at in gone]))
    first = broker.state.timers.first
    kv: Any = Unsearched(broker.kv)
    assert Timers(kv, broker.state.writes).first == first
    assert Timers(kv, broker.state.writes).earliest == min(
        [name[0] for at, name in enumerate(names) if at not in gone], default=NEVER
    )


def test_a_release_that_kept_no_first_row_may_have_written_since(broker: Broker) -> None:
    position = broker.schedule(50)
    kept = broker.kv.get(META, meta_keys.TIMER_FRONT_KEY)
    earlier = broker.schedule(20)
    assert kept is not None
    batch = Batch()
    batch.put(META, meta_keys.TIMER_FRONT_KEY, kept)
    broker.kv.write(batch)
    assert Timers(broker.kv, broker.state.writes).first == (20, earlier)
    batch.delete(META, meta_keys.TIMER_FRONT_KEY)
    broker.kv.write(batch)
    assert Timers(broker.kv, broker.state.writes).first == (20, earlier)
    broker.state.apply([broker.log.command(DropTimers([(20, earlier)]))])
    assert Timers(broker.kv, broker.state.writes).first == (50, position)


def test_the_first_row_is_no_part_of_the_digest(broker: Broker) -> None:
    broker.schedule(50)
    before = digest(broker.kv), count(broker.kv)
    batch = Batch()
    batch.delete(META, meta_keys.TIMER_FRONT_KEY)
    broker.kv.write(batch)
    assert (digest(broker.kv), count(broker.kv)) == before


def test_the_lowest_position_is_found_in_steps(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search never passes more than a step's worth of removed rows at once, nor the end of the log: what is added
    there later would be below."""
    monkeypatch.setattr("statemachine.delivery.timers.EDGE_STEP_BYTES", 100)
    monkeypatch.setattr("statemachine.delivery.timers.EDGE_STEPS_MAX", 3)
    names = [(due, broker.schedule(due)) for due in range(10, 30)]
    broker.run(DeliverTimers(names[:-1]))
    end = broker.state.applied_mark.end_position
    looks = [broker.state.timers.lowest_position(0, end) or 0 for _ in range(30)]
    assert looks == sorted(looks)
    assert looks[0] != names[-1][1] == looks[-1], "not in one look"
    broker.run(DropTimers(names[-1:]))
    assert broker.state.timers.lowest_position(0, end) is None
    later = broker.schedule(5)
    end = broker.state.applied_mark.end_position
    assert [broker.state.timers.lowest_position(0, end) for _ in range(30)][-1] == later


def test_the_log_is_pinned_by_the_lowest_message_that_waits(broker: Broker) -> None:
    assert broker.state.lowest_pinned_position() is None
    a, b = broker.schedule(50), broker.schedule(20)
    assert broker.state.lowest_pinned_position() == a
    broker.run(DeliverTimers([(50, a)]))
    assert broker.state.lowest_pinned_position() == b
    broker.run(DropTimers([(20, b)]))
    assert broker.state.lowest_pinned_position() is None


def test_messages_are_counted(broker: Broker) -> None:
    a, b = broker.schedule(50, count=3), broker.schedule(20, count=2)
    assert broker.state.timers.counts == TimerCounts(pending=5, pending_bytes=500)
    (result,) = broker.run(DeliverTimers([(50, a)]))
    assert result == CommandResult(True, "", 3)
    broker.run(DropTimers([(20, b)]))
    counted = TimerCounts(pending=0, pending_bytes=0, delivered=3, dropped=2)
    assert broker.state.timers.counts == BrokerState(broker.kv).timers.counts == counted


def test_a_row_that_is_not_there_stops_nobody_and_counts_nothing(broker: Broker) -> None:
    a = broker.schedule(50)
    results = broker.run(DeliverTimers([(50, a), (50, a), (51, a), (1, 2)]), DropTimers([(50, a)]))
    assert [result.value for result in results] == [1, 0]
    assert broker.state.timers.counts == TimerCounts(delivered=1)


def test_a_message_is_recalled_and_the_others_of_its_row_stay(broker: Broker) -> None:
    position = broker.schedule(50, count=3)
    assert broker.run(RecallTimer(50, position, position)) == [CommandResult(True, "", None)]
    (row,) = broker.state.timers.due(50)
    assert row.name == (50, position)
    assert [item.position for item in row.messages()] == [position + 1, position + 2]
    assert broker.state.timers.counts == TimerCounts(pending=2, pending_bytes=200, recalled=1)
    assert broker.state.timers.at(position) is None
    assert broker.state.timers.at(position + 1) is not None
    broker.run(DeliverTimers([(50, position)]))
    stored = Timers(broker.kv, broker.state.writes).counts
    assert broker.state.timers.counts == stored == TimerCounts(delivered=2, recalled=1)


def test_the_last_message_of_a_row_takes_it_along(broker: Broker) -> None:
    a, b = broker.schedule(50), broker.schedule(60)
    assert broker.run(RecallTimer(50, a, a))[0].ok
    assert broker.due(99) == [(60, b)]
    assert broker.state.timers.first == (60, b)
    assert broker.state.lowest_pinned_position() == b


def test_what_does_not_wait_is_not_recalled(broker: Broker) -> None:
    a, b = broker.schedule(50, count=2), broker.schedule(60)
    broker.run(DeliverTimers([(60, b)]))
    recall = RecallTimer(50, a, a)
    results = broker.run(recall, recall, RecallTimer(51, a, a), RecallTimer(50, a, a + 9), RecallTimer(60, b, b))
    assert [result.code for result in results] == ["", *["not_found"] * 4]
    for wrong in ((50, -1, a), (50, a, "x")):
        assert broker.state.apply([broker.log.raw(["recall_timer", *wrong])]).results[0][0].code == "invalid"
    assert broker.state.timers.counts == TimerCounts(pending=1, pending_bytes=100, delivered=1, recalled=1)


def test_a_row_may_be_made_changed_and_removed_in_one_run(broker: Broker) -> None:
    """Nothing of a row is left, if the store had it before or not."""
    kept = broker.schedule(50, count=2)
    log = broker.log
    position = log.tail.end_position
    run = [log.messages(log.scheduled(1, 0, 2, 40))]
    for due, first in ((50, kept), (40, position)):
        run.append(log.command(RecallTimer(due, first, first)))
        run.append(log.command(DeliverTimers([(due, first)])))
    broker.state.apply(run)
    assert broker.due(99) == []
    assert broker.state.timers.first == Timers(broker.kv, broker.state.writes).first
    assert broker.state.timers.counts == TimerCounts(delivered=2, recalled=2)
    assert [key for key, _ in broker.kv.scan(TIMER, b"", b"\xff")] == [keys.TIMER_COUNTS_KEY]


@pytest.mark.parametrize("rows", ["x", [[1]], [[1, -1]], [1], [["a", 2]], [[1, 2, 3]]])
def test_arguments_that_make_no_sense_change_nothing(broker: Broker, rows: Any) -> None:
    broker.schedule(50)
    (result,) = broker.run(DeliverTimers(rows))
    assert (result.ok, result.code) == (False, "invalid")
    assert broker.state.timers.counts.pending == 1


def test_a_row_outlives_the_topic_until_it_is_dropped(broker: Broker) -> None:
    """The leader drops it when it is due; a topic made again has another id and inherits nothing."""
    position = broker.schedule(50)
    broker.run(DeleteTopic("t"), CreateTopic({"name": "t"}, True))
    assert broker.due(50) == [(50, position)]
    assert next(broker.state.timers.due(50)).topic_id not in broker.state.topics_by_id


def test_a_run_longer_than_a_row_is_refused(broker: Broker) -> None:
    with pytest.raises(InvariantViolationError, match="257"):
        broker.schedule(50, count=257)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_state_agrees_with_a_model(new_log: Callable[[], Any], seed: int) -> None:
    """The model: a dict of what waits. Entries are applied in runs of any length."""
    rng = Random(seed)
    broker = Broker(new_log())
    log, run = broker.log, []
    model: dict[tuple[int, int], int] = {}
    delivered = dropped = 0
    for _ in range(40):
        effects = []
        ended = rng.sample(sorted(model), min(len(model), rng.randrange(3)))
        for name in ended:
            count = model.pop(name)
            kind = rng.choice([DeliverTimers, DropTimers])
            delivered, dropped = (delivered + count, dropped) if kind is DeliverTimers else (delivered, dropped + count)
            effects.append(kind([name]))
        name = (rng.randrange(30), log.tail.end_position)
        model[name] = rng.choice([1, 2, 256])
        run.append(log.messages(log.scheduled(rng.choice([1, 2]), 0, model[name], name[0]), effects=tuple(effects)))
        if rng.random() < 0.4:
            broker.state.apply(run)
            run = []
            assert broker.due(15) == sorted(name for name in model if name[0] <= 15)
            assert broker.state.timers.earliest == min(model)[0]
            assert broker.state.lowest_pinned_position() == min(position for _, position in model)
            pending = sum(model.values())
            assert broker.state.timers.counts == TimerCounts(pending, 100 * pending, delivered, dropped)
