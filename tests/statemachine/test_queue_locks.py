"""Queue locks: who is granted what, until when, and what ends a lock. Times are numbers of the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.errors import InvariantViolationError
from raftlog.format_versions import BASELINE
from statemachine import commands
from statemachine.broker_state import BrokerState
from statemachine.cluster_wide.cluster_level import Finalize
from statemachine.consuming.groups import PutGroup
from statemachine.consuming.queue_locks import LockQueues, LockQueuesOf, QueueLock, UnlockQueues, UnlockQueuesOf
from statemachine.removal_slices import DeleteGroup, DeleteTopic
from statemachine.rows import keys
from statemachine.rows.kv import LOCKS, KVError
from statemachine.topics.topics import CreateTopic
from tests.support.rows import each_row
from tests.support.state_kit import FedState

TTL_MS = 60_000


class Broker(FedState):
    """A state with topic 1 of two queues and the group g, and the log that feeds it."""

    def __init__(self, log: Any) -> None:
        super().__init__(log)
        self.run(PutGroup({"name": "g"}, True))

    def lock(self, client: str, now_ms: int, *queues: int, topic: int = 1, group: str = "g") -> Any:
        rows = [(topic, queue) for queue in queues]
        return self.run(LockQueues(group, client, now_ms, now_ms + TTL_MS, rows))[0].value


@pytest.fixture
def broker(new_log: Callable[[], Any]) -> Broker:
    return Broker(new_log())


def test_a_queue_is_granted_to_one_client_until_its_time_is_over(broker: Broker) -> None:
    assert broker.lock("a", 1000, 0, 1) == [[1, 0], [1, 1]]
    assert broker.lock("b", 1001, 0, 1) == []
    assert broker.lock("b", 1000 + TTL_MS - 1, 0) == []
    assert broker.lock("a", 5000, 0) == [[1, 0]], "its holder goes on"
    assert broker.lock("b", 1000 + TTL_MS, 0, 1) == [[1, 1]], "queue 0 was refreshed, queue 1 was not"
    assert broker.state.locks_of_group("g") == {(1, 0): QueueLock("a", 65_000), (1, 1): QueueLock("b", 121_000)}


def test_groups_do_not_see_one_another(broker: Broker) -> None:
    broker.run(PutGroup({"name": "h"}, True))
    assert broker.lock("a", 1, 0) == broker.lock("b", 1, 0, group="h") == [[1, 0]]


def test_what_is_not_there_is_not_granted(broker: Broker) -> None:
    assert broker.lock("a", 1, 0, 2, 70_000) == [[1, 0]], "the topic has two queues"
    assert broker.lock("a", 1, 0, topic=9) == []
    result = broker.run(LockQueues("nobody", "a", 1, 2, [(1, 0)]))[0]
    assert (result.ok, result.code) == (False, "not_found")


def test_only_the_holder_gives_up(broker: Broker) -> None:
    broker.lock("a", 1, 0, 1)
    assert broker.run(UnlockQueues("g", "b", [(1, 0)]))[0].value == 0
    assert broker.run(UnlockQueues("g", "a", [(1, 0), (1, 0), (3, 3)]))[0].value == 1
    assert broker.lock("b", 2, 0, 1) == [[1, 0]]
    assert broker.run(UnlockQueues("g", "a", None))[0].value == 1
    assert set(broker.state.locks_of_group("g")) == {(1, 0)}


def lock_of(broker: Broker, user: int, client: str, now_ms: int, *queues: int) -> Any:
    rows = [(1, queue) for queue in queues]
    return broker.run(LockQueuesOf(user, "g", client, now_ms, now_ms + TTL_MS, rows))[0].value


def test_two_users_with_one_client_id_are_two_clients(broker: Broker) -> None:
    assert lock_of(broker, 7, "a", 1, 0, 1) == [[1, 0], [1, 1]]
    assert lock_of(broker, 8, "a", 2, 0) == []
    assert broker.run(UnlockQueuesOf(8, "g", "a", None))[0].value == 0
    assert lock_of(broker, 7, "a", 3, 0) == [[1, 0]]
    assert broker.state.locks_of_group("g")[1, 0] == QueueLock("a", 3 + TTL_MS, 7)
    assert broker.run(UnlockQueuesOf(7, "g", "a", [(1, 0)]))[0].value == 1
    assert lock_of(broker, 8, "a", 4, 0, 1) == [[1, 0]]
    assert lock_of(broker, 8, "a", 1 + TTL_MS, 1) == [[1, 1]], "it has expired"


def test_a_lock_without_an_owner_belongs_to_the_first_user_of_its_client_id(broker: Broker) -> None:
    broker.lock("a", 1, 0)
    assert lock_of(broker, 7, "b", 2, 0) == []
    assert lock_of(broker, 8, "a", 3, 0) == [[1, 0]]
    assert lock_of(broker, 7, "a", 4, 0) == []
    assert broker.lock("a", 5, 0) == [[1, 0]], "users are no longer judged"
    assert broker.state.locks_of_group("g") == {(1, 0): QueueLock("a", 5 + TTL_MS)}


def test_rows_say_whose_they_are(broker: Broker) -> None:
    """The formats of docs/disk-format-rows.md, read back when the state opens again."""
    broker.lock("\u00e9a", 1, 0)
    lock_of(broker, 0x0102, "\u00e9a", 1, 1)
    rows = {key[-1]: row for key, row in broker.kv.scan(LOCKS, b"", keys.LAST)}
    expires = (1 + TTL_MS).to_bytes(8, "big")
    owner = b"\xff" + bytes(6) + b"\x01\x02"
    assert rows == {0: expires + b"\xc3\xa9a", 1: expires + owner + b"\xc3\xa9a"}
    assert BrokerState(broker.kv).locks_of_group("g") == broker.state.locks_of_group("g")


def test_expired_locks_of_a_group_stay_until_they_are_swept_or_taken(broker: Broker) -> None:
    broker.lock("a", 1, 0, 1)
    broker.lock("b", 1 + TTL_MS, 1)
    first = QueueLock("a", 1 + TTL_MS)
    assert broker.state.locks_of_group("g") == {(1, 0): first, (1, 1): QueueLock("b", 1 + 2 * TTL_MS)}


@pytest.mark.parametrize("delete", [DeleteTopic("t"), DeleteGroup("g", False), DeleteGroup("g", True)])
def test_a_deleted_topic_or_group_leaves_no_lock(broker: Broker, delete: commands.Command) -> None:
    broker.lock("a", 1, 0)
    broker.run(
        delete,
        CreateTopic({"name": "t", "read_queues": 2, "write_queues": 2}, True),
        PutGroup({"name": "g"}, True),
    )
    assert broker.state.locks_of_group("g") == {}
    topic = broker.state.topics["t"].id
    assert broker.lock("b", 2, 0, topic=topic) == [[topic, 0]]


BAD: list[list[Any]] = [
    ["lock_queues", "g", "", 1, 2, []],
    ["lock_queues", "g", "x" * 513, 1, 2, []],
    ["lock_queues", "g", 7, 1, 2, []],
    ["lock_queues", 7, "a", 1, 2, []],
    ["lock_queues", "g", "a", 3, 2, []],
    ["lock_queues", "g", "a", -1, 2, []],
    ["lock_queues", "g", "a", 1, 2**70, []],
    ["lock_queues", "g", "a", 1, 2, None],
    ["lock_queues", "g", "a", 1, 2, [[1]]],
    ["lock_queues", "g", "a", 1, 2, [[1, "0"]]],
    ["lock_queues", "g", "a", 1, 2, [[1, 0]] * 4097],
    ["unlock_queues", "g", "a", [7]],
    ["unlock_queues", "g", "", None],
    ["lock_queues_of", 0, "g", "a", 1, 2, []],
    ["lock_queues_of", "1", "g", "a", 1, 2, []],
    ["lock_queues_of", 1, "g", "", 1, 2, []],
    ["unlock_queues_of", 0, "g", "a", None],
    ["unlock_queues_of", None, "g", "a", None],
    ["finalize", BASELINE - 1],
    ["finalize", "1"],
]


@each_row("command", BAD)
def test_bad_arguments_are_told_and_change_nothing(broker: Broker, command: list[Any]) -> None:
    if any(type(each) is int and each >= 2**64 for each in command):
        command[4] = 2**64 - 1
        command[3] = 2.5
    before = dict(broker.state.locks_of_group("g"))
    result = broker.raw(*command)
    assert (result.ok, result.code) == (False, "invalid")
    assert broker.state.locks_of_group("g") == before


def test_the_level_only_rises_and_a_newer_one_is_not_passed_over(broker: Broker) -> None:
    assert broker.state.level == BrokerState(broker.kv).level == BASELINE
    broker.state = BrokerState(broker.kv, known_level=BASELINE + 3)
    assert broker.run(Finalize(BASELINE + 2))[0].value == BASELINE + 2
    assert broker.run(Finalize(BASELINE + 1))[0].value == BASELINE + 2
    assert broker.state.level == BrokerState(broker.kv, known_level=BASELINE + 3).level == BASELINE + 2
    with pytest.raises(KVError, match="level 12"):
        BrokerState(broker.kv, known_level=BASELINE + 1)
    with pytest.raises(InvariantViolationError, match="newer RaftMQ"):
        broker.run(Finalize(BASELINE + 4))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("lock"), st.sampled_from("abc"), st.integers(0, 40), st.sets(st.integers(0, 1), min_size=1)),
        st.tuples(st.just("unlock"), st.sampled_from("abc"), st.just(0), st.sets(st.integers(0, 1), min_size=1)),
    ),
    max_size=30,
)


@given(STEPS)
def test_no_two_clients_hold_one_queue(new_log: Callable[[], Any], steps: list[tuple[str, str, int, set[int]]]) -> None:
    """Against a model: the times of log entries never go back, each grant lasts for 20."""
    broker, now, model = Broker(new_log()), 0, dict[int, tuple[str, int]]()
    for kind, client, wait, queues in steps:
        now += wait
        rows = [(1, queue) for queue in sorted(queues)]
        if kind == "unlock":
            broker.run(UnlockQueues("g", client, rows))
            model = {queue: held for queue, held in model.items() if queue not in queues or held[0] != client}
            continue
        granted = broker.run(LockQueues("g", client, now, now + 20, rows))[0].value
        free = [q for q in sorted(queues) if q not in model or model[q][0] == client or model[q][1] <= now]
        assert granted == [[1, queue] for queue in free]
        model |= dict.fromkeys(free, (client, now + 20))
    assert BrokerState(broker.kv).locks_of_group("g") == broker.state.locks_of_group("g")
