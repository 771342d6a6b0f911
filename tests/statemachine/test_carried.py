"""Messages that are carried forward: they lie elsewhere, and everything else about them stays (docs/adr/0054)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.types import Entry
from statemachine.broker_state import BrokerState
from statemachine.delivery.half_messages import CheckHalves, EndHalves, Pending
from statemachine.delivery.timers import DeliverTimers, DropTimers, RecallTimer, TimerCounts
from statemachine.payload import RowKind, Run
from statemachine.removal_slices import DeleteTopic
from statemachine.rows.kv import TIMER, TRANS
from statemachine.topics.topics import CreateTopic
from tests.support.state_kit import FedState, applied_in_groups

SIZE = 100
HALF = RowKind.CARRIED_HALF


class Broker(FedState):
    """A state with topic 1, and the log that feeds it."""

    def schedule(self, due_ms: int, count: int = 1) -> int:
        """The name of the row."""
        return self._store(self.log.scheduled(1, 0, count, due_ms))

    def half(self, check_ms: int) -> int:
        return self._store(Run(1, 0, check_ms, 1, RowKind.HALF, self.log.items(0, 1)))

    def carry(self, name: int, count: int = 1, kind: RowKind = RowKind.CARRIED_TIMERS, **more: Any) -> int:
        """Carries messages forward; returns the position of the first one then."""
        return self._store(self.log.carried(name, count, kind), **more)

    def _store(self, run: Run, **more: Any) -> int:
        position: int = self.log.tail.end_position
        self.state.apply([self.log.messages(run, **more)])
        return position


@pytest.fixture
def broker(new_log: Callable[[], Any]) -> Broker:
    return Broker(new_log())


def rows(broker: Broker, family: str) -> list[tuple[bytes, bytes]]:
    return list(broker.kv.scan(family, b"", b"\xff" * 30))


# --- timers --------------------------------------------------------------------------------------------------------


def test_a_carried_row_keeps_name_and_due_time_and_lies_elsewhere(broker: Broker) -> None:
    name, other = broker.schedule(50, count=3), broker.schedule(50)
    place = broker.carry(name, 3)
    row = broker.state.timers.get(50, name) or pytest.fail("gone")
    assert (row.due_ms, row.position, row.place, row.topic_id, row.queue_id) == (50, name, place, 1, 0)
    assert [item.position for item in row.messages()] == [place, place + 1, place + 2]
    assert row.first_positions() == [name, name + 1, name + 2]
    assert [one.position for one in broker.state.timers.due(50)] == [name, other], "in the order of the first append"
    assert broker.state.timers.counts == TimerCounts(pending=4, pending_bytes=4 * SIZE)
    assert broker.state.max_offset(1, 0) == 0


def test_the_pin_moves_with_the_messages(broker: Broker) -> None:
    name = broker.schedule(50)
    assert broker.state.lowest_pinned_position() == name
    place = broker.carry(name)
    assert broker.state.lowest_pinned_position() == place
    again = broker.carry(name)
    assert broker.state.lowest_pinned_position() == again
    broker.run(DeliverTimers([(50, name)]))
    assert broker.state.lowest_pinned_position() is None


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_message_is_found_by_where_it_was_first_and_where_it_is(broker: Broker, times: int) -> None:
    name = broker.schedule(50, count=3)
    places = [broker.carry(name, 3) for _ in range(times)]
    for at in range(3):
        for position in (name, places[-1]):
            row, item = broker.state.timers.at(position + at) or pytest.fail("not found")
            assert (row.position, item.position) == (name, places[-1] + at)
    for position in (*places[:-1], name + 3, places[-1] + 3):
        assert broker.state.timers.at(position) is None
    broker.run(DeliverTimers([(50, name)]))
    assert broker.state.timers.at(name) is None
    assert broker.state.timers.at(places[-1]) is None


@pytest.mark.parametrize("kind", [DeliverTimers, DropTimers])
def test_nothing_is_left_of_a_carried_row(broker: Broker, kind: type[DeliverTimers | DropTimers]) -> None:
    name = broker.schedule(50)
    broker.carry(name)
    broker.carry(name)
    assert broker.run(kind([(50, name)]))[0].value == 1
    assert [key for key, _ in rows(broker, TIMER)] == [b"c"], "only the counters"
    assert broker.state.timers.counts.pending == 0


def test_a_row_that_was_delivered_meanwhile_is_not_carried(broker: Broker) -> None:
    name = broker.schedule(50)
    broker.run(DeliverTimers([(50, name)]))
    before = rows(broker, TIMER)
    broker.carry(name)
    broker.carry(name + 7)
    assert rows(broker, TIMER) == before


def test_a_row_is_delivered_in_the_entry_that_carries_it(broker: Broker) -> None:
    """Effects come before rows: what the copy of a slow leader carries is gone."""
    name = broker.schedule(50)
    broker.carry(name, effects=(DeliverTimers([(50, name)]),))
    assert broker.state.timers.counts == TimerCounts(delivered=1)
    assert broker.state.lowest_pinned_position() is None


def test_a_row_with_other_messages_than_the_leader_read_stays_where_it_is(broker: Broker) -> None:
    name = broker.schedule(50, count=2)
    broker.carry(name, 1)
    assert broker.state.lowest_pinned_position() == name
    assert broker.state.timers.counts.pending == 2


def test_a_carried_row_outlives_its_topic_until_it_is_dropped(broker: Broker) -> None:
    name = broker.schedule(50)
    broker.run(DeleteTopic("t"))
    place = broker.carry(name)
    assert broker.state.lowest_pinned_position() == place
    broker.run(DropTimers([(50, name)]))
    assert broker.state.lowest_pinned_position() is None


def test_pinned_rows_come_in_the_order_in_which_they_lie(broker: Broker) -> None:
    a, b, c = (broker.schedule(due) for due in (30, 20, 10))
    moved = broker.carry(a)
    pinned = broker.state.timers.pinned
    assert [row.position for row in pinned(0, 2**63)] == [b, c, a]
    assert [row.position for row in pinned(c, moved)] == [c]
    assert [row.position for row in pinned(c + 1, moved + 1)] == [a]
    assert list(pinned(5, 5)) == []


def test_a_message_is_found_among_those_of_other_rows_in_its_entry(broker: Broker) -> None:
    """Sends of two due times took turns in one entry."""
    items = broker.log.items(0, 4)
    one, two = (b"".join(items[at : at + 32] for at in pair) for pair in ((0, 64), (32, 96)))
    first = broker.log.tail.end_position
    runs = [Run(1, 0, due, 2, RowKind.SCHEDULED, items) for due, items in ((50, one), (60, two))]
    broker.state.apply([broker.log.messages(*runs)])
    found = [broker.state.timers.at(first + at) for at in range(5)]
    assert [None if one is None else (one[0].due_ms, one[1].position - first) for one in found] == [
        (50, 0),
        (60, 1),
        (50, 2),
        (60, 3),
        None,
    ]


def test_a_message_of_a_carried_row_is_recalled_by_where_it_was_first(broker: Broker) -> None:
    name = broker.schedule(50, count=3)
    place = broker.carry(name, 3)
    assert broker.run(RecallTimer(50, name, place + 1))[0].code == "not_found"
    assert broker.run(RecallTimer(50, name, name))[0].ok
    row = broker.state.timers.get(50, name) or pytest.fail("gone")
    assert ([item.position for item in row.messages()], row.first_positions()) == (
        [place + 1, place + 2],
        [name + 1, name + 2],
    )
    broker.carry(name, 3)
    assert broker.state.lowest_pinned_position() == place, "read before the recall"
    place = broker.carry(name, 2)
    assert broker.state.lowest_pinned_position() == place
    _, item = broker.state.timers.at(name + 2) or pytest.fail("not found")
    assert item.position == place + 1
    for position in (name + 1, name + 2):
        assert broker.run(RecallTimer(50, name, position))[0].ok
    assert broker.state.lowest_pinned_position() is None
    assert [key for key, _ in rows(broker, TIMER)] == [b"c"]


# --- half messages -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_carried_half_message_keeps_its_name_and_its_checks(broker: Broker, times: int) -> None:
    name, other = broker.half(3000), broker.half(4000)
    broker.run(CheckHalves(33_000, [name]))
    places = [broker.carry(name, kind=HALF) for _ in range(times)]
    half = broker.state.halves.get(name) or pytest.fail("gone")
    assert (half.position, half.place, half.check_ms, half.checks) == (name, places[-1], 33_000, 1)
    assert half.stored.position == places[-1]
    assert broker.state.halves.at(name) == broker.state.halves.at(places[-1]) == half
    assert [one.position for one in broker.state.halves.pinned(0, 2**63)] == [other, name]
    assert broker.state.lowest_pinned_position() == other
    assert broker.state.halves.pending == Pending(2, 2 * SIZE)
    broker.run(EndHalves([other]))
    assert broker.state.lowest_pinned_position() == places[-1]


def test_it_is_asked_about_and_ended_by_its_old_position(broker: Broker) -> None:
    name = broker.half(3000)
    place = broker.carry(name, kind=HALF)
    assert [half.position for half in broker.state.halves.due(3000, 9)] == [name]
    assert broker.run(CheckHalves(33_000, [name]))[0].value == [name]
    assert (broker.state.halves.get(name) or pytest.fail("gone")).moved_to == place
    assert broker.run(EndHalves([place]))[0].value == 0, "its producer does not know this position"
    assert broker.run(EndHalves([name]))[0].value == 1
    assert [key for key, _ in rows(broker, TRANS)] == [b"n"], "only the counters"
    assert (broker.state.halves.check_ms, broker.state.lowest_pinned_position()) == (None, None)


def test_one_that_has_ended_is_not_carried(broker: Broker) -> None:
    name = broker.half(3000)
    broker.run(EndHalves([name]))
    before = rows(broker, TRANS)
    broker.carry(name, kind=HALF)
    assert rows(broker, TRANS) == before


def test_a_carry_of_the_other_kind_changes_nothing(broker: Broker) -> None:
    timer, half = broker.schedule(50), broker.half(3000)
    broker.carry(timer, kind=HALF)
    broker.carry(half)
    assert broker.state.lowest_pinned_position() == timer
    assert (broker.state.halves.get(half) or pytest.fail("gone")).moved_to is None


# --- against a model -----------------------------------------------------------------------------------------------


class Model:
    """The waiting messages: name -> [due or check, count, place of the first message]."""

    def __init__(self) -> None:
        self.timers: dict[int, list[int]] = {}
        self.halves: dict[int, list[int]] = {}

    def lowest(self) -> int | None:
        return min([row[2] for row in (*self.timers.values(), *self.halves.values())], default=None)


def drawn(log: Any, seed: int, length: int) -> tuple[list[Entry], Model]:
    """A log that stores, carries, delivers, checks and ends, and what waits at its end."""
    rng, model = Random(seed), Model()
    log.command(CreateTopic({"name": "t"}, True))
    for _ in range(length):
        step, at, effects = rng.random(), log.tail.end_position, []
        timers, halves = sorted(model.timers), sorted(model.halves)
        if step < 0.25:
            model.timers[at] = [rng.randrange(9), rng.choice([1, 2, 5, 256]), at]
            log.messages(log.scheduled(1, 0, model.timers[at][1], model.timers[at][0]))
        elif step < 0.4:
            model.halves[at] = [rng.randrange(9), 1, at]
            log.messages(Run(1, 0, model.halves[at][0], 1, RowKind.HALF, log.items(0, 1)))
        elif step < 0.75:
            name = rng.choice([*timers, *halves, at + 1])
            if name in timers and rng.random() < 0.1:
                effects = [DeliverTimers([(model.timers.pop(name)[0], name)])]
            row = model.timers.get(name) or model.halves.get(name) or [0, 1, 0]
            row[2] = at
            log.messages(
                log.carried(name, row[1], HALF if name in halves else RowKind.CARRIED_TIMERS), effects=tuple(effects)
            )
        elif step < 0.9 and timers:
            name = rng.choice(timers)
            log.command(rng.choice([DeliverTimers, DropTimers])([(model.timers.pop(name)[0], name)]))
        elif halves:
            name = rng.choice(halves)
            if step < 0.95:
                model.halves[name][0] = check_ms = rng.randrange(99)
                log.command(CheckHalves(check_ms, [name]))
            else:
                del model.halves[name]
                log.command(EndHalves([name]))
    return log.entries, model


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), grouping=st.integers(0, 2**32))
def test_rows_follow_from_the_log_however_it_is_grouped(new_log: Callable[[], Any], seed: int, grouping: int) -> None:
    entries, model = drawn(new_log(), seed, 60)
    whole = MemoryKV()
    BrokerState(whole).apply(entries)
    state, kv = applied_in_groups(entries, grouping)
    for family in (TIMER, TRANS):
        assert list(kv.scan(family, b"", b"\xff" * 30)) == list(whole.scan(family, b"", b"\xff" * 30))
    assert state.sums.totals == BrokerState(whole).sums.totals
    assert state.lowest_pinned_position() == model.lowest()
    found = {row.position: [row.due_ms, len(row.messages()), row.place] for row in state.timers.due(99)}
    assert found == model.timers
    assert {half.position: [half.check_ms, 1, half.place] for half in state.halves.due(99, 999)} == model.halves
    pinned = [row.position for row in state.timers.pinned(0, 2**63)]
    assert pinned == sorted(model.timers, key=lambda name: model.timers[name][2])
    for name, (_, count, place) in model.timers.items():
        for position, item in ((name + count - 1, place + count - 1), (place, place)):
            row, at_position = state.timers.at(position) or pytest.fail("not found")
            assert (row.position, at_position.position) == (name, item)
    pending = sum(row[1] for row in model.timers.values())
    assert (state.timers.counts.pending, state.timers.counts.pending_bytes) == (pending, SIZE * pending)
    assert state.halves.pending == Pending(len(model.halves), SIZE * len(model.halves))
