"""Resets of offsets in the state: what they hold back, and what ends them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statemachine.broker_state import BrokerState
from statemachine.commands import CommandResult
from statemachine.consuming.consumer_offsets import CommitOffsets, ResetOffsets
from statemachine.consuming.groups import PutGroup
from statemachine.consuming.offset_resets import EndResets, OffsetReset
from statemachine.removal_slices import DeleteGroup, DeleteTopic
from statemachine.rows.digest import digest
from statemachine.topics.topics import CreateTopic
from tests.support.rows import each_row
from tests.support.state_kit import FedState


class Broker(FedState):
    """A state with topic 1 of two queues and the group g, and the log that feeds it."""

    def __init__(self, log: Any) -> None:
        super().__init__(log)
        self.run(PutGroup({"name": "g"}, True))

    def commit(self, offset: int, queue: int = 0) -> CommandResult:
        return self.run(CommitOffsets([("g", 1, queue, offset)]))[0]

    def reset(self, offset: int, now_ms: int, queue: int = 0) -> CommandResult:
        return self.run(ResetOffsets("g", now_ms, [(1, queue, offset)]))[0]

    def end(self, number: int, queue: int = 0) -> Any:
        return self.run(EndResets("g", [(1, queue, number)]))[0].value

    def offset(self, queue: int = 0) -> int | None:
        return self.state.offset("g", 1, queue)


@pytest.fixture
def broker(new_log: Callable[[], Any]) -> Broker:
    return Broker(new_log())


def test_commits_are_left_out_until_the_consumer_knows(broker: Broker) -> None:
    broker.commit(50)
    assert not broker.state.has_resets
    assert broker.reset(10, 1000).value == 1
    assert (broker.offset(), broker.state.resets_of_group("g")) == (10, {(1, 0): OffsetReset(10, 1000)})
    assert broker.commit(60) == CommandResult(True, "reset", 0)
    assert broker.offset() == 10
    assert broker.end(1000) == 1
    assert not broker.state.has_resets
    assert broker.commit(11) == CommandResult(True, "", 1)
    assert broker.offset() == 11


def test_other_queues_and_groups_go_on(broker: Broker) -> None:
    broker.run(PutGroup({"name": "h"}, True))
    broker.reset(10, 1)
    rows = [("g", 1, 0, 60), ("g", 1, 1, 7), ("h", 1, 0, 8)]
    assert broker.run(CommitOffsets(rows))[0] == CommandResult(True, "reset", 2)
    assert (broker.offset(), broker.offset(1), broker.state.offset("h", 1, 0)) == (10, 7, 8)


def test_a_deleted_topic_weighs_more_than_a_reset_in_the_answer(broker: Broker) -> None:
    broker.reset(10, 1)
    assert broker.run(CommitOffsets([("g", 1, 0, 60), ("g", 9, 0, 1)]))[0] == CommandResult(False, "not_found", 0)


def test_the_end_of_a_reset_does_not_end_the_next(broker: Broker) -> None:
    broker.reset(10, 1000)
    broker.reset(20, 1000)
    assert broker.state.resets_of_group("g") == {(1, 0): OffsetReset(20, 1001)}
    assert broker.end(1000) == 0
    broker.commit(60)
    assert broker.offset() == 20
    assert (broker.end(1001), broker.end(1001)) == (1, 0)


def test_a_commit_and_a_reset_in_one_entry_count_in_their_order(broker: Broker) -> None:
    commit = CommitOffsets([("g", 1, 0, 60)])
    reset = ResetOffsets("g", 1, [(1, 0, 10)])
    broker.run(commit, reset)
    assert broker.offset() == 10
    broker.run(EndResets("g", [(1, 0, 1)]), commit)
    assert broker.offset() == 60
    broker.run(ResetOffsets("g", 2, [(1, 0, 10)]), commit)
    assert broker.offset() == 10


def test_what_does_not_exist_is_not_reset(broker: Broker) -> None:
    result = broker.run(ResetOffsets("g", 1, [(1, 2, 0), (9, 0, 0), (1, 1, 3), (1, 1, 4)]))[0]
    assert result.value == 1
    assert broker.state.resets_of_group("g") == {(1, 1): OffsetReset(4, 1)}
    assert broker.run(ResetOffsets("nobody", 1, [(1, 0, 0)]))[0].code == "not_found"


@pytest.mark.parametrize("clean", [True, False])
def test_a_deleted_group_leaves_none_to_its_successor(broker: Broker, clean: bool) -> None:
    broker.reset(10, 1)
    broker.run(DeleteGroup("g", clean), PutGroup({"name": "g"}, True))
    assert not broker.state.has_resets
    broker.commit(60)
    assert broker.offset() == 60


def test_a_deleted_topic_takes_its_resets_along(broker: Broker) -> None:
    broker.reset(10, 1)
    broker.run(CreateTopic({"name": "u"}, True), ResetOffsets("g", 2, [(2, 0, 3)]))
    broker.run(DeleteTopic("t"))
    assert broker.state.resets_of_group("g") == {(2, 0): OffsetReset(3, 2)}


def test_who_waits_for_messages_of_a_queue_is_told(broker: Broker) -> None:
    entry = broker.log.command(ResetOffsets("g", 1, [(1, 1, 0)]))
    assert broker.state.apply([entry]).grown == {(1, 1)}


@each_row(
    "command",
    [
        ["reset_offsets", "g", -1, []],
        ["reset_offsets", "g", 1, None],
        ["reset_offsets", "g", 1, [[1, 0]]],
        ["reset_offsets", "g", 1, [[1, 0, -1]]],
        ["reset_offsets", "g", 1, [[1, 0, 2**63]]],
        ["reset_offsets", "g", 1, [[2**32, 0, 0]]],
        ["reset_offsets", "g", 1, [[1, 0, 0]] * 4097],
        ["reset_offsets", 5, 1, [[1, 0, 0]]],
        ["end_resets", "g", [[1, 0]]],
        ["end_resets", "g", 7],
        ["end_resets", "\0", []],
    ],
)
def test_what_is_no_reset_changes_nothing(broker: Broker, command: list[Any]) -> None:
    before = digest(broker.kv)
    assert not broker.raw(*command).ok
    assert digest(broker.kv) == before


_QUEUES = st.integers(0, 1)
_STEPS = st.one_of(
    st.builds(lambda q, o: CommitOffsets([("g", 1, q, o)]), _QUEUES, st.integers(0, 9)),
    st.builds(lambda q, o, t: ResetOffsets("g", t, [(1, q, o)]), _QUEUES, st.integers(0, 9), st.integers(0, 3)),
    st.builds(lambda q, n: EndResets("g", [(1, q, n)]), _QUEUES, st.integers(0, 5)),
    st.just(DeleteGroup("g", True)),
    st.just(PutGroup({"name": "g"}, True)),
)


@given(steps=st.lists(_STEPS, max_size=30), cuts=st.lists(st.booleans(), min_size=30, max_size=30))
def test_rows_do_not_depend_on_how_entries_are_grouped(new_log: Any, steps: list[Any], cuts: list[bool]) -> None:
    single, grouped = Broker(new_log()), Broker(new_log())
    entries: list[Any] = []
    for step, cut in zip(steps, cuts, strict=False):
        single.run(step)
        entries.append(grouped.log.command(step))
        if cut:
            grouped.state.apply(entries)
            entries = []
    grouped.state.apply(entries)
    assert digest(single.kv) == digest(grouped.kv)
    assert grouped.state.sums.totals == single.state.sums.totals
    opened = BrokerState(grouped.kv)
    assert opened.resets_of_group("g") == single.state.resets_of_group("g")
    for (topic, queue), reset in opened.resets_of_group("g").items():
        assert opened.offset("g", topic, queue) == reset.offset
