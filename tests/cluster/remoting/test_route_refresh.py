"""Java push consumers are made to ask for their routes when the leader has changed (docs/adr/0055-early-routes.md).

What a Java consumer makes of it is tested with unmodified clients: tests/compat/test_java_reads_on.py.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from cluster.broker.groups.route_refresh import ASKS_MAX, CALLS_MS, FRESH_MS, PAUSE_MS
from raftlog.types import NOBODY, NodeId
from statemachine.consuming.consumer_offsets import CommitOffsets
from statemachine.removal_slices import DeleteTopic

RETRY = "%RETRY%g"


def join(node: Any, connection: Any, client: str = "c", language: str = "JAVA", version: int = 401) -> None:
    """A heartbeat of one consumer in group g."""
    data = {"groupName": "g", "subscriptionDataSet": [{"topic": RETRY, "subString": "*", "subVersion": 1}]}
    body = json.dumps({"clientID": client, "consumerDataSet": [data]}).encode()
    assert node.ask(34, body, connection, language=language, version=version).answer.code == 0


def brokers(node: Any, connection: Any, topic: str = RETRY) -> list[str]:
    """The broker names of the topic's route."""
    route = json.loads(node.ask(105, topic=topic, connection=connection).answer.body)
    assert route["queueDatas"][0]["readQueueNums"] >= 1, "its queues are shown in any case"
    return [row["brokerName"] for row in route["brokerDatas"]]


@pytest.fixture
def node(node_with: Any) -> Any:
    """Turned on."""
    return node_with(**{"cluster.early_routes": True})


@pytest.fixture
def joined(node: Any, connect: Any) -> Any:
    """The connection of a Java consumer of group g."""
    connection = connect("broker")
    join(node, connection)
    connection.notified()
    node.early_routes.tick(node.now_ms)
    return connection


def elect(node: Any, leader: int) -> None:
    node.leader = NodeId(leader)
    node.early_routes.tick(node.now_ms)


def test_a_consumer_s_retry_topic_names_no_broker(node: Any, joined: Any) -> None:
    node.create_topic("T")
    assert brokers(node, joined) == []
    assert len(brokers(node, joined, "T")) == 4


def test_a_change_of_leader_shows_the_brokers_and_has_consumers_ask(node: Any, joined: Any) -> None:
    elect(node, 3)
    assert joined.notified() == ["g"]
    assert len(brokers(node, joined)) == 4
    node.advance(FRESH_MS - 1)
    assert len(brokers(node, joined)) == 4
    node.advance(1)
    assert brokers(node, joined) == [], "it is to ask again the next time"


def test_consumers_are_told_several_times_once_a_connection(node: Any, joined: Any) -> None:
    join(node, joined, "another")
    joined.notified()
    began, told = node.now_ms, []
    elect(node, 1)
    while node.now_ms < began + 30_000:
        told += [node.now_ms - began] * len(joined.notified())
        node.advance(50)
        node.early_routes.tick(node.now_ms)
    assert told == list(CALLS_MS)


def test_nothing_is_shown_while_nobody_leads(node: Any, joined: Any) -> None:
    """A consumer that got the old leader's address now would keep it until its next poll."""
    elect(node, 0)
    assert (node.leader, joined.notified(), brokers(node, joined)) == (NOBODY, [], [])
    elect(node, 3)
    elect(node, 0)
    assert brokers(node, joined) == []


def test_a_follower_that_is_lost_changes_nothing_that_readers_see(node: Any, joined: Any) -> None:
    node.unreached = {NodeId(3)}
    node.early_routes.tick(node.now_ms)
    assert (joined.notified(), brokers(node, joined)) == ([], [])


def test_a_follower_that_consumers_read_from_is_lost(node_with: Any, connect: Any) -> None:
    node = node_with(**{"cluster.early_routes": True, "modes.slave_read_enable": True})
    connection = connect("broker")
    join(node, connection)
    node.early_routes.tick(node.now_ms)
    connection.notified()
    node.unreached = {NodeId(3)}
    node.early_routes.tick(node.now_ms)
    assert connection.notified() == ["g"]
    assert len(brokers(node, connection)) == 4


def test_a_group_with_messages_to_try_again_sees_the_brokers(node: Any, joined: Any) -> None:
    """A member that has not got the queue yet needs the brokers to divide it."""
    node.store(RETRY, b"failed", b"failed too")
    assert len(brokers(node, joined)) == 4
    topic_id = node.state.topics[RETRY].id
    node.command(CommitOffsets([("g", topic_id, 0, 1)]))
    assert len(brokers(node, joined)) == 4
    node.command(CommitOffsets([("g", topic_id, 0, 2)]))
    assert brokers(node, joined) == []


