"""The peers that are let in over the peer port: members, guests of the same cluster, nobody who left or comes with
another disk."""

from __future__ import annotations

from typing import Any

from cluster.peer.allowed_peers import GUESTS_MAX, REMOVED, Membership, RemovedMember, Roster
from raftlog.types import NodeId
from tests.support.rows import each_row

CHANNELS = ("control", "bulk")
MEMBERS = {NodeId(1): "u1", NodeId(2): "u2", NodeId(4): "u4"}
LEFT = {NodeId(3): RemovedMember("u3", 77)}


def roster() -> Roster:
    me = Membership("c", 1, NodeId(1), "u1", MEMBERS, LEFT)
    return Roster(me, {NodeId(1): (("h1", 1),), NodeId(2): (("h2", 2),), NodeId(9): (("h9", 9),)})


def hello(node: int, uuid: str, *address: Any) -> list[Any]:
    return ["c", 1, node, uuid, 1, "control", 0, *address]


def test_only_other_members_with_an_address_are_dialled() -> None:
    assert roster().peers() == [2], "not itself, not node 9 of the configuration, not node 4 without an address"


@each_row(
    ("header", "reason", "kind", "since"),
    [
        (hello(2, "other"), "another disk", "", -1),
        (hello(2, "other"), "raftmq node replace 2", "", -1),
        (hello(3, "u3"), "removed from this cluster at entry 77", REMOVED, 77),
        (hello(3, "u3"), "raftmq node add", REMOVED, 77),
        (hello(3, "new", "h", 1), "ids are not used twice: raftmq node add", "", -1),
        (hello(1, "u1"), "is this node", "", -1),
        (hello(0, "u"), "no member", "", -1),
        (hello(7, "u7"), "no member", "", -1),
        (hello(7, "u7", "", 1), "no member", "", -1),
        (hello(7, "u7", "h", 65536), "no member", "", -1),
        (["x", *hello(2, "u2")[1:]], "belongs to cluster x", "", -1),
    ],
)
def test_refusals_say_what_would_work(header: list[Any], reason: str, kind: str, since: int) -> None:
    refusal = roster().judge(header, CHANNELS)
    assert refusal is not None
    assert reason in refusal.reason
    assert (refusal.kind, refusal.since) == (kind, since)


def test_a_member_is_let_in_and_dialled_where_the_members_say_it_is() -> None:
    known = roster()
    assert known.judge(hello(2, "u2", "elsewhere", 5), CHANNELS) is None
    assert not known.greet(hello(2, "u2", "elsewhere", 5))
    assert known.addresses_of(NodeId(2)) == (("h2", 2),)


def test_an_unknown_node_of_this_cluster_is_a_guest_at_the_address_it_names() -> None:
    known = roster()
    header = hello(7, "u7", "h7", 70)
    assert known.judge(header, CHANNELS) is None
    assert known.greet(header)
    assert known.peers() == [2, 7]
    assert known.addresses_of(NodeId(7)) == (("h7", 70),)
    assert known.is_guest(NodeId(7))
    twin = known.judge(hello(7, "another", "h8", 80), CHANNELS)
    assert twin is not None
    assert "two nodes say" in twin.reason
    known.leave(NodeId(7))
    assert known.peers() == [2]


def test_a_member_without_a_known_address_is_found_where_it_says() -> None:
    known = roster()
    assert known.greet(hello(4, "u4", "h4", 40))
    assert known.addresses_of(NodeId(4)) == (("h4", 40),)


def test_a_guest_that_becomes_a_member_or_leaves_is_no_guest_any_more() -> None:
    known = roster()
    for node in (7, 8):
        known.greet(hello(node, f"u{node}", "h", node))
    members = MEMBERS | {NodeId(7): "u7"}
    removed = LEFT | {NodeId(8): RemovedMember("u8", 80)}
    known.update(Membership("c", 1, NodeId(1), "u1", members, removed), {NodeId(7): (("h7", 71),)})
    assert known.peers() == [7]
    assert known.addresses_of(NodeId(7)) == (("h7", 71),)


def test_guests_are_not_without_number() -> None:
    known = roster()
    for node in range(10, 10 + GUESTS_MAX):
        known.greet(hello(node, f"u{node}", "h", node))
    refusal = known.judge(hello(100, "u100", "h", 100), CHANNELS)
    assert refusal is not None
    assert "say hello already" in refusal.reason
    assert known.judge(hello(10, "u10", "h", 10), CHANNELS) is None


def test_a_process_of_the_registry_is_dialled_and_never_dials() -> None:
    """It answers as group 0; a HELLO of that group is one of no group of the cluster."""
    told = ["c", 0, 1, "u", 0]
    refusal = roster().judge_group(told)
    assert refusal is not None
    assert refusal.reason == "a cluster has no group 0"
    assert roster().judge_group(told, least=0) is None
    assert roster().judge_group(["other", 0, 1, "u", 0], least=0) is not None
    assert roster().judge_group(["c", -1, 1, "u", 0], least=0) is not None
