"""Topics that are only read in a group of brokers, and leave it (docs/adr/0114)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from statemachine.cluster_wide.broker_groups import AddBrokerGroup, DrainBrokerGroup
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.levels import GATHERS_LEVEL
from statemachine.topics.topics import CreateTopic
from tests.support.truth_kit import SECOND, BrokerLog, copy_all

BOTH = [[1, 2, 2], [2, 3, 3]]


@pytest.fixture
def first(new_log: Callable[[], Any]) -> BrokerLog:
    made = BrokerLog(new_log())
    made.run(SECOND, AddBrokerGroup(3, "c", None))
    made.make_ready()
    assert put(made, BOTH).ok
    return made


def put(broker: BrokerLog, place: list[list[int]] | None = None, **fields: Any) -> Any:
    config = {"name": "t", **fields} if place is None else {"name": "t", "place": place}
    return broker.one(CreateTopic(config, False))


def test_a_topic_is_read_out_and_leaves(first: BrokerLog, new_log: Callable[[], Any]) -> None:
    second = BrokerLog(new_log(), group=2)
    topic = put(first, [[2, 3, 0]]).value
    assert (topic.place, topic.written_groups) == ({1: (2, 2), 2: (3, 0)}, {1})
    copy_all(first, second)
    there = second.state.topics["t"]
    assert (there.read_queues, there.write_queues, there.queues, there.is_read_out) == (3, 0, 3, True)
    assert [first.state.topics_gathered, second.state.topics_gathered] == [1, 1]
    first.restart()
    assert (first.state.topics["t"], first.state.topics_gathered) == (topic, 1)
    assert put(first, [[2, 0, 0]]).value.queues_of_groups == {1: (2, 2)}
    copy_all(first, second)
    assert (second.state.topics["t"].queues, second.state.topics["t"].is_read_out) == (0, False)
    assert [first.state.topics_gathered, second.state.topics_gathered] == [0, 0]


def test_it_leaves_no_group_in_which_it_takes_messages(first: BrokerLog) -> None:
    """As after a spread that came between the question and the answer."""
    assert put(first, [[2, 0, 0]]).code == "invalid"
    put(first, [[2, 3, 0]])
    assert put(first, [[2, 3, 3]]).value.written_groups == {1, 2}
    assert put(first, [[2, 0, 0]]).code == "invalid"
    assert first.state.topics["t"].place == {1: (2, 2), 2: (3, 3)}


@pytest.mark.parametrize("place", [[[1, 2, 0], [2, 3, 0]], [[2, 0, 3]], [[1, 2, -1]], []])
def test_producers_have_a_queue_somewhere_and_consumers_each_of_them(first: BrokerLog, place: list[list[int]]) -> None:
    assert put(first, place).code == "invalid"
    assert first.state.topics["t"].place == {1: (2, 2), 2: (3, 3)}


def test_other_numbers_of_queues_bring_no_producer_back(first: BrokerLog) -> None:
    put(first, [[2, 3, 0]])
    assert put(first, read_queues=8, write_queues=8).value.place == {1: (8, 8), 2: (8, 0)}


def test_the_first_group_may_be_left_too(first: BrokerLog) -> None:
    put(first, [[1, 2, 0]])
    topic = put(first, [[1, 0, 0]]).value
    assert (topic.place, topic.queues) == ({2: (3, 3)}, 0)


def test_a_group_that_drains_takes_a_topic_to_be_read(first: BrokerLog) -> None:
    first.run(DrainBrokerGroup(3, draining=True))
    assert put(first, [[3, 2, 2]]).code == "invalid"
    assert put(first, [[3, 2, 0]]).value.place == {1: (2, 2), 2: (3, 3), 3: (2, 0)}


def test_below_the_level_each_group_has_a_queue_to_write(new_log: Callable[[], Any]) -> None:
    broker = BrokerLog(new_log(), level=GATHERS_LEVEL - 1)
    broker.run(SECOND)
    put(broker, BOTH)
    for place in ([[2, 3, 0]], [[2, 0, 0]]):
        assert put(broker, place).code == "invalid"
    broker.run(Finalize(GATHERS_LEVEL))
    assert put(broker, [[2, 3, 0]]).ok
