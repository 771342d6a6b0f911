"""The choice of the next leader when a leader hands over."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from raftlog.core.status import PeerStatus
from raftlog.types import NOBODY, NodeId


def successor(
    peers: Iterable[PeerStatus],
    voters: Collection[NodeId],
    may: Callable[[PeerStatus], bool] = lambda peer: True,
) -> NodeId:
    """Returns the voter that can take over soonest: one that is fit, has answered since the last check-quorum if any
    voter has, and has the longest log. Among equals, the one with the lowest id; NOBODY if there is none.

    `peers` and `voters` come from the leader's `Status`. `may` is a further condition of the caller, such as an open
    connection.
    """
    able = [peer for peer in peers if peer.fit and peer.node_id in voters and may(peer)]
    best = min(able, key=lambda peer: (not peer.recent_active, -peer.match_index, peer.node_id), default=None)
    return best.node_id if best is not None else NOBODY
