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
    """The voter that needs least to lead: fit, heard since the last check-quorum if any is, with the longest log; of
    equals the one with the lowest id. NOBODY if there is none.

    `peers` and `voters`: of the leader's `Status`. `may`: what its caller demands besides, such as a connection.
    """
    able = [peer for peer in peers if peer.fit and peer.node_id in voters and may(peer)]
    best = min(able, key=lambda peer: (not peer.recent_active, -peer.match_index, peer.node_id), default=None)
    return best.node_id if best is not None else NOBODY
