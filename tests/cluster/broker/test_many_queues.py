"""Looks at groups with many queues go on where they stopped."""

from __future__ import annotations

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from cluster.broker.groups.assignment import STRATEGIES, owner
from cluster.broker.groups.group_lag import QUEUE_UNITS, QueueLag, each_lag
from jepsen_like.fakes.memory_kv import MemoryKV
from raftlog.frame import make_entry
from raftlog.types import EMPTY_TAIL, EntryType
from raftlog.work import METER
from statemachine import commands
from statemachine.broker_state import BrokerState
from statemachine.consuming.consumer_offsets import CommitOffsets
from statemachine.consuming.groups import PutGroup, Subscribe
from statemachine.topics.topics import CreateTopic


@given(queues=st.integers(1, 60), clients=st.integers(1, 15))
def test_the_owner_of_a_queue_is_the_client_whose_share_has_it(queues: int, clients: int) -> None:
    names = [f"c{number:02}" for number in range(clients)]
    for rank, name in enumerate(names):
        for queue in STRATEGIES["AVG"](range(queues), rank, clients):
            assert owner(queue, queues, names) == name


def state_with(*run: commands.Command) -> BrokerState:
    state = BrokerState(MemoryKV())
    data = commands.pack(list(run))
    entry = make_entry(
        EMPTY_TAIL,
        term=1,
        entry_type=EntryType.COMMAND,
        payload=data,
        timestamp_ms=1,
        group_id=0,
        segment_size=1 << 30,
    )
    state.apply([entry])
    return state


def topic(name: str, queues: int) -> commands.Command:
    return CreateTopic({"name": name, "read_queues": queues, "write_queues": queues}, False)


def test_a_look_at_the_first_queues_does_not_pay_for_all() -> None:
    subscribed = [("big", "TAG", "*", 1), ("gone", "TAG", "*", 1)]
    state = state_with(
        topic("big", 60_000),
        PutGroup({"name": "g"}, False),
        Subscribe("g", subscribed),
    )
    before = METER.units
    first = list(islice(each_lag(state, state.groups["g"]), 10))
    assert first == [QueueLag("big", queue, None, 0, 0) for queue in range(10)]
    assert METER.units - before < 100 * QUEUE_UNITS


def test_queues_come_by_topic_and_queue_those_that_nobody_reads_any_more_last() -> None:
    state = state_with(
        topic("b", 2),
        topic("a", 3),
        topic("c", 2),
        PutGroup({"name": "g"}, False),
        Subscribe("g", [("a", "TAG", "*", 1), ("b", "TAG", "*", 1)]),
        CommitOffsets([("g", 1, 1, 0), ("g", 2, 2, 0), ("g", 3, 1, 0)]),
        CreateTopic({"name": "a", "read_queues": 1}, False),
    )
    found = list(each_lag(state, state.groups["g"]))
    assert [(each.topic, each.queue_id) for each in found] == [("a", 0), ("a", 2), ("b", 0), ("b", 1), ("c", 1)]
    assert found == sorted(found)
    assert [each.committed for each in found] == [None, 0, None, 0, 0]
