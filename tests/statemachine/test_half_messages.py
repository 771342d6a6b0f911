"""Half messages: rows from the entry that stores one to the entry that ends it. Times are numbers of the log."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.errors import InvariantViolationError
from raftlog.types import Entry
from statemachine import commands, payload
from statemachine.broker_state import BrokerState
from statemachine.commands import CommandResult
from statemachine.delivery.half_messages import CheckHalves, EndHalves, HalfMessage, OwnHalves, Pending
from statemachine.payload import RowKind, Run
from statemachine.removal_slices import DeleteTopic
from statemachine.rows.kv import TRANS
from statemachine.topics.topics import CreateTopic
from tests.support.rows import each_row
from tests.support.state_kit import applied_in_groups

TOPIC = 1
SIZE = 100


class Broker:
    """A state with topic 1 of two queues, and the log that feeds it."""

    def __init__(self, log: Any, kv: Any = None) -> None:
        self.log = log
        self.kv = MemoryKV() if kv is None else kv
        self.state = BrokerState(self.kv)
        self.run(CreateTopic({"name": "t", "read_queues": 2, "write_queues": 2}, True))

    def run(self, *run: commands.Command) -> list[CommandResult]:
        return self.state.apply([self.log.command(*run)]).results[0]

    def one(self, command: commands.Command) -> CommandResult:
        return self.run(command)[0]

    def raw(self, *command: object) -> CommandResult:
        return self.state.apply([self.log.raw(list(command))]).results[0][0]

    def store(self, check_ms: int, count: int = 1, queue: int = 0) -> list[int]:
        """Stores half messages; their positions."""
        run = halves(self.log, TOPIC, queue, check_ms, count)
        self.state.apply([self.log.messages(run)])
        return positions_of(run)


def halves(log: Any, topic: int, queue: int, check_ms: int, count: int) -> Run:
    return Run(topic, queue, check_ms, count, RowKind.HALF, log.items(0, count))


def positions_of(run: Run) -> list[int]:
    return [item[0] for item in payload.ITEM.iter_unpack(run.items)]


@pytest.fixture
def broker(new_log: Callable[[], Any]) -> Broker:
    return Broker(new_log())


def test_a_half_message_is_in_no_queue_and_is_kept_until_it_ends(broker: Broker) -> None:
    assert (broker.state.lowest_pinned_position(), broker.state.halves.check_ms) == (None, None)
    first, second = broker.store(5000, 2, queue=1)
    half = broker.state.halves.get(first)
    assert half is not None
    assert half._replace(crc32c=0) == HalfMessage(first, TOPIC, 1, SIZE, 0, 5000, 0)
    assert broker.state.max_offset(TOPIC, 1) == 0
    assert broker.state.halves.pending == Pending(2, 2 * SIZE)
    assert broker.state.lowest_pinned_position() == first
    assert broker.one(EndHalves([first, first, 77])) == (True, "", 1)
    assert broker.state.halves.get(first) is None
    assert broker.state.lowest_pinned_position() == second
    assert broker.one(EndHalves([second])).value == 1
    assert (broker.state.lowest_pinned_position(), broker.state.halves.check_ms) == (None, None)
    assert broker.state.halves.pending == Pending(0, 0)


def test_the_entry_with_the_copy_ends_the_half_message(broker: Broker) -> None:
    (position,) = broker.store(5000)
    copy = broker.log.run(TOPIC, 0, 1)._replace(kind=RowKind.COMMITTED)
    broker.state.apply([broker.log.messages(copy, effects=(EndHalves([position]),))])
    assert broker.state.halves.get(position) is None
    assert broker.state.max_offset(TOPIC, 0) == 1


def test_those_due_come_in_the_order_of_their_times(broker: Broker) -> None:
    (late,) = broker.store(9000)
    (early,) = broker.store(3000)
    (middle,) = broker.store(5000)
    assert broker.state.halves.check_ms == 3000
    assert [half.position for half in broker.state.halves.due(2999, 10)] == []
    assert [half.position for half in broker.state.halves.due(5000, 10)] == [early, middle]
    assert [half.position for half in broker.state.halves.due(9000, 2)] == [early, middle]
    assert [half.position for half in broker.state.halves.due(9000, 9)] == [early, middle, late]


def test_a_check_is_counted_and_moves_the_next_one(broker: Broker) -> None:
    (position,) = broker.store(3000)
    assert broker.one(CheckHalves(33_000, [position, 77])).value == [position]
    half = broker.state.halves.get(position)
    assert half is not None
    assert (half.check_ms, half.checks) == (33_000, 1)
    assert broker.state.halves.check_ms == 33_000
    assert broker.state.halves.due(32_999, 1) == []
    broker.one(CheckHalves(33_000, [position]))
    assert [(half.checks, half.check_ms) for half in broker.state.halves.due(33_000, 1)] == [(2, 33_000)]
    broker.one(EndHalves([position]))
    assert broker.one(CheckHalves(63_000, [position])).value == []
    assert broker.state.halves.get(position) is None


def test_one_that_comes_and_goes_in_one_run_leaves_nothing_due(broker: Broker) -> None:
    run = halves(broker.log, TOPIC, 0, 3000, 1)
    broker.state.apply([broker.log.messages(run), broker.log.command(EndHalves(positions_of(run)))])
    assert broker.state.halves.check_ms is None
    broker.store(8000)
    assert broker.state.halves.check_ms == 8000


def test_a_deleted_topic_leaves_its_half_messages_to_be_ended(broker: Broker) -> None:
    """Only the leader asks whether the topic exists: its id is never given again."""
    (position,) = broker.store(3000)
    broker.one(DeleteTopic("t"))
    assert broker.state.halves.get(position) is not None
    assert broker.one(EndHalves([position])).value == 1
    with pytest.raises(InvariantViolationError, match="does not exist"):
        broker.store(3000)


@each_row(
    "command",
    [
        ["end_halves", []],
        ["end_halves", 5],
        ["end_halves", [-1]],
        ["end_halves", [1, "2"]],
        ["end_halves", [2**63, None]],
        ["end_halves"],
        ["check_halves", [1]],
        ["check_halves", -1, [1]],
        ["check_halves", True, [1]],
        ["check_halves", 1, []],
        ["check_halves", 1, [[1]]],
    ],
)
def test_bad_arguments_change_nothing(broker: Broker, command: list[Any]) -> None:
    broker.store(3000)
    before = list(broker.kv.scan(TRANS, b"", b"\xff"))
    result = broker.raw(*command)
    assert (result.ok, result.code) == (False, "invalid")
    assert list(broker.kv.scan(TRANS, b"", b"\xff")) == before


# --- against a model -----------------------------------------------------------------------------------------------


def drawn(log: Any, seed: int, length: int) -> tuple[list[Entry], dict[int, tuple[int, int]]]:
    """A log that opens, checks and ends transactions; position -> (check_ms, checks) of those open at its end."""
    rng = Random(seed)
    log.command(CreateTopic({"name": "t"}, True))
    model: dict[int, tuple[int, int]] = {}
    for _ in range(length):
        log.now_ms += rng.choice([0, 1, 500])
        known = sorted(model)
        some = rng.sample(known, min(len(known), rng.choice([1, 1, 2, 9]))) + rng.choice([[], [], [77]])
        step = rng.random()
        if step < 0.4 or not some:
            check_ms = log.now_ms + rng.choice([0, 6000, 60_000])
            run = halves(log, TOPIC, rng.randrange(2), check_ms, rng.choice([1, 1, 3]))
            model.update((position, (run.base_offset, 0)) for position in positions_of(run))
            log.messages(run)
        elif step < 0.6:
            log.messages(log.run(TOPIC, 0, len(some)), effects=(EndHalves(some),))
            model = {position: half for position, half in model.items() if position not in some}
        elif step < 0.75:
            log.command(EndHalves(some))
            model = {position: half for position, half in model.items() if position not in some}
        else:
            next_ms = log.now_ms + rng.choice([0, 30_000])
            log.command(CheckHalves(next_ms, some))
            model.update((position, (next_ms, model[position][1] + 1)) for position in some if position in model)
    return log.entries, model


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), grouping=st.integers(0, 2**32))
def test_rows_and_counters_follow_from_the_log_however_it_is_grouped(
    new_log: Callable[[], Any], seed: int, grouping: int
) -> None:
    entries, model = drawn(new_log(), seed, 60)
    whole = MemoryKV()
    BrokerState(whole).apply(entries)
    state, kv = applied_in_groups(entries, grouping)
    halves = state.halves
    assert list(kv.scan(TRANS, b"", b"\xff")) == list(whole.scan(TRANS, b"", b"\xff"))
    assert state.sums.totals == BrokerState(whole).sums.totals
    times = sorted((check_ms, position) for position, (check_ms, _) in model.items())
    assert [(half.check_ms, half.position) for half in halves.due(2**60, 10_000)] == times
    assert {half.position: (half.check_ms, half.checks) for half in halves.due(2**60, 10_000)} == model
    assert halves.check_ms == (times[0][0] if times else None)
    assert halves.lowest_position() == min(model, default=None)
    assert halves.pending == Pending(len(model), SIZE * len(model))


def test_the_owner_of_a_half_message_goes_with_it(broker: Broker) -> None:
    run = halves(broker.log, TOPIC, 0, 5_000, 2)
    first, second = positions_of(run)
    broker.state.apply([broker.log.messages(run, effects=(OwnHalves([(first, 7)]),))])
    state = broker.state.halves
    assert [state.owner(position) for position in (first, second)] == [7, 0]
    assert broker.one(CheckHalves(9_000, [first, second])).ok
    assert state.owner(first) == 7
    assert broker.one(EndHalves([first, second])).value == 2
    assert [state.owner(position) for position in (first, second)] == [0, 0]
    assert not [key for key, _ in broker.kv.scan(TRANS, b"o", b"p")]


@each_row("rows", [None, [1], [[1]], [[1, 0]], [[-1, 1]], [[1, 1], [2, "u"]]])
def test_owners_that_are_none_change_nothing(broker: Broker, rows: Any) -> None:
    assert broker.raw("own_halves", rows).code == "invalid"
    assert not [key for key, _ in broker.kv.scan(TRANS, b"o", b"p")]
