"""What a node of another group than the first is asked to change in the truth is done by the first group, and told once
the own group has copied it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.replication.outcome import Outcome, ProposeResult
from cluster.runtime.peer_frames import Kind, WireError
from cluster.truth.truth_acts import ACTS_MAX
from cluster.truth.truth_frames import PAYLOAD_MAX
from statemachine.cluster_wide.broker_groups import DrainBrokerGroup
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.commands import Command, pack
from statemachine.consuming.groups import PutGroup, Subscribe
from statemachine.levels import DRAINS_LEVEL
from statemachine.removal_slices import DeleteTopic
from statemachine.topics.topics import CreateTopic
from statemachine.truth import JournalNames
from tests.support.rows import each_row
from tests.support.truth_kit import SECOND
from tests.support.two_groups import DEADLINE_MS, Ends, Two


@pytest.fixture
def two(new_log: Any) -> Two:
    made = Two(new_log)
    made.first.log.one(SECOND)
    made.run(1000)
    return made


def ask(two: Two, *commands: Command, author: str = "") -> list[ProposeResult]:
    told: list[ProposeResult] = []
    two.acts.ask(list(commands), told.append, author)
    return told


def test_a_topic_is_made_in_the_first_group_with_queues_in_the_one_that_was_asked(two: Two) -> None:
    told = ask(two, CreateTopic({"name": "t", "read_queues": 3, "write_queues": 2}, True), author="ann")
    two.carry()
    assert not told
    two.first.decide()
    two.carry()
    assert not told, "it is done, and not here yet"
    two.carry()
    two.second.decide()
    two.acts.look()
    [result] = told
    assert result.outcome is Outcome.OK
    topic = two.second.log.state.topics["t"]
    assert [tuple(each) for each in result.results] == [(True, "", topic)]
    assert topic.queues_of_groups == {2: (3, 2)}
    assert two.first.authors[-1] == "ann"


def test_numbers_of_queues_are_those_of_the_group_that_was_asked(two: Two) -> None:
    first, state = two.first.log, two.second.log.state
    first.one(CreateTopic({"name": "both", "place": [[1, 8, 8], [2, 4, 4]]}, True))
    first.one(CreateTopic({"name": "one", "read_queues": 8, "write_queues": 8}, True))
    two.run(1000)
    for config in (
        {"name": "both", "read_queues": 5},
        {"name": "both", "perm": 4},
        {"name": "one", "read_queues": 2, "write_queues": 2},
        {"name": "both", "place": [[1, 9, 9]]},
    ):
        told = ask(two, CreateTopic(config, False))
        two.run(500)
        assert told[0].outcome is Outcome.OK
    assert state.topics["both"].queues_of_groups == {1: (9, 9), 2: (5, 4)}
    assert state.topics["both"].perm == 4
    assert state.topics["one"].queues_of_groups == {1: (8, 8), 2: (2, 2)}


def test_what_the_first_group_refuses_is_refused_with_its_words(two: Two) -> None:
    told = ask(two, DeleteTopic("nothing"), PutGroup({"name": "g"}, True))
    two.run(500)
    refused, made = told[0].results
    assert (refused.ok, refused.code) == (False, "not_found")
    assert (made.ok, made.value) == (True, two.second.log.state.groups["g"])


def test_without_a_leader_of_the_first_group_nothing_is_done(two: Two) -> None:
    two.back.is_open = False
    assert [each.outcome for each in ask(two, DeleteTopic("t"))] == [Outcome.FAIL]
    two.back.is_open = True
    two.first.leads = False
    told = ask(two, DeleteTopic("t"))
    two.carry()
    assert [(each.outcome, "does not lead" in each.remark) for each in told] == [(Outcome.FAIL, True)]
    two.first.leads = True
    told = ask(two, CreateTopic({"name": "t", "read_queues": 1, "write_queues": 1}, True))
    two.carry()
    two.first.decide(Outcome.UNKNOWN)
    two.carry()
    assert [each.outcome for each in told] == [Outcome.UNKNOWN]


def test_what_is_not_answered_is_unknown_and_a_late_answer_changes_nothing(two: Two) -> None:
    told = ask(two, CreateTopic({"name": "t", "read_queues": 1, "write_queues": 1}, True))
    two.carry()
    two.now_ms += DEADLINE_MS - 1
    two.acts.tick(two.now_ms)
    assert not told
    two.now_ms += 1
    two.acts.tick(two.now_ms)
    assert [each.outcome for each in told] == [Outcome.UNKNOWN]
    two.run(1000)
    assert len(told) == 1
    assert "t" in two.second.log.state.topics


def test_what_is_done_is_told_at_the_deadline_if_it_cannot_be_copied(two: Two) -> None:
    told = ask(two, PutGroup({"name": "g"}, True))
    two.carry()
    two.first.decide()
    two.back.is_open = False
    two.run(DEADLINE_MS)
    assert [(each.outcome, each.results[0].ok) for each in told] == [(Outcome.OK, True)]
    assert "g" not in two.second.log.state.groups


def test_waiting_acts_are_bounded(two: Two) -> None:
    for _ in range(ACTS_MAX):
        ask(two, DeleteTopic("t"))
    assert ask(two, DeleteTopic("t"))[0].outcome is Outcome.FAIL
    two.run(DEADLINE_MS + 1000)
    told = ask(two, DeleteTopic("t"))
    two.run(500)
    assert told[0].outcome is Outcome.OK
    long = PutGroup({"name": "g", "attributes": {str(n): "x" * 1000 for n in range(1000)}}, True)
    assert (ask(two, long)[0].unacceptable, len(pack([long])) > PAYLOAD_MAX) == (True, True)


def test_a_first_group_that_is_not_raised_yet_takes_no_act_of_a_later_level(new_log: Any) -> None:
    """`finalize` raises it last."""
    two = Two(new_log, first=DRAINS_LEVEL - 1, second=DRAINS_LEVEL)
    two.first.log.one(SECOND)
    two.run(1000)
    told = ask(two, DrainBrokerGroup(2, draining=True))
    two.run(1000)
    assert told[0].outcome is Outcome.FAIL
    assert "group 1 has level 14, and this needs 15: raftmq upgrade finalize; nothing was done" in told[0].remark
    assert not [each for each in two.first.proposed if isinstance(each, DrainBrokerGroup)]
    two.first.log.one(Finalize(DRAINS_LEVEL))
    told = ask(two, DrainBrokerGroup(2, draining=True))
    two.run(1000)
    assert (told[0].outcome, two.second.log.state.broker_groups.by_number[2].is_active) == (Outcome.OK, False)


@each_row(
    ("header", "payload"),
    [
        ([], pack([DeleteTopic("t")])),
        ([1], pack([DeleteTopic("t")])),
        ([-1, ""], pack([DeleteTopic("t")])),
        ([1, 5], pack([DeleteTopic("t")])),
        ([1, ""], b""),
        ([1, ""], b"\xc1"),
        ([1, ""], msgpack.packb([["no_command"]])),
        ([1, ""], msgpack.packb([["delete_topic", 5]])),
        ([1, ""], pack([Subscribe("g", [])])),
        ([1, ""], pack([DeleteTopic("t"), JournalNames(5)])),
        ([1, ""], b"\x91" * 5000),
        ([1, ""], bytes(PAYLOAD_MAX + 1)),
    ],
)
def test_acts_that_are_none(two: Two, header: list[Any], payload: bytes) -> None:
    with pytest.raises(WireError):
        two.taken.on_act(two.there, header, payload)
    assert not two.first.proposed


@each_row(
    ("header", "payload"),
    [
        ([1, 0, 5], b"\x90"),
        ([1, 3, 5, ""], b"\x90"),
        ([1, 0, -1, ""], b"\x90"),
        ([1, 0, 5, ""], b""),
        ([1, 0, 5, ""], b"\x91\x93\x01\xa0\xc0"),
        ([1, 0, 5, ""], b"\x90"),
    ],
)
def test_answers_that_are_none(two: Two, header: list[Any], payload: bytes) -> None:
    told = ask(two, DeleteTopic("t"))
    with pytest.raises(WireError):
        two.acts.on_reply(two.back, header, payload)
    assert not told
    two.acts.on_reply(Ends(1), [1, 0, 5, ""], msgpack.packb([[True, "", None]]))
    assert not told, "another connection answers"


@given(st.lists(st.integers() | st.booleans() | st.text() | st.none(), max_size=5), st.binary(max_size=200))
def test_whatever_comes_is_an_act_or_an_error(new_log: Any, header: list[Any], payload: bytes) -> None:
    two = Two(new_log)
    with suppress(WireError):
        two.taken.on_act(two.there, header, payload)
    with suppress(WireError):
        two.acts.on_reply(two.back, header, payload)
    assert {kind for kind, *_ in two.there.take()} <= {Kind.ACT_REPLY}
