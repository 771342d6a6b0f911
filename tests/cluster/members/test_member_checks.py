"""Changes that a leader refuses: each in words, with the command that would work; nothing is proposed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from cluster.members import checks
from cluster.members.addresses import MemberAddresses
from cluster.members.checks import TRANSFER_LAG_MAX, Group
from raftlog.core.status import PeerStatus
from raftlog.membership import Membership
from raftlog.types import NodeId, Voter
from raftmq_wire.errors import ExitCode, LocalError
from tests.support.rows import each_row

UUIDS = {node: UUID(int=node) for node in range(1, 10)}


def addresses(node: int) -> MemberAddresses:
    return MemberAddresses("10.0.0.1", 10900 + node, "", {})


def peer(node: int, **changes: Any) -> PeerStatus:
    sound = PeerStatus(NodeId(node), 90, 91, "REPLICATE", True, 10, 0, 0, True, True)
    return sound._replace(**changes)


def group(
    *,
    voters: tuple[int, ...] = (1, 2, 3),
    learners: tuple[int, ...] = (),
    removed: tuple[int, ...] = (),
    live: tuple[int, ...] | None = None,
    peers: tuple[PeerStatus, ...] = (),
    index: int = 7,
    committed: int = 7,
) -> Group:
    """Node 1 leads; everybody is well but for what a test says."""
    members = [NodeId(node) for node in (*voters, *learners)]
    known = {node: peer(node) for node in members if node != 1} | {each.node_id: each for each in peers}
    return Group(
        NodeId(1),
        Membership(
            UUID(int=99),
            tuple(Voter(NodeId(node), UUIDS[node]) for node in voters),
            tuple(Voter(NodeId(node), UUIDS[node]) for node in learners),
            index=index,
            detail="node 4 joins",
            removed=tuple(Voter(NodeId(node), UUIDS[node]) for node in removed),
        ),
        committed,
        known,
        frozenset(known) if live is None else frozenset(map(NodeId, live)),
        {node: addresses(node) for node in members},
        1 + max(*voters, *learners, *removed, 3),
    )


def add(of: Group, node: int, uuid: int | None = None, at: MemberAddresses | None = None) -> bool:
    return checks.add(of, NodeId(node), UUIDS[uuid or node], at or addresses(node))


BAD: dict[str, tuple[Callable[[], object], str, str]] = {
    "a known id with another disk": (
        lambda: add(group(), 3, uuid=8), "node 3 is a member already", "raftmq node replace 3"),
    "a known id with another disk: the next free id": (
        lambda: add(group(removed=(6,)), 3, uuid=8), "id names one disk", "raftmq node add    (the next free id is 7)"),
    "an id that another node had": (lambda: add(group(removed=(4,)), 4, uuid=8), "ids are not used twice", "node add"),
    "a directory that is another node's": (
        lambda: add(group(), 4, uuid=2), "that data directory is node 2's", "a data directory that is empty"),
    "an address that another node has": (
        lambda: add(group(), 4, at=addresses(2)), "node 2 listens at 10.0.0.1:10902 already", "another [peer] port"),
    "add while a change is under way": (
        lambda: add(group(index=9), 4), "another membership change is in progress: node 4 joins", "raftmq node list"),
    "remove while a change is under way": (
        lambda: checks.remove(group(index=9), NodeId(2)), "entry 9 is not committed yet", "repeat the command"),
    "promote while a change is under way": (
        lambda: checks.promote(group(learners=(4,), index=9), NodeId(4), True), "one at a time", "raftmq node list"),
    "remove nobody": (lambda: checks.remove(group(), NodeId(9)), "there is no node 9", "use one of 1, 2, 3"),
    "remove who left": (
        lambda: checks.remove(group(removed=(4,)), NodeId(4)), "there is no node 4 any more", "raftmq node list"),
    "remove the last voter": (
        lambda: checks.remove(group(voters=(1,)), NodeId(1)), "node 1 is the only voter", "raftmq node add"),
    "remove one of two that the other needs": (
        lambda: checks.remove(group(live=(2,)), NodeId(2)), "without node 2 there would be no majority",
        "raftmq restart 3    (if its disk is lost: raftmq node replace 3; a node that raftmq up did not make: raftmq"),
    "remove the leader although nobody else answers": (
        lambda: checks.remove(group(voters=(1, 2), live=()), NodeId(1)), "2 that are left only none", "restart 2"),
    "promote nobody": (lambda: checks.promote(group(), NodeId(9), True), "there is no node 9", "use one of"),
    "promote a voter": (lambda: checks.promote(group(), NodeId(2), True), "node 2 votes already", "raftmq node list"),
    "promote who does not answer": (
        lambda: checks.promote(group(learners=(4,), live=(2, 3)), NodeId(4), True), "does not answer",
        "raftmq serve --config FILE"),
    "promote who is behind": (
        lambda: checks.promote(group(learners=(4,), peers=(peer(4, lag=500),)), NodeId(4), False),
        "it is 500 entries behind", "then raftmq node promote 4"),
    "promote who is not whole": (
        lambda: checks.promote(group(learners=(4,), peers=(peer(4, fit=False),)), NodeId(4), True),
        "node 4 is not fit to vote", "raftmq repair --node 4"),
    "transfer to nobody": (lambda: checks.transfer(group(), NodeId(9)), "there is no node 9", "use one of 1, 2, 3"),
    "transfer to a learner": (
        lambda: checks.transfer(group(learners=(4,)), NodeId(4)), "only a voter can lead", "raftmq node promote 4"),
    "transfer to who is behind": (
        lambda: checks.transfer(group(peers=(peer(2, lag=TRANSFER_LAG_MAX + 1),)), NodeId(2)),
        f"it is {TRANSFER_LAG_MAX + 1} entries behind", "raftmq node transfer 3"),
    "transfer to who is behind, and nobody else": (
        lambda: checks.transfer(group(voters=(1, 2), peers=(peer(2, state="SNAPSHOT"),)), NodeId(2)),
        "entries behind", "raftmq node list    (until node 2 is well again)"),
    "transfer to who is drained": (
        lambda: checks.transfer(group(peers=(peer(2, fit=False),)), NodeId(2)), "it is drained", "node transfer 3"),
    "transfer to who is away": (
        lambda: checks.transfer(group(live=(3,)), NodeId(2)), "it does not answer", "raftmq node transfer 3"),
    "drain the only voter": (lambda: checks.successor(group(voters=(1,))), "it is the only voter", "raftmq node add"),
    "drain the only one that answers": (
        lambda: checks.successor(group(live=())), "node 2: it does not answer; node 3: it does", "raftmq restart 2"),
}  # fmt: skip


@each_row("name", BAD)
def test_refused_with_the_command_that_would_work(name: str) -> None:
    attempt, says, fix = BAD[name]
    with pytest.raises(LocalError) as caught:
        attempt()
    assert says in f"{caught.value.what}: {caught.value.why}"
    assert fix in caught.value.fix
    assert caught.value.exit_code is ExitCode.REFUSED
    assert "\n" not in caught.value.what + caught.value.why + caught.value.fix


def test_what_can_be_done_is_not_refused() -> None:
    assert add(group(), 4)
    assert add(group(removed=(4,)), 4), "who left may come back with its disk"
    assert add(group(), 3, at=addresses(8)), "a member that moved"
    assert not add(group(), 3), "the same again is no change"
    assert not add(group(index=9), 3), "and no reason to wait"
    checks.remove(group(), NodeId(1))
    checks.remove(group(live=(2,)), NodeId(3))
    checks.remove(group(learners=(4,), live=(2,)), NodeId(4))
    checks.remove(group(voters=(1, 2), live=()), NodeId(2))
    checks.promote(group(learners=(4,)), NodeId(4), True)
    checks.transfer(group(peers=(peer(2, lag=TRANSFER_LAG_MAX),)), NodeId(2))
    checks.transfer(group(live=()), NodeId(1))


def test_only_who_could_lead_at_once_leads_after_a_drained_one() -> None:
    assert checks.successor(group(peers=(peer(2, lag=TRANSFER_LAG_MAX + 1),))) == 3
    assert checks.successor(group(live=(3,))) == 3
    assert checks.successor(group(peers=(peer(2, state="SNAPSHOT"),))) == 3
