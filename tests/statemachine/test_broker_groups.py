"""Groups of brokers, and the places of topics in them (docs/adr/0108)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.types import GROUPS_MAX
from statemachine.broker_state import BrokerState
from statemachine.cluster_wide.broker_groups import (
    AddBrokerGroup,
    BrokerGroup,
    DrainBrokerGroup,
    GroupState,
    is_inactive,
)
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.levels import DRAINS_LEVEL, GROUPS_LEVEL
from statemachine.rows import keys, meta_keys
from statemachine.rows.kv import FAMILIES, META, TOPICS
from statemachine.topics.topics import CreateTopic
from statemachine.truth import CopyTruth
from tests.support.rows import each_row
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
        assert changed == {meta_keys.LEVEL_KEY, meta_keys.SUMS_KEY, meta_keys.APPLIED_KEY}


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


@each_row(
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


# -- drains (docs/adr/0113)


@pytest.fixture
def drained(first: BrokerLog) -> BrokerLog:
    """A first group whose second one drains, with a topic in both, and one there alone."""
    first.run(SECOND, AddBrokerGroup(3, "c", None))
    put(first, name="both", place=[[1, 2, 2], [2, 2, 2]])
    put(first, name="there", place=[[2, 2, 2]])
    first.log.now_ms = 7_000_000
    assert first.one(DrainBrokerGroup(2, draining=True)).ok
    return first


def row_of(broker: BrokerLog, number: int) -> Any:
    return msgpack.unpackb(broker.kv.get(META, meta_keys.broker_group_key(number)) or b"")


def test_a_group_drains_from_the_time_of_the_entry_on(drained: BrokerLog) -> None:
    group = drained.state.broker_groups.by_number[2]
    assert group == ("raftmq-g02", 3, GroupState.DRAINING, 7_000_000)
    assert row_of(drained, 2) == ["raftmq-g02", 3, 1, 7_000_000]
    version = drained.state.truth_journal.version
    drained.log.now_ms = 9_000_000
    assert drained.one(DrainBrokerGroup(2, draining=True)) == (True, "", group), "it goes on, and its time stays"
    assert drained.state.truth_journal.version == version
    drained.restart()
    assert drained.state.broker_groups.by_number[2] == group
    assert [number for number in range(5) if is_inactive(drained.state.broker_groups.by_number, number)] == [2]


def test_a_drain_that_is_cancelled_leaves_the_row_that_was_there(drained: BrokerLog) -> None:
    assert drained.one(DrainBrokerGroup(2, draining=False)).value == BrokerGroup("raftmq-g02", 3)
    assert row_of(drained, 2) == ["raftmq-g02", 3]
    assert drained.one(DrainBrokerGroup(3, draining=False)).ok
    drained.log.now_ms = 9_000_000
    assert drained.one(DrainBrokerGroup(2, draining=True)).value.since_ms == 9_000_000, "another drain"


def test_only_a_further_group_that_is_there_drains(first: BrokerLog) -> None:
    assert first.one(DrainBrokerGroup(2, draining=True)).code == "not_found"
    first.run(SECOND)
    assert [first.one(DrainBrokerGroup(number, draining=True)).code for number in (1, 3, 65)] == [
        "invalid",
        "not_found",
        "invalid",
    ]


def test_other_groups_learn_of_a_drain_and_of_its_end(drained: BrokerLog, new_log: NewLog) -> None:
    second = BrokerLog(new_log(), group=2)
    assert second.one(DrainBrokerGroup(2, draining=True)).code == "refused"
    for draining in (True, False, True):
        drained.run(DrainBrokerGroup(2, draining))
        copy_all(drained, second)
        assert second.state.broker_groups.by_number == drained.state.broker_groups.by_number
        assert is_inactive(second.state.broker_groups.by_number, 2) is draining
        assert row_of(second, 2) == row_of(drained, 2)


def test_no_topic_gets_queues_in_a_group_that_drains(drained: BrokerLog) -> None:
    refused = put(drained, name="new", place=[[1, 1, 1], [2, 1, 1]])
    assert (refused.code, refused.value) == ("invalid", "place: group 2 is drained, and takes no further topic")
    put(drained, name="elsewhere")
    assert put(drained, name="elsewhere", place=[[2, 1, 1]]).code == "invalid"
    assert put(drained, name="both", place=[[2, 5, 5]]).value.place == {1: (2, 2), 2: (5, 5)}, "it is there"
    assert put(drained, name="both", read_queues=6).ok
    assert put(drained, name="there", place=[[3, 2, 2]]).value.place == {2: (2, 2), 3: (2, 2)}
    for derived in ("%RETRY%g", "%DLQ%g", "TRANS_CHECK_MAX_TIME_TOPIC"):
        assert put(drained, name=derived, place=[[2, 1, 1]]).ok, "what fails there is retried there"
    drained.run(DrainBrokerGroup(2, draining=False))
    assert put(drained, name="new", place=[[1, 1, 1], [2, 1, 1]]).ok


@each_row(
    "row",
    [
        ["raftmq-g02", 3, 1],
        ["raftmq-g02", 3, 0, 5],
        ["raftmq-g02", 3, 9, 5],
        ["raftmq-g02", 3, 1, -1],
        ["raftmq-g02", 3, 1, 5, 6],
        ["raftmq-g02"],
        "raftmq-g02",
        None,
    ],
)
def test_a_row_that_is_none_of_a_group(new_log: NewLog, row: Any) -> None:
    second = BrokerLog(new_log(), group=2)
    assert second.one(CopyTruth(0, 1, [(9, 2, row)])).code == "invalid"
    assert second.one(CopyTruth(0, 1, [(9, 2, ["raftmq-g02", 3, 1, 5])])).ok


def test_a_cluster_that_drains_nothing_has_the_rows_of_before(new_log: NewLog) -> None:
    """Byte for byte, but for the row of the level."""
    found = []
    for level in (DRAINS_LEVEL - 1, DRAINS_LEVEL):
        broker = BrokerLog(new_log(), level=level)
        broker.run(SECOND, AddBrokerGroup(3, "c", None))
        put(broker, place=[[2, 1, 1]])
        found.append(
            {
                key: row
                for key, row in broker.kv.scan(META, b"", keys.LAST)
                if key not in (meta_keys.SUMS_KEY, meta_keys.APPLIED_KEY)
            }
        )
    old, new = found
    assert {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)} == {meta_keys.LEVEL_KEY}
