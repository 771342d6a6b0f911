"""Groups of brokers, and the places of topics in them (docs/adr/0108)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.types import GROUPS_MAX
from statemachine.broker_state import BrokerState
from statemachine.cluster_wide.broker_groups import AddBrokerGroup, BrokerGroup
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.levels import GROUPS_LEVEL
from statemachine.rows import keys
from statemachine.rows.kv import FAMILIES, TOPICS
from statemachine.topics.topics import CreateTopic
from tests.support.state_kit import FedState
from tests.support.truth_kit import SECOND, BrokerLog, copy_all

NewLog = Callable[[], Any]
ROW_WITHOUT_PLACE = 10


@pytest.fixture
def first(new_log: NewLog) -> BrokerLog:
    return BrokerLog(new_log())


def put(broker: BrokerLog, **fields: Any) -> Any:
    return broker.one(CreateTopic({"name": "t", **fields}, False))


def test_the_second_group_fixes_the_first_ones_name_and_the_aliases(first: BrokerLog) -> None:
    assert first.one(AddBrokerGroup(2, "b", None)).code == "invalid"
    assert first.one(SECOND).value == BrokerGroup("raftmq-g02", 3)
    assert first.one(AddBrokerGroup(3, "c", ("raftmq", 3))).code == "invalid"
    assert first.one(AddBrokerGroup(64, "c", None)).value == BrokerGroup("c", 3)
    known = {1: BrokerGroup("raftmq", 3), 2: BrokerGroup("raftmq-g02", 3), 64: BrokerGroup("c", 3)}
    assert first.state.broker_groups.by_number == known
    first.restart()
    assert first.state.broker_groups.by_number == known


@pytest.mark.parametrize(
    ("number", "name", "code"),
    [
        (2, "other", "exists"),
        (3, "raftmq", "invalid"),
        (3, "raftmq-g02", "invalid"),
        (3, "raftmq-1", "invalid"),
        (3, "raftmq-g02-007", "invalid"),
        (3, "a b", "invalid"),
        (3, "", "invalid"),
        (3, "raftmq-", ""),
        (3, "raftmq-1a", ""),
        (3, "raftmq1", ""),
        (1, "c", "invalid"),
        (GROUPS_MAX + 1, "c", "invalid"),
    ],
)
def test_names_and_numbers_are_used_once(first: BrokerLog, number: int, name: str, code: str) -> None:
    first.run(SECOND)
    before = first.state.broker_groups.by_number
    result = first.one(AddBrokerGroup(number, name, None))
    assert (result.ok, result.code) == (not code, code)
    assert (first.state.broker_groups.by_number == before) is bool(code)


def test_a_name_of_which_an_earlier_one_would_be_an_alias(first: BrokerLog) -> None:
    assert first.one(AddBrokerGroup(2, "a", ("a-1", 3))).code == "invalid"
    assert first.one(AddBrokerGroup(2, "a", ("a", 3))).code == "invalid"
    assert first.one(AddBrokerGroup(2, "a", ("a b", 3))).code == "invalid"
    assert first.state.broker_groups.by_number == {}
    assert not first.state.truth_journal.is_kept, "nothing has begun"
    assert first.one(AddBrokerGroup(2, "b-1", ("a", 3))).ok
    assert first.one(AddBrokerGroup(3, "b", None)).code == "invalid"


def test_a_cluster_of_one_group_has_the_rows_that_it_had(new_log: NewLog, draw_log: Any) -> None:
    """Byte for byte, but for the row of the level."""
    for seed in range(5):
        kvs = []
        for level in (GROUPS_LEVEL - 1, GROUPS_LEVEL):
            log, kv = new_log(), MemoryKV()
            state = BrokerState(kv)
            state.apply([log.command(Finalize(level))])
            for entry in draw_log(seed, 80):
                if not any(name in entry.payload for name in (b"add_broker_group", b"finalize", b"tier_state")):
                    log.now_ms = entry.timestamp_ms
                    state.apply([log.add(entry.type, entry.payload)])
            kvs.append(kv)
        old, new = ({(name, key): row for name in FAMILIES for key, row in kv.scan(name, b"", keys.LAST)} for kv in kvs)
        changed = {key for name, key in old.keys() | new.keys() if old.get((name, key)) != new.get((name, key))}
        assert changed == {keys.LEVEL_KEY, keys.SUMS_KEY, keys.APPLIED_KEY}


def test_below_the_level_a_topic_has_no_place(new_log: NewLog) -> None:
    broker = FedState(new_log())
    broker.run(Finalize(GROUPS_LEVEL - 1))
    (result,) = broker.run(CreateTopic({"name": "t", "place": [[1, 2, 2]]}, False))
    assert (result.code, "place" in result.value) == ("invalid", True)


def test_a_topic_says_its_queues_in_each_group(first: BrokerLog) -> None:
    first.run(SECOND, AddBrokerGroup(3, "c", None))
    topic = put(first, read_queues=2, write_queues=3).value
    assert (topic.place, topic.queues_of_groups) == ({}, {1: (2, 3)})
    assert len(msgpack.unpackb(first.kv.get(TOPICS, keys.U32.pack(topic.id)) or b"")) == ROW_WITHOUT_PLACE
    topic = put(first, place=[[3, 4, 5]]).value
    assert topic.place == {1: (2, 3), 3: (4, 5)}
    topic = put(first, place=[[2, 1, 1], [1, 8, 8]]).value
    assert topic.place == {1: (8, 8), 2: (1, 1), 3: (4, 5)}
    assert (topic.read_queues, topic.write_queues) == (8, 8)
    topic = put(first, perm=4).value
    assert topic.place == {1: (8, 8), 2: (1, 1), 3: (4, 5)}
    topic = put(first, read_queues=9).value
    assert topic.place == {1: (9, 8), 2: (9, 1), 3: (9, 5)}, "without a place it is about all"
    first.restart()
    assert first.state.topics["t"] == topic
    assert BrokerState(first.kv).topics["t"].place == topic.place


def test_a_topic_that_lives_elsewhere_has_no_queues(first: BrokerLog, new_log: NewLog) -> None:
    first.run(SECOND)
    topic = put(first, place=[[2, 4, 4]]).value
    assert (topic.read_queues, topic.write_queues, topic.queues, first.state.queue_count) == (0, 0, 0, 0)
    assert first.state.stored_queues(topic) == 0
    assert put(first, read_queues=5).value.place == {2: (5, 4)}
    assert put(first, perm=6).ok
    second, third = BrokerLog(new_log(), group=2), BrokerLog(new_log(), group=3)
    for broker in (second, third):
        copy_all(first, broker)
        assert broker.state.topics["t"].queues_of_groups == {2: (5, 4)}
    assert (second.state.topics["t"].queues, third.state.topics["t"].queues) == (5, 0)


@pytest.mark.parametrize(
    "fields",
    [
        {"place": []},
        {"place": [[3, 1, 1]]},
        {"place": [[0, 1, 1]]},
        {"place": [[2, 0, 1]]},
        {"place": [[2, 1, 65_536]]},
        {"place": [[2, 1]]},
        {"place": {"2": [1, 1]}},
        {"place": None},
        {"place": [[2, 1, 1]], "read_queues": 4},
        {"read_queues": 0},
    ],
)
def test_a_place_that_is_none(first: BrokerLog, fields: Any) -> None:
    first.run(SECOND)
    assert put(first, **fields).code == "invalid"
    assert put(first).ok
    assert put(first, **fields).code == "invalid"
    assert first.state.topics["t"].place == {}
