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
from statemachine.commands import CommandResult
from statemachine.timers import NEVER, TimerCounts


class Broker:
    """A state with topics 1 and 2, and the log that feeds it."""

    def __init__(self, log: Any) -> None:
        self.log = log
        self.kv = MemoryKV()
        self.state = BrokerState(self.kv)
        for name in ("t", "u"):
            self.run(["create_topic", {"name": name, "read_queues": 2, "write_queues": 2}, True])

    def run(self, *run: Any) -> list[CommandResult]:
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
    broker.run(["deliver_timers", [[20, b]]])
    assert timers.earliest == 50
    c = broker.schedule(10, effects=(["deliver_timers", [[50, a]]],))
    assert timers.earliest == BrokerState(broker.kv).timers.earliest == 10
    broker.run(["drop_timers", [[10, c]]])
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
    broker.run(["deliver_timers", [[20, position]]])
    assert broker.state.timers.at(position + 1) is None


def test_the_log_is_pinned_by_the_lowest_message_that_waits(broker: Broker) -> None:
    assert broker.state.lowest_pinned_position() is None
    a, b = broker.schedule(50), broker.schedule(20)
    assert broker.state.lowest_pinned_position() == a
    broker.run(["deliver_timers", [[50, a]]])
    assert broker.state.lowest_pinned_position() == b
    broker.run(["drop_timers", [[20, b]]])
    assert broker.state.lowest_pinned_position() is None


def test_messages_are_counted(broker: Broker) -> None:
    a, b = broker.schedule(50, count=3), broker.schedule(20, count=2)
    assert broker.state.timers.counts == TimerCounts(pending=5, pending_bytes=500)
    (result,) = broker.run(["deliver_timers", [[50, a]]])
    assert result == CommandResult(True, "", 3)
    broker.run(["drop_timers", [[20, b]]])
    counted = TimerCounts(pending=0, pending_bytes=0, delivered=3, dropped=2)
    assert broker.state.timers.counts == BrokerState(broker.kv).timers.counts == counted


def test_a_row_that_is_not_there_stops_nobody_and_counts_nothing(broker: Broker) -> None:
    a = broker.schedule(50)
    results = broker.run(["deliver_timers", [[50, a], [50, a], [51, a], [1, 2]]], ["drop_timers", [[50, a]]])
    assert [result.value for result in results] == [1, 0]
    assert broker.state.timers.counts == TimerCounts(delivered=1)


@pytest.mark.parametrize("rows", ["x", [[1]], [[1, -1]], [1], [["a", 2]], [[1, 2, 3]]])
def test_arguments_that_make_no_sense_change_nothing(broker: Broker, rows: Any) -> None:
    broker.schedule(50)
    (result,) = broker.run(["deliver_timers", rows])
    assert (result.ok, result.code) == (False, "invalid")
    assert broker.state.timers.counts.pending == 1


def test_a_row_outlives_the_topic_until_it_is_dropped(broker: Broker) -> None:
    """The leader drops it when it is due; a topic made again has another id and inherits nothing."""
    position = broker.schedule(50)
    broker.run(["delete_topic", "t"], ["create_topic", {"name": "t"}, True])
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
            verb = rng.choice(["deliver_timers", "drop_timers"])
            delivered, dropped = (
                (delivered + count, dropped) if verb == "deliver_timers" else (delivered, dropped + count)
            )
            effects.append([verb, [list(name)]])
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
