"""The log of a group of brokers that drains is closed, and the group retires (docs/adr/0113)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.errors import InvariantViolationError
from statemachine.cluster_wide.broker_groups import (
    AddBrokerGroup,
    BrokerGroup,
    DrainBrokerGroup,
    GroupState,
    RetireBrokerGroup,
    active_groups,
    living_groups,
)
from statemachine.cluster_wide.closed_log import CloseBrokerGroup, LogEnd
from statemachine.delivery.prepared_writes import CommitGroups
from statemachine.rows import meta_keys
from statemachine.rows.kv import META
from statemachine.topics.topics import CreateTopic
from tests.support.state_kit import applied_in_groups
from tests.support.truth_kit import SECOND, BrokerLog, copy_all

NewLog = Callable[[], Any]
CLOSING = 2


class TwoGroups:
    """The first group, and the second one, which has copied all and has topic 1."""

    def __init__(self, new_log: NewLog) -> None:
        self.first, self.second = BrokerLog(new_log()), BrokerLog(new_log(), group=CLOSING)
        self.first.run(SECOND, AddBrokerGroup(3, "c", None), CreateTopic({"name": "t", "place": [[2, 2, 2]]}, False))
        copy_all(self.first, self.second)

    def drain(self, *, draining: bool = True, at_ms: int = 7_000_000) -> None:
        """Begins or ends a drain."""
        self.first.log.now_ms = at_ms
        assert self.first.one(DrainBrokerGroup(CLOSING, draining)).ok
        copy_all(self.first, self.second)

    @property
    def since_ms(self) -> int:
        """The drain that the second group knows."""
        return self.second.state.broker_groups.by_number[CLOSING].since_ms

    def store(self) -> int:
        """Stores messages in the second group; the index of their entry."""
        log = self.second.log
        self.second.state.apply([log.messages(log.run(1, 0, 2))])
        return self.second.state.applied.index

    def close(self, checked: int, *, force: bool = False) -> Any:
        """The result of closing the second group's log, for the drain that it knows."""
        return self.second.one(CloseBrokerGroup(self.since_ms, checked, force))


@pytest.fixture
def groups(new_log: NewLog) -> TwoGroups:
    made = TwoGroups(new_log)
    made.store()
    return made


def test_a_log_is_closed_once_nothing_came_after_the_look(groups: TwoGroups) -> None:
    groups.drain()
    last = groups.store()
    refused = groups.close(last - 1)
    assert (refused.code, f"stored in entry {last}" in refused.value) == ("refused", True)
    assert not groups.second.state.closed_log.is_closed
    assert groups.close(last) == (True, "", LogEnd(last, 7_000_000, False))
    assert groups.second.state.closed_log.is_closed
    groups.second.restart()
    assert groups.second.state.closed_log.end == LogEnd(last, 7_000_000, False)
    assert groups.close(0, force=True).value == LogEnd(last, 7_000_000, False), "it stays as it is"


def test_a_message_in_a_closed_log_is_a_broken_invariant(groups: TwoGroups) -> None:
    groups.drain()
    groups.close(groups.second.state.applied.index)
    log = groups.second.log
    groups.second.state.apply([log.messages()])  # the end of a session has no messages
    with pytest.raises(InvariantViolationError, match="messages after the log was closed"):
        groups.store()


def test_what_waits_counts_as_a_message(groups: TwoGroups) -> None:
    groups.drain()
    groups.store()
    log, checked = groups.second.log, groups.second.state.applied.index
    groups.second.state.apply([log.messages(log.scheduled(1, 0, 1, 9_000_000))])
    assert groups.close(checked).code == "refused"


def test_only_the_drain_that_is_under_way_ends_in_it(groups: TwoGroups) -> None:
    index = groups.second.state.applied.index
    assert groups.second.one(CloseBrokerGroup(0, index, False)).code == "refused", "it is active"
    groups.drain()
    groups.store()
    before_ms = groups.since_ms
    groups.drain(draining=False)
    groups.drain(at_ms=8_000_000)
    index = groups.second.state.applied.index
    assert groups.second.one(CloseBrokerGroup(before_ms, index, False)).code == "refused", "another drain"
    assert groups.close(0).value == LogEnd(0, 8_000_000, False), "no message since this one began"


def test_the_first_group_has_no_log_to_close(groups: TwoGroups) -> None:
    assert groups.first.one(CloseBrokerGroup(0, 99, True)).code == "refused"


def test_rows_of_a_log_that_drains_and_is_closed(groups: TwoGroups) -> None:
    def row() -> Any:
        found = groups.second.kv.get(META, meta_keys.CLOSED_KEY)
        return None if found is None else msgpack.unpackb(found)

    assert row() is None, "a group that drains nothing has the rows of before"
    groups.drain()
    assert row() is None
    last = groups.store()
    assert row() == [last, 7_000_000]
    groups.close(last, force=True)
    assert row() == [last, 7_000_000, True]


