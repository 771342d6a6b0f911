"""Two clients of one user with one client id in one group: both are shown, and neither makes the other invisible."""

from __future__ import annotations

import json
from typing import Any

from cluster.broker.groups.group_members import EXPIRY_MS
from cluster.node import node_view
from tests.cluster.remoting.test_heartbeat import consumer


def shown(node: Any) -> list[str]:
    """The addresses of the group's connections as 203 answers, after `GET /v1/groups` was seen to list as many."""
    rows = json.loads(node.ask(203, consumerGroup="g").answer.body)["connectionSet"]
    assert len(node_view.members(node.members, "g", node.now_ms)) == len(rows)
    assert {row["clientId"] for row in rows} == {"c"}
    return sorted(row["clientAddr"] for row in rows)


def two(connect: Any) -> tuple[Any, Any]:
    """Two connections that can be told apart by their ports."""
    one, other = connect(), connect()
    one.peer_address, other.peer_address = ("10.9.9.9", 1), ("10.9.9.9", 2)
    return one, other


def beat(node: Any, connection: Any, ms: int = 1_000) -> None:
    node.advance(ms)
    node.ask(34, consumer("c"), connection=connection)


def test_both_connections_are_shown_and_the_id_counts_once(node: Any, connect: Any) -> None:
    one, other = two(connect)
    for _ in range(3):
        beat(node, one)
        beat(node, other)
    assert shown(node) == ["10.9.9.9:1", "10.9.9.9:2"]
    assert json.loads(node.ask(38, consumerGroup="g").answer.body) == {"consumerIdList": ["c"]}
    assert node.members.member_count("g") == 1
    (noticed,) = node.shared_ids.twice_lately()
    assert noticed[:4] == ("c", "g", (0,), 4), "each heartbeat after that of the other one"
    assert not node.shared_ids.refused_lately()


def test_members_are_not_told_anew_with_each_heartbeat(node: Any, connect: Any) -> None:
    one, other = two(connect)
    beat(node, one)
    beat(node, other)
    one.notified(), other.notified()
    beat(node, one)
    beat(node, other)
    assert (one.notified(), other.notified()) == ([], [])
    node.ask(34, consumer("new"), connection=connect())
    assert (one.notified(), other.notified()) == (["g"], ["g"]), "both divide again"


def test_the_end_of_one_leaves_the_other(node: Any, connect: Any) -> None:
    for last in (0, 1):
        pair = two(connect)
        for each in (*pair, *pair):
            beat(node, each)
        pair[last].close()
        assert shown(node) == [f"10.9.9.9:{2 - last}"]
        assert [role for role, _, _ in node.members.of(pair[1 - last])] == ["consumer"]
        node.ask(35, connection=pair[1 - last], clientID="c", consumerGroup="g", producerGroup="")
        assert node.members.consumer_ids("g") == []
        assert node.members.count == 0


def test_what_a_client_left_behind_goes_with_it(node: Any, connect: Any) -> None:
    """It connected again, and the end of its old connection was lost: when it leaves, its queues are free at once."""
    old, new = two(connect)
    beat(node, old)
    beat(node, new)
    assert shown(node) == ["10.9.9.9:1", "10.9.9.9:2"]
    assert not node.shared_ids.twice_lately(), "it may be one client"
    node.ask(35, connection=new, clientID="c", consumerGroup="g", producerGroup="")
    assert node.members.consumers == {}
    assert (node.members.count, node.members.of(old)) == (0, [])
    old.close()


def test_a_silent_one_expires_alone(node: Any, connect: Any) -> None:
    one, other = two(connect)
    for each in (one, other, one, other):
        beat(node, each)
    for _ in range(5):
        beat(node, other, EXPIRY_MS // 4)
    assert shown(node) == ["10.9.9.9:2"]
    node.advance(2 * EXPIRY_MS)
    assert (node.members.consumers, node.members.count) == ({}, 0)
