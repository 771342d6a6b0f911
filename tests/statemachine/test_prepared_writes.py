"""Writes to several groups: prepared in each, decided once in the first, and never one way here and another there."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jepsen_like.fakes.memory_kv import MemoryKV
from statemachine.broker_state import BrokerState
from statemachine.cluster_wide.broker_groups import AddBrokerGroup
from statemachine.commands import CommandResult
from statemachine.delivery.prepared_writes import (
    PREPARED_MAX,
    CommitGroups,
    ConfirmWrite,
    DecideWrite,
    Decision,
    EndPrepared,
    ForgetPrepared,
    PreparedState,
    PreparedWrite,
    PrepareWrite,
)
from statemachine.delivery.staged_writes import (
    STAGED_DUE,
    AttemptState,
    CommitWrite,
    DiscardAttempts,
    ForgetWrite,
    OpenAttempt,
)
from statemachine.delivery.timers import DropStaged
from statemachine.removal_slices import Expire
from statemachine.rows.kv import KV
from statemachine.rows.running_digest import count as count_sums
from statemachine.topics.topics import CreateTopic
from tests.support.truth_kit import SECOND, BrokerLog, copy_all

NewLog = Callable[[], Any]


class Group(BrokerLog):
    """A group with the topic 1, and what a driver asks of it."""

    def open(self, write: int = 0, name: str = "q") -> int:
        result = self.one(OpenAttempt(name, write, 5))
        assert result.ok, result
        number: int = result.value
        return number

    def stage(self, number: int, count: int) -> int:
        """The position of the row."""
        position: int = self.log.tail.end_position
        self.state.apply([self.log.messages(self.log.scheduled(1, 0, count, STAGED_DUE + number))])
        return position

    def staged(self, count: int, write: int = 0) -> tuple[int, int]:
        """An attempt with messages, as a winner."""
        number = self.open(write)
        self.stage(number, count)
        return number, count

    def prepare(self, decider: int, *winners: tuple[int, int], write: int = 0, name: str = "q") -> CommandResult:
        return self.one(PrepareWrite(name, write, 6, decider, winners))

    def commit(self, decider: int, *winners: tuple[int, int], write: int = 0, groups: Any = (2,)) -> CommandResult:
        return self.one(CommitGroups("q", write, 7, decider, winners, groups))

    def decision(self, decider: int, *, write: int = 0, group: int = 2, abort: bool = False) -> str:
        result = self.one(DecideWrite("q", write, decider, group, abort))
        assert result.ok
        return str(result.value)

    def states(self) -> dict[int, str]:
        return {one.number: one.state.name.lower() for one in self.state.writes.attempts()}


class Pair:
    """The first group and the second."""

    def __init__(self, new_log: NewLog) -> None:
        self.first, self.second = Group(new_log()), Group(new_log(), 2)
        self.first.one(SECOND)
        self.first.one(CreateTopic({"name": "t", "place": [[1, 2, 2], [2, 2, 2]]}, False))
        self.first.make_ready()
        copy_all(self.first, self.second)


@pytest.fixture
def pair(new_log: NewLog) -> Pair:
    return Pair(new_log)


def test_a_write_is_prepared_decided_followed_and_forgotten(pair: Pair) -> None:
    first, second = pair.first, pair.second
    decider, mine, theirs, loser = first.open(), first.staged(2), second.staged(3), second.staged(1)
    prepared = second.prepare(decider, theirs)
    assert prepared == (True, "", 3)
    wanted = PreparedWrite(decider, PreparedState.UNDECIDED, 0, 1, 3, 6, "q")
    for _ in range(2):
        assert dict(second.state.prepared_writes.prepared) == {decider: wanted}
        assert second.states() == {theirs[0]: "prepared", loser[0]: "open"}
        assert second.state.writes.draining == {}
        second.restart()
    assert first.decision(decider) == "open"
    assert first.commit(decider, mine) == (True, "", 2)
    for _ in range(2):
        assert dict(first.state.prepared_writes.decisions) == {decider: Decision(decider, 0, 7, (2,), "q")}
        assert first.states() == {mine[0]: "committed"}
        first.restart()
    assert first.decision(decider) == "committed"
    assert first.decision(decider, group=3) == "aborted", "it has no part in it"
    assert second.one(EndPrepared(decider, True, 9)).value is True
    assert second.states() == {theirs[0]: "committed", loser[0]: "discarded"}
    committed = second.state.writes.committed("q")
    assert committed is not None
    assert committed[1:] == (0, 3, 9)
    assert second.state.prepared_writes.prepared[decider].state is PreparedState.COMMITTED
    assert [second.one(EndPrepared(decider, ok, 9)).value for ok in (True, False)] == [False, False]
    assert first.one(ConfirmWrite(decider, 2)).ok
    assert first.one(ConfirmWrite(decider, 2)).code == "not_found"
    assert [second.one(ForgetPrepared(decider)).value for _ in range(2)] == [True, False]
    for group in (first, second):
        for _ in range(2):
            found = group.state.prepared_writes
            assert (dict(found.prepared), dict(found.decisions)) == ({}, {})
            group.restart()
    assert second.prepare(decider, theirs).code == "committed", "it comes late"


def test_what_is_prepared_ends_only_by_the_decision(pair: Pair) -> None:
    second = pair.second
    decider, theirs = pair.first.open(), second.staged(2)
    assert second.prepare(decider, theirs).ok
    pinned = second.state.lowest_pinned_position()
    assert pinned is not None
    second.log.now_ms += 10**12
    tried = [
        DiscardAttempts([theirs[0]]),
        DropStaged(theirs[0], 9),
        CommitWrite("q", 0, 9, [theirs]),
        CommitWrite("q", 5, 9, []),
        ForgetPrepared(decider),
        Expire(2**62),
    ]
    results = second.run(*tried)
    assert [each.code for each in results[2:4]] == ["incomplete", "prepared"]
    second.stage(theirs[0], 4)
    second.restart()
    assert second.states() == {theirs[0]: "prepared"}
    assert second.state.lowest_pinned_position() == pinned
    assert second.prepare(decider, theirs) == (True, "", 2), "it is repeated"
    second.one(EndPrepared(decider, False, 9))
    assert second.states() == {theirs[0]: "discarded"}
    assert dict(second.state.prepared_writes.prepared) == {}
    assert second.prepare(decider, theirs).code == "incomplete", "it comes late"


@pytest.mark.parametrize("how", ["discard", "decide", "later write"])
def test_an_abort_of_the_first_group_keeps_a_late_commit_out(pair: Pair, how: str) -> None:
    first = pair.first
    decider, mine = first.open(), first.staged(1)
    if how == "discard":
        first.one(DiscardAttempts([decider]))
    elif how == "decide":
        assert first.decision(decider, abort=True) == "aborted"
    else:
        assert first.one(CommitWrite("q", 4, 9, [])).ok
    assert first.commit(decider, mine).code == ("committed" if how == "later write" else "incomplete")
    assert first.decision(decider) == "aborted"
    assert dict(first.state.prepared_writes.decisions) == {}


def test_a_commit_keeps_a_late_abort_out(pair: Pair) -> None:
    first = pair.first
    decider = first.open()
    assert first.commit(decider).ok
    first.one(DiscardAttempts([decider]))
    assert first.decision(decider, abort=True) == "committed"
    again = first.commit(decider)
    assert (again.code, again.value) == ("committed", 0)


def test_a_name_has_one_prepared_write(pair: Pair) -> None:
    first, second = pair.first, pair.second
    one, two = first.open(), first.open(1)
    theirs, later = second.staged(1), second.staged(1, 1)
    assert second.prepare(one, theirs).ok
    refused = second.prepare(two, later, write=1)
    assert (refused.code, refused.value) == ("prepared", one)
    assert second.prepare(one, theirs, later).code == "incomplete", "other attempts under the same decider"
    second.one(EndPrepared(one, True, 9))
    assert second.one(ForgetWrite("q")).ok, "it is decided"
    assert second.prepare(two, later, write=1).ok
    assert second.one(ForgetWrite("q")).code == "not_found"
    second.one(EndPrepared(two, True, 9))
    assert {each.decider for each in second.state.prepared_writes.prepared.values()} == {one, two}


def test_a_name_is_not_forgotten_while_a_write_of_it_is_prepared(pair: Pair) -> None:
    second = pair.second
    assert second.one(CommitWrite("q", 0, 9, [])).ok
    assert second.prepare(pair.first.open(1), second.staged(1, 1), write=1).ok
    assert second.one(ForgetWrite("q")).code == "prepared"


def test_commands_of_one_group_are_refused_in_another(pair: Pair) -> None:
    first, second = pair.first, pair.second
    decider, mine, theirs = first.open(), first.staged(1), second.staged(1)
    assert first.prepare(decider, mine).code == "refused"
    assert second.commit(decider, theirs).code == "refused"
    assert second.one(DecideWrite("q", 0, decider, 2, True)).code == "refused"
    assert second.one(ConfirmWrite(decider, 2)).code == "refused"
    assert first.states() == {decider: "open", mine[0]: "open"}
    assert second.states() == {theirs[0]: "open"}


@pytest.mark.parametrize("groups", [(), (2, 2), (3,), (1,)])
def test_a_decision_names_other_groups_that_there_are(pair: Pair, groups: tuple[int, ...]) -> None:
    first = pair.first
    decider = first.open()
    assert first.commit(decider, groups=groups).code == "invalid"
    assert first.states() == {decider: "open"}


def test_a_decision_waits_for_each_group(pair: Pair) -> None:
    first = pair.first
    first.one(AddBrokerGroup(64, "c", None))
    decider = first.open()
    assert first.commit(decider, groups=(64, 2)).ok
    assert first.one(ConfirmWrite(decider, 2)).ok
    first.restart()
    assert first.state.prepared_writes.decisions[decider].groups == (64,)
    assert [first.decision(decider, group=group) for group in (2, 64)] == ["aborted", "committed"]


def test_a_decider_has_no_messages(pair: Pair) -> None:
    first = pair.first
    number, _ = first.staged(1)
    assert first.commit(number).code == "incomplete"
    assert first.decision(number) == "open"


def test_the_answer_is_about_the_write_that_was_prepared(pair: Pair) -> None:
    first = pair.first
    decider = first.open(5)
    assert first.decision(decider, write=4, abort=True) == "aborted"
    assert first.states() == {decider: "open"}
    assert first.commit(decider, write=5).ok
    assert first.decision(decider, write=4) == "aborted"


def test_too_many_prepared_writes_are_refused(pair: Pair) -> None:
    first, second = pair.first, pair.second
    names = [f"name{number}" for number in range(PREPARED_MAX + 1)]
    opened = [OpenAttempt(name, 0, 5) for name in names]
    attempts, deciders = ([result.value for result in group.run(*opened)] for group in (second, first))
    for attempt in attempts:
        second.stage(attempt, 1)
    each = zip(names, deciders, attempts, strict=True)
    found = second.run(*[PrepareWrite(name, 0, 6, decider, ((attempt, 1),)) for name, decider, attempt in each])
    assert all(result.ok for result in found[:PREPARED_MAX])
    assert found[PREPARED_MAX].code == "full"


def test_losers_may_be_discarded_by_slices_but_not_what_is_prepared(pair: Pair) -> None:
    first, second = pair.first, pair.second
    theirs = second.staged(2)
    others = [second.staged(1)[0] for _ in range(20)]
    decider = first.open()
    assert second.prepare(decider, theirs).ok
    second.one(EndPrepared(decider, True, 9))
    assert second.states() == {theirs[0]: "committed"} | dict.fromkeys(others, "discarded")


class Story:
    """A driver, or two that think they are the only one, and leaders of both groups that come and go: each step is one
    of the things that may happen, in any order and however often."""

    def __init__(self, pair: Pair, rng: Random, rows_of: Callable[[KV], object]) -> None:
        self.rows_of = rows_of
        self.first, self.second, self.rng = pair.first, pair.second, rng
        self.deciders: dict[int, tuple[int, list[tuple[int, int]], list[tuple[int, int]]]] = {}
        """Decider -> the write, and its winners in both groups."""
        self.answers: list[tuple[int, bool]] = []
        """Decisions on their way to the second group; each may come twice, and late."""
        self.committed: set[int] = set()
        self.ended: dict[int, bool] = {}
        self.told: set[int] = set()
        """Deciders whose driver knows that the second group has prepared."""

    def some(self) -> int:
        return self.rng.choice(sorted(self.deciders)) if self.deciders else 1

    def step(self) -> None:
        rng, first, second = self.rng, self.first, self.second
        decider = self.some()
        write, mine, theirs = self.deciders.get(decider, (0, [], []))
        match rng.randrange(13):
            case 0 | 1:
                write = rng.randrange(3)
                opened = first.one(OpenAttempt("q", write, 5))
                ours = second.one(OpenAttempt("q", write, 5))
                if opened.ok and ours.ok:
                    second.stage(ours.value, 2)
                    here = [first.staged(1, write)] if rng.random() < 0.5 else []
                    self.deciders[opened.value] = (write, here, [(ours.value, 2)])
            case 2 | 3 | 4 if theirs:
                if second.prepare(decider, *theirs, write=write).ok:
                    self.told.add(decider)
            case 5 | 6 if decider in self.told:  # which may be long ago
                if first.commit(decider, *mine, write=write).ok:
                    self.committed.add(decider)
            case 7:
                first.run(rng.choice([DiscardAttempts([decider]), CommitWrite("q", rng.randrange(3), 9, [])]))
            case 8 | 9:
                self.ask()
            case 10 if self.answers:
                number, committed = rng.choice(self.answers)
                self.follow(number, committed)
            case 11:
                rng.choice([first, second]).restart()
            case 12:
                second.run(DiscardAttempts([number for number, _ in theirs]), CommitWrite("q", write, 9, theirs[:0]))

    def ask(self) -> None:
        for each in list(self.second.state.prepared_writes.prepared.values()):
            if each.state is PreparedState.COMMITTED:
                self.first.one(ConfirmWrite(each.decider, 2))
                self.second.one(ForgetPrepared(each.decider))
                continue
            abort = self.rng.random() < 0.2
            told = self.first.decision(each.decider, write=each.write, abort=abort)
            assert (told == "committed") == (each.decider in self.committed), "the decision, and nothing else"
            if told != "open":
                self.answers.append((each.decider, told == "committed"))

    def follow(self, decider: int, committed: bool) -> None:
        was = self.second.state.prepared_writes.prepared.get(decider)
        if self.second.one(EndPrepared(decider, committed, 9)).value:
            assert was is not None
            assert decider not in self.ended, "it ends once"
            self.ended[decider] = committed

    def check(self) -> None:
        """What is prepared, and neither more nor less, is prepared in the list of attempts, too."""
        undecided = {
            each.decider
            for each in self.second.state.prepared_writes.prepared.values()
            if each.state is PreparedState.UNDECIDED
        }
        attempts = {one.number for one in self.second.state.writes.attempts() if one.state is AttemptState.PREPARED}
        assert attempts == {number for decider in undecided for number, _ in self.deciders[decider][2]}
        for decider, committed in self.ended.items():
            assert committed == (decider in self.committed)

    def finish(self) -> None:
        """Everybody is up again: all is decided and followed."""
        for _ in range(3):
            for each in list(self.second.state.prepared_writes.prepared.values()):
                self.first.decision(each.decider, write=each.write, abort=True)
            self.ask()
            for decider, committed in self.answers:
                self.follow(decider, committed)
        self.check()
        assert self.committed <= {number for number, ok in self.ended.items() if ok}, "a commit is followed"
        for group in (self.first, self.second):
            found = group.state.prepared_writes
            assert (dict(found.prepared), dict(found.decisions)) == ({}, {})
            assert dict(group.state.sums.totals) == count_sums(group.kv)

    def replay(self, group: Group) -> None:
        """Applies the log of a group again, however it is cut into runs: rows do not depend on it."""
        kv, at = MemoryKV(), 0
        entries, state = group.log.entries, BrokerState(kv, group=group.group)
        while at < len(entries):
            size = self.rng.choice([1, 2, 5, 20])
            if self.rng.random() < 0.2:
                state = BrokerState(kv, group=group.group)
            state.apply(entries[at : at + size])
            at += size
        assert self.rows_of(kv) == self.rows_of(group.kv)
        assert dict(state.sums.totals) == count_sums(kv)
        for each in (state, BrokerState(kv, group=group.group)):
            assert list(each.writes.attempts()) == list(group.state.writes.attempts())
            assert dict(each.prepared_writes.prepared) == dict(group.state.prepared_writes.prepared)
            assert dict(each.prepared_writes.decisions) == dict(group.state.prepared_writes.decisions)
            assert each.writes.draining == group.state.writes.draining


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_no_order_of_events_commits_here_and_aborts_there(
    new_log: NewLog, rows_of: Callable[[KV], object], seed: int
) -> None:
    story = Story(Pair(new_log), Random(seed), rows_of)
    for _ in range(80):
        story.step()
        story.check()
    if seed % 2:
        story.finish()
    story.replay(story.first)
    story.replay(story.second)
