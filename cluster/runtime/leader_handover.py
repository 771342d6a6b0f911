"""Chooses the next leader. Only this module of a node lets a leader choose its successor and hand leadership over.

Services decide that leadership should move, and which voters are acceptable. This module chooses the best of those, by
`raftlog.core.successor`. A voter with a slower disk than another one is only chosen if no other can take over at once.
Even if its log is complete at this moment, as the leader it would delay every acknowledgement that waits for its own
disk.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from raftlog.core.raw_node import RawNode
from raftlog.core.status import PeerStatus
from raftlog.core.successor import successor
from raftlog.types import NOBODY, NodeId

__all__ = ["NOBODY", "Slower", "Succession", "best", "none_slower"]

Slower = Callable[[NodeId, Collection[NodeId]], bool]
"""A function (node, other nodes) that returns True if the disk of the node is known to be slower than the disk of one
of the others."""


def none_slower(_node: NodeId, _others: Collection[NodeId]) -> bool:
    """Returns False. Used where nothing is known about the disks."""
    return False


def best(
    peers: Iterable[PeerStatus],
    voters: Collection[NodeId],
    fit: Callable[[PeerStatus], bool] = lambda peer: True,
    slower: Slower = none_slower,
) -> NodeId:
    """Returns the voter that could take over soonest among those for which `fit` returns True; NOBODY if there is none.
    A voter whose disk is `slower` is only returned if no other can take over at once."""
    able = [peer for peer in peers if peer.fit and peer.node_id in voters and fit(peer)]
    nodes = [peer.node_id for peer in able]
    heard = any(peer.recent_active for peer in able)  # False right after a check-quorum, which resets the flag of all

    def is_quick(peer: PeerStatus) -> bool:
        return peer.recent_active is heard and peer.caught_up and not slower(peer.node_id, nodes)

    quick = successor(able, voters, is_quick)
    return quick if quick != NOBODY else successor(able, voters)


class Succession:
    """Chooses successors and hands leadership over, for one node. Event loop only."""

    def __init__(self, raw: RawNode, wake: Callable[[], None], slower: Slower = none_slower) -> None:
        """`wake` schedules a turn of the driver. `slower` compares the disks of nodes."""
        self._raw = raw
        self._wake = wake
        self.slower = slower

    def choose(self, fit: Callable[[PeerStatus], bool] = lambda peer: True) -> NodeId:
        """Returns the voter that should replace this leader, among those for which `fit` returns True; NOBODY if none
        of them can lead."""
        status = self._raw.status()
        return best(status.peers, status.voters, fit, self.slower)

    def transfer(self, to: NodeId) -> None:
        """Starts a leadership transfer; its result shows in `RawNode.leader_id`. Raises NotLeaderError if this node
        does not lead, ValueError if `to` is no voter or not fit to lead."""
        self._raw.transfer_leadership(to)
        self._wake()
