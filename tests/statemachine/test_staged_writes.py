"""Staged writes: what is staged comes into its queues only after a commit that names it, and a commit counts once."""

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
from statemachine.commands import Command, CommandResult
from statemachine.delivery.staged_writes import (
    STAGED_DUE,
    Attempt,
    AttemptState,
    CommitWrite,
    DiscardAttempts,
    ForgetWrite,
    OpenAttempt,
)
from statemachine.delivery.timers import NEVER, DeliverTimers, DropStaged, DropTimers, RecallTimer, TimerCounts
from statemachine.removal_slices import Expire
from statemachine.rows.running_digest import count as count_sums
from statemachine.topics.topics import CreateTopic


class Broker:
    """A state with the topic 1, and the log that feeds it."""

    def __init__(self, log: Any) -> None:
        self.log = log
        self.kv = MemoryKV()
        self.state = BrokerState(self.kv)
        self.run(CreateTopic({"name": "t", "read_queues": 2, "write_queues": 2}, True))

    def run(self, *run: Command) -> list[CommandResult]:
        return self.state.apply([self.log.command(*run)]).results[0]

    def open(self, write: int = 0, name: str = "q") -> int:
        (result,) = self.run(OpenAttempt(name, write, 5))
        assert result.ok
        number: int = result.value
        return number

    def stage(self, number: int, count: int) -> int:
        """The position of the row."""
        position: int = self.log.tail.end_position
        self.state.apply([self.log.messages(self.log.scheduled(1, 0, count, STAGED_DUE + number))])
        return position

    def commit(self, *winners: tuple[int, int], write: int = 0, name: str = "q") -> CommandResult:
        (result,) = self.run(CommitWrite(name, write, 7, winners))
        return result

    def states(self) -> dict[int, str]:
        return {one.number: one.state.name.lower() for one in self.state.writes.attempts()}

    def rows(self, number: int) -> list[int]:
        """Positions of the attempt's rows."""
        return [row.position for row in self.state.timers.staged(STAGED_DUE + number)]


@pytest.fixture
def broker(new_log: Callable[[], Any]) -> Broker:
    return Broker(new_log())


def test_attempts_have_numbers_of_their_own(broker: Broker) -> None:
    assert [broker.open(), broker.open(), broker.open(name="other")] == [1, 2, 3]
    broker.run(DiscardAttempts([3]))
    assert BrokerState(broker.kv).writes.get(3) is None
    assert broker.open() == 4, "a number is never given again"


def test_what_is_staged_is_counted_and_in_no_queue(broker: Broker) -> None:
    number = broker.open()
    positions = [broker.stage(number, 3), broker.stage(number, 2)]
    log_ms = broker.log.now_ms
    wanted = Attempt(number, AttemptState.OPEN, 0, 5, 5, 500, 5, log_ms, "q")
    for state in (broker.state, BrokerState(broker.kv)):
        assert state.writes.get(number) == wanted
        assert state.writes.left == 5
        assert state.timers.counts == TimerCounts(), "they wait for no time"
        assert state.max_offset(1, 0) == 0
        assert state.lowest_pinned_position() == positions[0]
    assert broker.rows(number) == positions
    assert [row.position for row in broker.state.timers.staged(wanted.due_ms, positions[0])] == positions[1:]
    assert broker.state.timers.earliest == NEVER
    broker.state.apply([broker.log.messages(broker.log.scheduled(1, 0, 1, 20))])
    broker.run(DropTimers([(20, broker.log.entries[-1].position)]))
    assert BrokerState(broker.kv).timers.earliest == broker.state.timers.earliest == NEVER


def test_nothing_is_staged_for_an_attempt_that_is_not_open(broker: Broker) -> None:
    number = broker.open()
    broker.stage(number, 1)
    assert broker.commit((number, 1)).ok
    broker.stage(number, 4)
    broker.stage(99, 4)
    found = broker.state.writes.get(number) or pytest.fail("gone")
    assert (found.count, broker.state.writes.left) == (1, 1)
    assert broker.rows(99) == []


