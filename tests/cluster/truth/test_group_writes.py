"""What a driver asks of the leaders for a write to two groups: to prepare in one, and to commit in the first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cluster.broker.refusal import Reason, Refused
from cluster.broker.transactions.group_writes import GroupWrite, GroupWriteRequests
from cluster.broker.transactions.staged_writes import CommitAnswer
from cluster.replication.outcome import Outcome
from statemachine.delivery.prepared_writes import PrepareWrite
from statemachine.delivery.staged_writes import CommitWrite, DiscardAttempts, OpenAttempt
from tests.support.two_groups import Leader, Two
from tests.support.write_kit import commit, groups_of_writes, nothing_waits, open_staged, prepared, states


@pytest.fixture
def two(new_log: Any) -> Two:
    return groups_of_writes(new_log)


def requests(leader: Leader, propose: Any, group: int) -> GroupWriteRequests:
    services: Any = SimpleNamespace(
        state=leader.log.state,
        propose=propose,
        config=SimpleNamespace(cluster=SimpleNamespace(group=group)),
        log_time_ms=leader.log_time_ms,
    )
    return GroupWriteRequests(services)


def prepare(two: Two, decider: int, *winners: tuple[int, int], write: int = 0, name: str = "q") -> list[Any]:
    told: list[Any] = []
    asked = requests(two.second, two.submit_in_second, 2)
    asked.prepare(GroupWrite(name, write, decider, winners), told.append)
    two.run(500)
    return told


def commit_at(two: Two, leader: Leader, decider: int, *winners: tuple[int, int], write: int = 0) -> list[Any]:
    told: list[Any] = []
    submit = two.submit_in_second if leader is two.second else leader.submit
    group = 2 if leader is two.second else 1
    requests(leader, submit, group).commit(GroupWrite("q", write, decider, winners), [2], told.append)
    two.run(500)
    return told


def decider_of(two: Two, write: int = 0) -> int:
    number: int = two.first.log.one(OpenAttempt("q", write, 5)).value
    return number


@pytest.mark.parametrize("at", ["first", "second"])
def test_a_write_is_prepared_and_committed(two: Two, at: str) -> None:
    """A commit may be asked for at any group: the first one decides."""
    decider, attempt = decider_of(two), open_staged(two)
    assert prepare(two, decider, (attempt, 2)) == [2]
    assert prepare(two, decider, (attempt, 2)) == [2]
    assert commit_at(two, getattr(two, at), decider) == [CommitAnswer(0, earlier=False)]
    assert commit_at(two, getattr(two, at), decider) == [CommitAnswer(0, earlier=True)]
    two.run(3000)
    assert states(two) == {attempt: "committed"}
    assert nothing_waits(two)
    assert prepare(two, decider, (attempt, 2)) == [CommitAnswer(0, earlier=True)]


@pytest.fixture
def alone(two: Two) -> None:
    """Nobody but the requests follows decisions."""
    two.follows_decisions = False


def test_an_earlier_driver_does_not_end_what_a_later_one_prepared(two: Two) -> None:
    earlier, mine = decider_of(two), open_staged(two)
    later, theirs = prepared(two)
    [refused] = prepare(two, earlier, (mine, 2))
    assert refused.reason is Reason.ILLEGAL
    assert states(two) == {mine: "open", theirs: "prepared"}
    assert commit_at(two, two.first, later) == [CommitAnswer(0, earlier=False)]


@pytest.mark.usefixtures("alone")
def test_a_later_driver_ends_what_an_earlier_one_left(two: Two) -> None:
    earlier, left = prepared(two)
    later, attempt = decider_of(two), open_staged(two)
    assert prepare(two, later, (attempt, 2)) == [2]
    assert states(two) == {left: "discarded", attempt: "prepared"}
    [refused] = commit_at(two, two.first, earlier)
    assert refused.reason is Reason.ILLEGAL
    [refused] = prepare(two, earlier, (left, 2))
    assert refused.reason is Reason.ILLEGAL
    assert states(two) == {left: "discarded", attempt: "prepared"}


@pytest.mark.usefixtures("alone")
def test_a_later_driver_finds_what_an_earlier_one_has_committed(two: Two) -> None:
    earlier, left = prepared(two)
    later, attempt = decider_of(two), open_staged(two)
    commit(two, earlier)
    assert prepare(two, later, (attempt, 2)) == [CommitAnswer(0, earlier=True)]
    assert states(two) == {left: "committed", attempt: "discarded"}


@pytest.mark.usefixtures("alone")
def test_a_write_of_another_name_keeps_no_decider_from_its_own(two: Two) -> None:
    """Deciders are numbers that anybody can guess. An older release prepared under any of them."""
    decider, attempt = decider_of(two), open_staged(two)
    theirs = two.second.log.one(OpenAttempt("theirs", 0, 5)).value
    assert two.second.log.one(PrepareWrite("theirs", 0, 5, decider, [(theirs, 0)])).ok
    assert prepare(two, decider, (attempt, 2)) == [2]
    told: list[Any] = []
    asked = requests(two.second, two.submit_in_second, 2)
    more = two.second.log.one(OpenAttempt("theirs", 1, 5)).value
    asked.prepare(GroupWrite("theirs", 1, decider, [(more, 0)]), told.append)
    two.run(500)
    assert told[0].reason is Reason.ILLEGAL, "nor does it end what is not of its name"
    assert commit_at(two, two.first, decider) == [CommitAnswer(0, earlier=False)]
    assert states(two)[attempt] == "prepared"


def test_an_attempt_that_is_not_whole_is_refused(two: Two) -> None:
    decider, attempt = decider_of(two), open_staged(two)
    [refused] = prepare(two, decider, (attempt, 3))
    assert isinstance(refused, Refused)
    assert refused.reason is Reason.ILLEGAL
    assert states(two) == {attempt: "open"}


def test_a_commit_without_its_decider_is_refused(two: Two) -> None:
    decider, attempt = prepared(two)
    two.first.log.one(DiscardAttempts([decider]))
    [refused] = commit_at(two, two.first, decider)
    assert refused.reason is Reason.ILLEGAL
    two.run(3000)
    assert states(two) == {attempt: "discarded"}


def test_what_is_undecided_at_the_deadline_is_unknown(two: Two) -> None:
    told: list[Any] = []
    decider, attempt = decider_of(two), open_staged(two)
    asked = requests(two.second, two.submit_in_second, 2)
    asked.prepare(GroupWrite("q", 0, decider, [(attempt, 2)]), told.append)
    two.carry()
    two.first.decide()
    two.carry()
    two.second.decide(Outcome.UNKNOWN)
    [refused] = told
    assert refused.reason is Reason.UNKNOWN


def test_a_decider_of_which_the_first_group_says_nothing_prepares_nothing(two: Two) -> None:
    decider, attempt = decider_of(two), open_staged(two)
    two.back.is_open = False
    [refused] = prepare(two, decider, (attempt, 2))
    assert refused.reason is Reason.UNAVAILABLE
    assert states(two) == {attempt: "open"}


@pytest.mark.usefixtures("alone")
def test_nobody_prepares_under_the_decider_of_another(two: Two) -> None:
    """Numbers of deciders are easily guessed. Of two later requests of mal each would find that of q in its way, and
    have it ended: the second one after q has taken its place, and was promised that its part is there."""
    decider, attempt, mine = decider_of(two), open_staged(two), [open_staged(two, "mal") for _ in range(3)]
    told: list[Any] = []
    asked = requests(two.second, two.submit_in_second, 2)
    for later, wait_ms in ((0, 200), (100, 50), (101, 50)):
        asked.prepare(GroupWrite("mal", 0, decider + later, [(mine.pop(), 2)]), told.append)
        two.run(wait_ms)
    done: list[Any] = []
    for _ in range(10):
        asked.prepare(GroupWrite("q", 0, decider, [(attempt, 2)]), done.append)
        two.run(50)
    two.run(500)
    assert 2 in done
    assert [each.reason for each in told] == [Reason.ILLEGAL] * 3
    assert commit_at(two, two.first, decider) == [CommitAnswer(0, earlier=False)]
    two.run(500)
    assert states(two)[attempt] == "prepared"


def test_the_first_group_prepares_nothing(two: Two) -> None:
    told: list[Any] = []
    first = requests(two.first, two.first.submit, 1)
    first.prepare(GroupWrite("q", 0, decider_of(two), [(1, 0)]), told.append)
    two.run(500)
    [refused] = told
    assert refused.reason is Reason.ILLEGAL
    assert two.first.log.one(CommitWrite("q", 0, 9, [(1, 0)])).ok