@pytest.mark.parametrize("state", [GroupState.ACTIVE, GroupState.DRAINING])
def test_a_group_retires_for_ever(groups: TwoGroups, state: GroupState) -> None:
    first, second = groups.first, groups.second
    if state is GroupState.DRAINING:
        groups.drain()
    first.log.now_ms = 9_000_000
    retired = BrokerGroup("raftmq-g02", 3, GroupState.RETIRED, 9_000_000)
    assert first.one(RetireBrokerGroup(CLOSING)).value == retired
    first.log.now_ms = 9_900_000
    assert first.one(RetireBrokerGroup(CLOSING)).value == retired, "asked again"
    assert [first.one(DrainBrokerGroup(CLOSING, draining)).code for draining in (True, False)] == ["refused"] * 2
    copy_all(first, second)
    assert second.state.broker_groups.by_number == first.state.broker_groups.by_number
    for each in (first, second):
        each.restart()
        groups_now = each.state.broker_groups.by_number
        assert groups_now[CLOSING] == retired
        assert (active_groups(groups_now), living_groups(groups_now)) == ({1, 3}, {1, 3})


def test_only_a_further_group_that_is_there_retires(groups: TwoGroups) -> None:
    codes = [groups.first.one(RetireBrokerGroup(number)).code for number in (1, 4, 65)]
    assert codes == ["invalid", "not_found", "invalid"]
    assert groups.second.one(RetireBrokerGroup(CLOSING)).code == "refused"


def test_number_and_name_of_a_group_that_has_retired_are_never_used_again(groups: TwoGroups) -> None:
    groups.first.run(RetireBrokerGroup(CLOSING))
    added = [AddBrokerGroup(2, "other", None), AddBrokerGroup(4, "raftmq-g02", None), AddBrokerGroup(4, "d", None)]
    assert [groups.first.one(each).code for each in added] == ["exists", "invalid", ""]


@pytest.mark.parametrize("name", ["t", "new", "%RETRY%g", "TRANS_CHECK_MAX_TIME_TOPIC"])
def test_no_topic_gets_queues_in_a_group_that_has_retired(groups: TwoGroups, name: str) -> None:
    groups.first.run(RetireBrokerGroup(CLOSING))
    result = groups.first.one(CreateTopic({"name": name, "place": [[1, 1, 1], [CLOSING, 4, 4]]}, False))
    assert (result.code, result.value) == ("invalid", "place: group 2 has retired, and takes no topic")
    assert groups.first.one(CreateTopic({"name": name, "place": [[1, 1, 1]]}, False)).ok


def test_no_write_to_several_groups_names_one_that_has_retired(groups: TwoGroups) -> None:
    groups.first.run(RetireBrokerGroup(CLOSING))
    result = groups.first.one(CommitGroups("query", 5, 5, 1, [], [CLOSING]))
    assert (result.code, result.value) == ("invalid", "there is no group 2")


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), grouping=st.integers(0, 2**32))
def test_a_closed_log_depends_on_its_entries_alone(new_log: NewLog, seed: int, grouping: int) -> None:
    """However they are applied, and whichever leader proposed what: no message follows the close that took effect, and
    none lies between the look and the close."""
    rng, groups = Random(seed), TwoGroups(new_log)
    during, closed_at = list[int](), 0
    for step in range(40):
        draw = rng.random()
        if draw < 0.25:
            before_ms = groups.since_ms
            groups.drain(draining=rng.random() < 0.7, at_ms=7_000_000 + step)
            if groups.since_ms != before_ms:
                during.clear()
        elif draw < 0.6 and not closed_at:
            during.append(groups.store())
        elif draw < 0.9:
            row = groups.second.state.broker_groups.by_number[CLOSING]
            checked = max(0, groups.second.state.applied.index - rng.choice([0, 0, 1, 3]))
            since = row.since_ms if rng.random() < 0.8 else 6
            result = groups.second.one(CloseBrokerGroup(since, checked, rng.random() < 0.3))
            last = max(during, default=0)
            may = row.state is GroupState.DRAINING and since == row.since_ms and last <= checked
            assert result.ok is (may or bool(closed_at))
            if may and not closed_at:
                closed_at = groups.second.state.applied.index
                assert result.value[:2] == (last, since)
        else:
            groups.second.restart()
    assert groups.second.state.closed_log.is_closed is bool(closed_at)
    state, kv = applied_in_groups(groups.second.log.entries, grouping, group=CLOSING)
    assert state.closed_log.end == groups.second.state.closed_log.end
    assert kv.get(META, meta_keys.CLOSED_KEY) == groups.second.kv.get(META, meta_keys.CLOSED_KEY)
    assert state.sums.totals == groups.second.state.sums.totals