def test_a_commit_names_the_winners_and_discards_the_rest(broker: Broker) -> None:
    earlier, winner, loser, other, later = (
        broker.open(1),
        broker.open(2),
        broker.open(2),
        broker.open(2, "other"),
        broker.open(3),
    )
    for number in (earlier, winner, loser, other, later):
        broker.stage(number, 2)
    result = broker.commit((winner, 2), write=2)
    assert (result.ok, result.value) == (True, 2)
    assert broker.states() == {
        earlier: "discarded",
        winner: "committed",
        loser: "discarded",
        other: "open",
        later: "open",
    }
    assert broker.state.writes.draining.keys() == {earlier, winner, loser}
    found = BrokerState(broker.kv).writes.committed("q")
    assert found is not None
    assert found[1:] == (2, 2, 7)


@pytest.mark.parametrize(
    ("winner", "why"),
    [
        ((1, 3), "attempt 1 has 2 messages, not 3"),
        ((2, 1), "attempt 2 is no open attempt at this write (any more)"),
        ((3, 0), "attempt 3 is no open attempt at this write (any more)"),
        ((9, 1), "attempt 9 is no open attempt at this write (any more)"),
    ],
)
def test_a_commit_without_one_of_its_attempts_changes_nothing(
    broker: Broker, winner: tuple[int, int], why: str
) -> None:
    whole = broker.open()
    broker.stage(whole, 2)
    broker.open(name="other")
    broker.run(DiscardAttempts([broker.open()]))
    good = broker.open()
    broker.stage(good, 1)
    before = broker.states()
    result = broker.commit((good, 1), winner)
    assert (result.ok, result.code, result.value) == (False, "incomplete", why)
    assert broker.states() == before
    assert broker.state.writes.committed("q") is None


def test_a_replayed_write_is_a_no_op_and_what_it_staged_goes(broker: Broker) -> None:
    first = broker.open(5)
    broker.stage(first, 2)
    second = broker.open(5)
    assert broker.commit((first, 2), write=5).ok
    broker.run(DeliverTimers([(STAGED_DUE + first, broker.rows(first)[0])]))
    assert broker.states() == {}, "nothing was staged for the second"
    for write in (5, 4):
        (refused,) = broker.run(OpenAttempt("q", write, 9))
        assert (refused.ok, refused.code, refused.value) == (False, "committed", 5)
        again = broker.commit((second, 2), write=write)
        assert (again.ok, again.code, again.value) == (False, "committed", 5)
    late = broker.open(6)
    broker.stage(late, 1)
    assert broker.commit(write=6).value == 0, "a batch without rows counts"
    assert broker.states() == {late: "discarded"}


def test_copies_and_slices_end_an_attempt(broker: Broker) -> None:
    winner, loser = broker.open(), broker.open()
    rows = [broker.stage(winner, 2), broker.stage(winner, 3)]
    lost = [broker.stage(loser, 1) for _ in range(3)]
    broker.commit((winner, 5))
    run = broker.log.run(1, 0, 2)
    effect = DeliverTimers([(STAGED_DUE + winner, rows[0])])
    broker.state.apply([broker.log.messages(run, effects=(effect,))])
    assert broker.rows(winner) == rows[1:]
    assert (broker.state.max_offset(1, 0), broker.state.writes.left) == (2, 6)
    (dropped,) = broker.run(DropStaged(loser, 2))
    assert (dropped.value, broker.rows(loser)) == (2, lost[2:])
    assert [each.value for each in broker.run(DropStaged(loser, 2), DropStaged(winner, 2))] == [1, 0]
    assert broker.states() == {winner: "committed"}
    broker.state.apply([broker.log.messages(effects=(DeliverTimers([(STAGED_DUE + winner, rows[1])]),))])
    assert broker.states() == {}
    assert broker.state.writes.draining == {}
    assert broker.state.lowest_pinned_position() is None
    assert broker.state.timers.counts == TimerCounts()


def test_an_open_attempt_is_not_dropped_and_not_recalled(broker: Broker) -> None:
    number = broker.open()
    position = broker.stage(number, 2)
    due = STAGED_DUE + number
    refused, kept = broker.run(RecallTimer(due, position, position), DropStaged(number, 9))
    assert (refused.code, kept.value) == ("not_found", 0)
    assert broker.commit((number, 2)).ok


