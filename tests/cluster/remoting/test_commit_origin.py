"""Commits of a queue that another client holds: dropped where their connection says who commits, taken elsewhere."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cluster.broker.groups.group_members import FIRST_HEARTBEAT_MS
from cluster.remoting.connection.frame import Frame
from cluster.remoting.forward.requesting_clients import CLIENTS, CLIENTS_MAX, name_committers
from cluster.runtime.environment import LOCK_TTL_MS
from raftmq_wire.codec import BINARY, HEADER_AT, JSON, decode_header, encode_frame, ext_of

OFFSET = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "5"}


@pytest.fixture
def connection(node: Any, connect: Any) -> Any:
    """connection("a", "b"): one whose heartbeats name these clients of group g, which exists, as topic T does."""
    node.create_topic("T")

    def made(*clients: str, group: str = "g") -> Any:
        found = connect()
        for client in clients:
            node.join(client, found, group)
        return found

    made("somebody")
    return made


def lock(node: Any, client: str) -> Any:
    """The client locks queue 0. Returns its connection."""
    found = node.client()
    node.join(client, found)
    queue = {"topic": "T", "brokerName": "b", "queueId": 0}
    body = json.dumps({"consumerGroup": "g", "clientId": client, "mqSet": [queue]}).encode()
    assert json.loads(node.ask(41, body, connection=found).answer.body) == {"lockOKMQSet": [queue]}
    return found


def committed(node: Any, connection: Any, **more: Any) -> int | None:
    """Returns the committed offset after a commit of 5 over that connection."""
    answer = node.ask(15, connection=connection, **(OFFSET | more)).answer
    assert answer.code == 0
    found: int | None = node.state.offset("g", node.state.topics["T"].id, 0)
    assert ("client holder holds T queue 0" in (answer.remark or "")) == (found is None)
    return found


def test_a_client_that_lost_its_lock_commits_nothing(node: Any, connection: Any) -> None:
    lock(node, "holder")
    assert committed(node, connection("late")) is None
    assert committed(node, connection("late", "holder")) == 5, "it may be the holder's"


def test_the_holder_commits(node: Any, connection: Any) -> None:
    lock(node, "holder")
    assert committed(node, connection("holder")) == 5


def test_a_connection_that_is_in_no_group_commits(node: Any, connection: Any, connect: Any) -> None:
    lock(node, "holder")
    assert committed(node, connect()) == 5, "an operator's reset"


def test_another_groups_clients_do_not_count(node: Any, connection: Any) -> None:
    lock(node, "holder")
    assert committed(node, connection("late", group="h")) == 5


def test_a_lock_that_has_expired_stops_nobody(node: Any, connection: Any) -> None:
    lock(node, "holder")
    node.advance(LOCK_TTL_MS - 1)
    assert committed(node, connection("late")) is None
    node.advance(1)
    assert committed(node, connection("late")) == 5


def test_a_lock_of_a_client_that_is_gone_stops_nobody(node: Any, connection: Any) -> None:
    holder = lock(node, "holder")
    node.advance(FIRST_HEARTBEAT_MS)
    assert committed(node, connection("late")) is None
    holder.close()
    assert committed(node, connection("late")) == 5


def test_a_node_that_has_just_started_takes_the_holder_to_be_there(node: Any, connection: Any) -> None:
    lock(node, "holder").close()
    node.advance(FIRST_HEARTBEAT_MS - 1)
    assert committed(node, connection("late")) is None
    node.advance(1)
    assert committed(node, connection("late")) == 5


def test_oneway_commits_and_those_that_pulls_carry_are_dropped_too(node: Any, connection: Any) -> None:
    lock(node, "holder")
    late, holder = connection("late"), connection("holder")
    pull = OFFSET | {"queueOffset": "0", "maxMsgNums": "1", "sysFlag": "5", "subscription": "*", "subVersion": "0"}
    for client in (late, holder):
        node.ask(15, oneway=True, connection=client, **OFFSET)
        node.ask(11, connection=client, **pull)
        assert [row[3] for row in node.later] == ([] if client is late else [5, 5])


@pytest.mark.parametrize(
    ("named", "offset"), [('["late"]', None), ('["holder"]', 5), ("[]", 5), (None, 5), ("late", 5), ("[1]", 5)]
)
def test_a_forwarded_commit_says_who_commits(
    node: Any, connection: Any, connect: Any, named: str | None, offset: int | None
) -> None:
    lock(node, "holder")
    stand_in = connect()
    stand_in.forwarded = True
    assert committed(node, stand_in, **{CLIENTS: named}) == offset


def test_a_client_may_say_who_it_is_where_its_connection_does_not(node: Any, connection: Any, connect: Any) -> None:
    lock(node, "holder")
    assert committed(node, connect(), **{CLIENTS: '["late"]'}) is None
    assert committed(node, connect(), **{CLIENTS: '["holder"]'}) == 5


def test_a_client_cannot_say_who_it_is(node: Any, connection: Any) -> None:
    lock(node, "holder")
    assert committed(node, connection("late"), **{CLIENTS: '["holder"]'}) is None


# --- on the node that forwards ---------------------------------------------------------------------------------------


def forwarded(node: Any, path: Any, serialize_type: int) -> tuple[Frame, Frame]:
    """A commit as it came over the connection, and as it is forwarded."""
    data = encode_frame(15, 7, 2, ext=OFFSET, serialize_type=serialize_type, language="CPP", version=63)[HEADER_AT:]
    frame = Frame(path, serialize_type, decode_header(serialize_type, data), data, b"", len(data))
    return frame, name_committers(frame, node.members)


@pytest.mark.parametrize("serialize_type", [JSON, BINARY])
def test_a_commit_is_forwarded_with_the_clients_of_its_connection(
    node: Any, connection: Any, serialize_type: int
) -> None:
    came, goes = forwarded(node, connection("b", 'a "quoted" \n name'), serialize_type)
    header = decode_header(serialize_type, goes.header_bytes)
    ext = ext_of(header)
    assert json.loads(ext.pop(CLIENTS)) == ['a "quoted" \n name', "b"]
    assert ext == OFFSET
    kept = ("code", "opaque", "flag", "version", "language", "remark")
    assert [getattr(header, name) for name in kept] == [getattr(came.header, name) for name in kept]


def test_a_commit_is_forwarded_as_it_came_where_it_says_nothing(node: Any, connection: Any, connect: Any) -> None:
    for path in (connect(), connection(*(f"c{n}" for n in range(CLIENTS_MAX + 1)))):
        came, goes = forwarded(node, path, JSON)
        assert goes is came
