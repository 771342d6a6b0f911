"""The choice of the next leader: the longest log, unless its disk is the slower one."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

from cluster.runtime.leader_handover import NOBODY, Succession, best, none_slower
from raftlog.core.status import PeerStatus
from raftlog.types import NodeId
from tests.support.rows import each_row

ONE, TWO, THREE, FOUR = (NodeId(node) for node in (1, 2, 3, 4))
VOTERS = (ONE, TWO, THREE)


def peer(node: NodeId, match: int = 90, **told: Any) -> PeerStatus:
    fields = {"recent_active": True, "fit": True, "caught_up": True} | told
    return PeerStatus(
        node, match, match + 1, "REPLICATE", lag=90 - match, inflight_messages=0, inflight_bytes=0, **fields
    )


def two_is_slower(node: NodeId, others: Collection[NodeId]) -> bool:
    """The disk of node 2 is slower than that of node 3 or 4."""
    return node == TWO and any(other != TWO for other in others)


@each_row(
    ("peers", "to"),
    [
        ([peer(TWO), peer(THREE)], THREE),  # with equal logs the lower id would lead
        ([peer(TWO), peer(THREE, 80)], THREE),  # at this moment the slower disk has more
        ([peer(TWO), peer(THREE, fit=False)], TWO),
        ([peer(TWO), peer(THREE, recent_active=False)], TWO),
        ([peer(TWO, recent_active=False), peer(THREE, recent_active=False)], THREE),
        ([peer(TWO), peer(THREE, 10, caught_up=False)], TWO),
        ([peer(TWO), peer(FOUR)], TWO),  # node 4 is a learner
        ([peer(TWO)], TWO),  # it is better than none
        ([peer(TWO, fit=False)], NOBODY),
        ([], NOBODY),
    ],
)
def test_the_slower_disk_leads_only_if_no_other_can(peers: list[PeerStatus], to: NodeId) -> None:
    assert best(peers, VOTERS, slower=two_is_slower) == to


def test_only_those_that_are_fit_are_compared() -> None:
    compared: list[list[NodeId]] = []

    def slower(_node: NodeId, others: Collection[NodeId]) -> bool:
        compared.append(list(others))
        return False

    peers = [peer(TWO), peer(THREE), peer(FOUR)]
    assert best(peers, (*VOTERS, FOUR), lambda each: each.node_id != THREE, slower) == TWO
    assert compared == [[TWO, FOUR]] * 2


def test_without_knowledge_the_longest_log_leads() -> None:
    peers = [peer(TWO, 80), peer(THREE)]
    assert best(peers, VOTERS) == best(peers, VOTERS, slower=none_slower) == THREE
    assert best([peer(TWO), peer(THREE)], VOTERS) == TWO


def test_a_nodes_succession_asks_for_slower_disks() -> None:
    raw: Any = SimpleNamespace(status=lambda: SimpleNamespace(peers=(peer(TWO), peer(THREE)), voters=VOTERS))
    assert Succession(raw, lambda: None).choose() == TWO
    succession = Succession(raw, lambda: None, two_is_slower)
    assert succession.choose() == THREE
    assert succession.choose(lambda each: each.node_id == TWO) == TWO
