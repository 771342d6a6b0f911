"""Witnesses of the planted bugs about members and snapshots; see witnesses.py."""

from __future__ import annotations

from functools import reduce
from uuid import UUID

from jepsen_like.core_sim.machine import members_of
from jepsen_like.core_sim.scripted import Stage
from raftlog.core import replication
from raftlog.core.state.members import Members
from raftlog.errors import MembershipError
from raftlog.membership import Address, Membership, with_learner, without
from raftlog.messages import AppendEntries, InstallSnapshot
from raftlog.types import EntryId, NodeId, Role, Voter

ONE, TWO, THREE, FOUR, FIVE = (NodeId(number) for number in range(1, 6))
LED = "nodes 3\ncampaign 1\nrun\n"


def stage(script: str) -> Stage:
    played = Stage(black_box=True)
    played.play(script)
    return played


def joined(members: Membership, node: NodeId) -> Membership:
    return with_learner(members, Voter(node, UUID(int=node)), Address(node, "host", 1))


def with_learners(*learners: NodeId) -> Membership:
    return reduce(joined, learners, members_of((ONE, TWO, THREE)))


def table(current: Membership) -> Members:
    """Returns the members as node 1 has them."""
    return Members(ONE, [current], 1, 1)


def refuses_to_add_four(script: str) -> bool:
    """Node 1, which leads after `script`."""
    raw = stage(script).machines[ONE].raw
    try:
        raw.propose_membership(joined(raw.membership, FOUR), 0)
    except MembershipError:
        return True
    return False


def witness_C60() -> None:
    played = stage(LED + "join 4\nadd 1 4\nrun\ncut 1 2\ncampaign 3\nsync 3\ntick 3 3\nsync 3\n")
    assert not played.links[THREE, FOUR]


def witness_C61() -> None:
    script = "cut 3\njoin 4\nadd 1 4\nrun\ntick 1 2\nrun\npromote 1 4\nrun\nheal\ntick 1 2\nrun\n"
    assert stage(LED + script).machines[THREE].raw.membership.voter_ids == (ONE, TWO, THREE, FOUR)


def witness_C62() -> None:
    members = table(members_of((ONE, TWO, THREE)))
    members.append(without(members.current, THREE)._replace(index=7), 0)
    members.truncate_from(6)
    assert members.voters == (ONE, TWO, THREE)


def witness_C63() -> None:
    assert refuses_to_add_four(LED + "remove 1 3\nsync 1\n")


def witness_C64() -> None:
    voted = "deliver 1->2\nsync 2\ndeliver 2->1\n"
    assert refuses_to_add_four("nodes 3\ncampaign 1\nsync 1\n" + voted + "sync 1\n")  # its no-op is on no other disk


def witness_C65() -> None:
    removed = "remove 1 1\ndeliver 1->2\ndeliver 1->3\nsync 2\nsync 3\nread 1\ndeliver 2->1 1\ndeliver 3->1 1\n"
    assert stage(LED + removed).machines[ONE].raw.role is Role.FOLLOWER


def witness_C66() -> None:
    members = table(without(with_learners(FOUR), ONE))
    members.peers[TWO].match_index = 5
    assert members.agreed_match(5) < 5


def witness_C67() -> None:
    raw = stage(LED + "cut 1\npropose 1 4\nrun\n").machines[ONE].raw
    raw.step(InstallSnapshot(TWO, ONE, 2, 4, EntryId(2, 3)))
    assert raw.commit_index < 3


def witness_C68() -> None:
    raft = stage(LED + "campaign 2\nrun\npropose 2\nrun\ntrim 2 2\n").machines[TWO].raw.raft
    peer = raft.members.peers[THREE]
    peer.match_index = 1
    peer.become_probe()
    replication.probe(raft, THREE, peer)
    message = raft.messages[-1]
    assert isinstance(message, AppendEntries)
    assert message.prev == EntryId(1, 1)


def witness_C69() -> None:
    raw = stage(LED + "remove 1 1\ndeliver 1->2\ndeliver 1->3\npropose 1\nrun\n").machines[ONE].raw
    assert not raw.may_campaign


def witness_C70() -> None:
    script = "nodes 2\ncampaign 1\nrun\ncut 2\nremove 1 1\npropose 1\nrun\ncrash 1\nstart 1\n"
    assert stage(script).machines[ONE].raw.may_campaign


def witness_C71() -> None:
    members = table(with_learners(FOUR))
    members.peers[FOUR].recent_active = True
    assert members.active_voters() == 1


def witness_C72() -> None:
    members = table(with_learners(FOUR, FIVE))
    members.peers[FOUR].acked_round = members.peers[FIVE].acked_round = 3
    assert members.agreed_round(3) == 0
