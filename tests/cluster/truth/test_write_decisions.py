"""What is prepared for a write to several groups ends as the first group decided, whoever leads, and only so."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.replication.outcome import Outcome
from cluster.truth.write_decisions import (
    ASK_EVERY_MS,
    AT_ONCE,
    UNDECIDED_MS,
    WRITE_UNDECIDED,
    abort_command,
)
from statemachine.delivery.prepared_writes import DecideWrite, PreparedState
from statemachine.delivery.staged_writes import DiscardAttempts
from tests.support.two_groups import Two
from tests.support.write_kit import commit, groups_of_writes, nothing_waits, prepared, states


@pytest.fixture
def two(new_log: Any) -> Two:
    return groups_of_writes(new_log)


def test_a_commit_is_followed_and_confirmed(two: Two) -> None:
    decider, attempt = prepared(two)
    two.run(3 * ASK_EVERY_MS)
    assert states(two) == {attempt: "prepared"}
    commit(two, decider)
    two.run(2 * ASK_EVERY_MS)
    assert states(two) == {attempt: "committed"}
    assert nothing_waits(two)


def test_an_abort_is_followed(two: Two) -> None:
    decider, attempt = prepared(two)
    two.first.log.one(DiscardAttempts([decider]))
    two.run(2 * ASK_EVERY_MS)
    assert states(two) == {attempt: "discarded"}
    assert nothing_waits(two)


def test_nothing_is_ended_without_an_answer(two: Two) -> None:
    decider, attempt = prepared(two)
    commit(two, decider)
    two.back.is_open = False
    two.run(10 * ASK_EVERY_MS)
    assert states(two) == {attempt: "prepared"}
    two.back.is_open = True
    two.run(2 * ASK_EVERY_MS)
    assert states(two) == {attempt: "committed"}


@pytest.mark.parametrize("turns", range(12))
def test_the_next_leader_goes_on_wherever_the_last_one_stopped(two: Two, turns: int) -> None:
    decider, attempt = prepared(two)
    commit(two, decider)
    two.decisions.hurry()
    two.run(50 * turns)
    two.second.proposed.clear()
    two.second.log.restart()
    two.begin_second()
    two.run(3 * ASK_EVERY_MS)
    assert states(two) == {attempt: "committed"}
    assert nothing_waits(two)


def test_an_entry_that_is_lost_is_proposed_again(two: Two) -> None:
    decider, attempt = prepared(two)
    commit(two, decider)
    two.decisions.hurry()
    for _ in range(100):
        two.now_ms += 50
        two.decisions.tick(two.now_ms)
        two.first.decide()
        two.carry()
        if two.second.proposed:
            break
    two.second.decide(Outcome.UNKNOWN)
    assert states(two) == {attempt: "prepared"}
    two.run(3 * ASK_EVERY_MS)
    assert states(two) == {attempt: "committed"}


def test_who_does_not_lead_asks_nothing(two: Two) -> None:
    decider, attempt = prepared(two)
    commit(two, decider)
    two.second.leads = False
    two.run(3 * ASK_EVERY_MS)
    assert states(two) == {attempt: "prepared"}
    assert two.first.log.state.prepared_writes.decisions[decider].groups == (2,)


def test_a_question_has_a_bound_and_comes_to_all(two: Two) -> None:
    waiting = [prepared(two, f"q{number}") for number in range(2 * AT_ONCE + 1)]
    two.decisions.hurry()
    two.decisions.tick(two.now_ms)
    [(_, header, payload)] = two.back.take()
    assert payload.count(b"decide_write") == AT_ONCE
    assert header
    last = waiting[-1][0]
    commit(two, last, f"q{len(waiting) - 1}")
    two.run(10 * ASK_EVERY_MS)
    assert [each for each, state in states(two).items() if state == "committed"] == [waiting[-1][1]]
    assert len(two.second.log.state.prepared_writes.prepared) == len(waiting) - 1


def test_one_question_a_second_while_nothing_is_decided(two: Two) -> None:
    prepared(two)
    before = len(two.first.authors)
    two.run(10 * ASK_EVERY_MS)
    assert 8 <= len(two.first.authors) - before <= 11


def test_what_stays_undecided_is_a_finding_until_it_is_settled(two: Two) -> None:
    decider, attempt = prepared(two, "a query", 7)
    two.second.log.log.now_ms += UNDECIDED_MS - 1
    two.run(20_000)
    assert not two.alarms.raised(WRITE_UNDECIDED)
    two.second.log.log.now_ms += 1
    two.run(20_000)
    [alarm] = [each for each in two.alarms.all() if each.key == WRITE_UNDECIDED]
    assert abort_command("a query", 7) == "raftmq writes abort 'a query' 7"
    assert alarm.text.endswith(abort_command("a query", 7))
    assert two.first.log.one(DecideWrite("a query", 7, decider, 2, abort=True)).ok
    two.run(20_000)
    assert states(two) == {attempt: "discarded"}
    assert not two.alarms.raised(WRITE_UNDECIDED)


def test_a_committed_write_is_no_finding(two: Two) -> None:
    decider, attempt = prepared(two)
    commit(two, decider)
    while states(two) == {attempt: "prepared"}:
        two.run(50)
    two.back.is_open = False
    two.second.log.log.now_ms += 2 * UNDECIDED_MS
    two.run(20_000)
    [left] = two.second.log.state.prepared_writes.prepared.values()
    assert left.state is PreparedState.COMMITTED
    assert not two.alarms.raised(WRITE_UNDECIDED)
