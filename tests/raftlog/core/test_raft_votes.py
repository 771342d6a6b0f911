"""A node that grants a vote waits a whole election timeout before it campaigns itself (Raft paper, section 5.2)."""

from __future__ import annotations

from raftlog.core.raw_node import RawNode
from raftlog.messages import RequestVote
from raftlog.types import NOBODY, HardState, NodeId, Role
from tests.support.raft_group import Disk, chain, raw_of

ONE, THREE = NodeId(1), NodeId(3)
LOG = chain([1, 1])


def _follower() -> RawNode:
    disk = Disk(LOG, HardState(2, NOBODY, 0))
    return raw_of(disk)


def _ticks_until_it_campaigns(raw: RawNode) -> int:
    for count in range(1, 200):
        raw.tick()
        if raw.role is not Role.FOLLOWER:
            return count
    raise AssertionError("it never campaigns")


def test_a_granted_vote_starts_the_election_timeout_anew() -> None:
    """Also in a term that the voter knew."""
    patience = _ticks_until_it_campaigns(_follower())
    raw = _follower()
    for _ in range(patience - 1):
        raw.tick()
    raw.step(RequestVote(ONE, THREE, 2, LOG[-1].id, False, False))
    (reply,) = raw.ready().messages_after_persist
    assert reply.granted  # type: ignore[union-attr]
    assert _ticks_until_it_campaigns(raw) > 1