def test_no_expiry_forgets_what_was_committed(broker: Broker) -> None:
    broker.commit(write=7)
    broker.log.now_ms += 10**12
    broker.run(Expire(2**62))
    broker.state = BrokerState(broker.kv)
    assert broker.commit(write=7).code == "committed"
    assert broker.run(OpenAttempt("q", 7, 9))[0].code == "committed"


def test_a_forgotten_name_begins_anew(broker: Broker) -> None:
    broker.commit(write=7)
    assert [each.write for each in broker.state.writes.committed_writes(10)] == [7]
    (forgotten, again) = broker.run(ForgetWrite("q"), ForgetWrite("q"))
    assert (forgotten.value, again.code) == (7, "not_found")
    assert broker.open(0) == 1


@pytest.mark.parametrize(
    "command",
    [
        ["open_attempt", "", 0, 0],
        ["open_attempt", "n" * 256, 0, 0],
        ["open_attempt", "n", -1, 0],
        ["open_attempt", "n", 1 << 63, 0],
        ["commit_write", "n", 0, 0, [[1]]],
        ["commit_write", "n", 0, 0, [[1, 1], [1, 1]]],
        ["commit_write", "n", 0, 0, {}],
        ["discard_attempts", 1],
        ["drop_staged", 1, 0],
        ["forget_write", 5],
    ],
)
def test_arguments_that_cannot_be_change_nothing(broker: Broker, command: list[Any]) -> None:
    number = broker.open(name="n")
    (result,) = broker.state.apply([broker.log.raw(command)]).results[0]
    assert result.code == "invalid"
    assert broker.states() == {number: "open"}


def drawn_log(log: Any, rng: Random) -> list[Entry]:
    """Attempts at the writes of two names, that are staged, committed, discarded and drained as chance has it."""
    log.command(CreateTopic({"name": "t", "read_queues": 2, "write_queues": 2}, True))
    rows: list[tuple[int, int]] = []
    staged: dict[int, int] = {}
    for step in range(60):
        number = rng.randint(1, 8)
        log.now_ms += rng.randrange(3)
        match rng.randrange(8):
            case 0 | 1:
                log.command(OpenAttempt(rng.choice("ab"), step // 10, log.now_ms))
            case 2 | 3:
                count = rng.randint(1, 3)
                rows.append((STAGED_DUE + number, log.tail.end_position))
                staged[number] = staged.get(number, 0) + count
                log.messages(log.scheduled(1, 0, count, STAGED_DUE + number))
            case 4:
                log.command(CommitWrite(rng.choice("ab"), step // 10, log.now_ms, [(number, staged.get(number, 0))]))
            case 5:
                log.command(DiscardAttempts([number, number + 1]))
            case 6:
                log.command(DropStaged(number, rng.randint(1, 2)))
            case 7 if rows:
                log.messages(effects=(DeliverTimers([rng.choice(rows)]),))
    entries: list[Entry] = log.entries
    return entries


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_rows_and_answers_do_not_depend_on_runs_or_restarts(
    new_log: Callable[[], Any], rows_of: Callable[[Any], object], seed: int
) -> None:
    rng = Random(seed)
    entries = drawn_log(new_log(), rng)
    one, other = MemoryKV(), MemoryKV()
    state = BrokerState(one)
    answers = [state.apply([entry]).results[0] for entry in entries]
    grouped, got, at = BrokerState(other), [], 0
    while at < len(entries):
        size = rng.choice([1, 2, 5, 20])
        if rng.random() < 0.2:
            grouped = BrokerState(other)
        got += grouped.apply(entries[at : at + size]).results
        at += size
    assert got == answers
    assert rows_of(one) == rows_of(other)
    assert dict(grouped.sums.totals) == count_sums(other)
    opened = BrokerState(other)
    for each in (grouped, opened):
        assert list(each.writes.attempts()) == list(state.writes.attempts())
        assert each.writes.draining == state.writes.draining
        assert each.writes.left == state.writes.left == sum(one.left for one in state.writes.attempts())
