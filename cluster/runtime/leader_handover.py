"""Chooses the next leader: the only place of a node where a leader chooses its successor and hands over.

Services decide that leadership should move, and which voters are acceptable. This module chooses the best of those, by
`raftlog.core.successor`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from raftlog.core.raw_node import RawNode
from raftlog.core.status import PeerStatus
from raftlog.core.successor import successor
from raftlog.types import NOBODY, NodeId

__all__ = ["NOBODY", "Succession", "best"]


def best(
    peers: Iterable[PeerStatus], voters: Collection[NodeId], fit: Callable[[PeerStatus], bool] = lambda peer: True
) -> NodeId:
    """Returns the voter that could take over soonest among those that are `fit`; NOBODY if there is none."""
    return successor(peers, voters, fit)


class Succession:
    """Chooses successors and hands leadership over, for one node. Event loop only."""

    def __init__(self, raw: RawNode, wake: Callable[[], None]) -> None:
        """`wake` schedules a turn of the driver."""
        self._raw = raw
        self._wake = wake

    def choose(self, fit: Callable[[PeerStatus], bool] = lambda peer: True) -> NodeId:
        """Returns the voter that should replace this leader; NOBODY if no voter is `fit`."""
        status = self._raw.status()
        return best(status.peers, status.voters, fit)

    def transfer(self, to: NodeId) -> None:
        """Starts a leadership transfer; its result shows in `RawNode.leader_id`. Raises RaftLogError if it cannot
        start, ValueError if that node is not fit."""
        self._raw.transfer_leadership(to)
        self._wake()
