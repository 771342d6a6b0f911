"""The questions and answers about what is written: as long as somebody wants to know, and not longer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.replication.acks.write_reports import ASK_MS, LEASE_MS, WrittenRelay
from cluster.runtime.listeners import Signal
from cluster.runtime.peer_frames import Kind
from raftlog.types import EntryId, NodeId, Role

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)


class Node:
    """Node 1 of three, and the frames it sent."""

    def __init__(self, role: Role, loop: Any = None) -> None:
        self.sent: list[tuple[NodeId, Kind, list[Any]]] = []
        self.wants_quorum: Signal[[]] = Signal()
        self.early: Any = SimpleNamespace(written=lambda *_: None, wants_own=Signal(), wants_quorum=self.wants_quorum)
        self.tells: Any = None
        """Whom the log tells what it writes."""
        raw: Any = SimpleNamespace(role=role, membership=SimpleNamespace(voter_ids=(ONE, TWO, THREE)))
        self.relay = WrittenRelay(ONE, raw, self.early, self, self, loop, lambda: None)  # type: ignore[arg-type]

    def tell_written(self, call: Any) -> None:
        self.tells = call

    def send_frame(self, peer: NodeId, kind: Kind, header: list[Any], payload: bytes) -> bool:
        self.sent.append((peer, kind, header))
        return False  # whatever is said may be lost

    def asked(self) -> list[NodeId]:
        found = [peer for peer, kind, _ in self.sent if kind is Kind.WANT_WRITTEN]
        self.sent.clear()
        return found


def test_a_leader_asks_again_as_long_as_it_wants_to_know() -> None:
    """The first question may be lost, and what answers it ends with its lease."""
    node = Node(Role.LEADER)
    node.wants_quorum()
    assert node.asked() == [TWO, THREE]
    node.wants_quorum()
    node.relay.tick(ASK_MS - 1)
    assert node.asked() == [], "not more often than that"
    node.relay.tick(ASK_MS)
    assert node.asked() == [TWO, THREE]
    node.relay.tick(LEASE_MS)
    assert node.asked() == [], "nobody wants to know any more"


def test_who_leads_no_longer_asks_no_longer() -> None:
    node = Node(Role.FOLLOWER)
    node.wants_quorum()
    node.asked()
    node.relay.tick(ASK_MS)
    assert node.asked() == []


@pytest.mark.parametrize(("now_ms", "told"), [(LEASE_MS - 1, True), (LEASE_MS, False)])
async def test_a_follower_tells_for_the_time_of_the_lease(now_ms: int, told: bool) -> None:
    node = Node(Role.FOLLOWER, asyncio.get_running_loop())
    node.relay.on_frame(TWO, Kind.WANT_WRITTEN, [])
    written = node.tells
    node.relay.tick(now_ms)
    assert (node.tells is not None) == told
    written(EntryId(3, 7))
    await asyncio.sleep(0)
    assert node.sent == [(TWO, Kind.WRITTEN, [3, 7])] * told