def test_who_may_not_have_the_queue_is_told_of_the_first_message_there(node: Any, joined: Any, connect: Any) -> None:
    other = connect("broker")
    join(node, other, "other")
    joined.notified()
    other.notified()
    assert brokers(node, joined) == []
    node.create_topic("T")
    node.store("T", b"m")
    assert joined.notified() == []
    node.store(RETRY, b"failed")
    assert (joined.notified(), other.notified()) == (["g"], []), "who got the brokers has the queue"
    node.store(RETRY, b"failed too")
    assert joined.notified() == [], "once"
    assert len(brokers(node, joined)) == 4


def test_messages_that_are_gone_are_not_waited_for(node: Any, joined: Any) -> None:
    node.store(RETRY, b"failed", b"failed too")
    node.command(CommitOffsets([("g", node.state.topics[RETRY].id, 0, 1)]))
    node.state.min_offset = lambda topic_id, queue_id: 2
    assert brokers(node, joined) == []


def test_who_never_committed_does_not_get_the_queue_late(node: Any, joined: Any) -> None:
    """Java begins at the end of such a queue if it consumes from a time, and would miss what came meanwhile."""
    node.store(RETRY, b"failed")
    node.state.min_offset = lambda topic_id, queue_id: 1
    assert len(brokers(node, joined)) == 4


def test_an_orderly_group_sees_the_brokers(node: Any, joined: Any) -> None:
    """Its consumers send what they give up to the retry topic by themselves."""
    node.create_topic("T")
    queue = {"topic": "T", "brokerName": "raftmq", "queueId": 0}
    node.ask(41, json.dumps({"consumerGroup": "g", "clientId": "c", "mqSet": [queue]}).encode(), connection=joined)
    assert len(brokers(node, joined)) == 4


def test_a_consumer_that_asks_every_second_sees_the_brokers_for_a_while(node: Any, joined: Any) -> None:
    """It has the broker divide the queues (400), and cannot do without them."""
    seen = []
    for _ in range(ASKS_MAX + 4):
        seen.append(len(brokers(node, joined)))
        node.advance(1000)
    assert seen == [0] * ASKS_MAX + [4] * 4
    for _ in range(PAUSE_MS // 60_000):
        node.advance(60_000)
        join(node, joined)
    assert brokers(node, joined) == []


def test_a_consumer_that_asks_as_java_does_never_sees_them(node: Any, joined: Any) -> None:
    """Every 20 s to divide, and every 30 s by its clock."""
    for second in range(1, 1201):
        node.advance(1000)
        if second % 20 == 0:
            assert brokers(node, joined) == []
        if second % 30 == 0:
            join(node, joined)
            assert brokers(node, joined) == []


def test_nothing_is_kept_of_a_closed_connection(node: Any, joined: Any) -> None:
    assert brokers(node, joined) == []
    node.command(DeleteTopic(RETRY))
    node.create_topic(RETRY, queues=1)
    assert brokers(node, joined) == []
    joined.close()
    assert not node.early_routes.connections


@pytest.mark.parametrize(("language", "version"), [("JAVA", 121), ("CPP", 401), ("GO", 401), ("PYTHON", 401)])
def test_other_clients_see_the_brokers_and_are_not_told(node: Any, connect: Any, language: str, version: int) -> None:
    connection = connect("broker")
    join(node, connection, language=language, version=version)
    connection.notified()
    node.early_routes.tick(node.now_ms)
    assert brokers(node, connection)
    elect(node, 3)
    assert connection.notified() == []


def test_tools_see_the_brokers(node: Any, joined: Any, connect: Any) -> None:
    """mqadmin finds the brokers of a group by the route of its retry topic."""
    assert len(brokers(node, connect("broker"))) == 4


@pytest.mark.parametrize("kind", [{"messageModel": "BROADCASTING"}, {"consumeType": "CONSUME_ACTIVELY"}])
def test_consumers_that_do_not_divide_the_retry_topic_see_the_brokers(
    node: Any, connect: Any, kind: dict[str, str]
) -> None:
    """Such consumers are those that broadcast, and pull consumers."""
    connection = connect("broker")
    data = {"groupName": "g", "subscriptionDataSet": [], **kind}
    node.ask(34, json.dumps({"clientID": "c", "consumerDataSet": [data]}).encode(), connection)
    connection.notified()
    node.early_routes.tick(node.now_ms)
    assert len(brokers(node, connection)) == 4
    elect(node, 3)
    assert connection.notified() == []


def test_it_is_off_by_default(node_with: Any, connect: Any) -> None:
    node = node_with()
    connection = connect("broker")
    join(node, connection)
    connection.notified()
    node.early_routes.tick(node.now_ms)
    assert len(brokers(node, connection)) == 4
    elect(node, 3)
    assert connection.notified() == []
