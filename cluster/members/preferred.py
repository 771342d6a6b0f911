"""Moves leadership to a preferred node: not at once, and not repeatedly."""

from __future__ import annotations

from collections.abc import Sequence

from raftlog.core.status import PeerStatus
from raftlog.types import NOBODY, NodeId

AFTER_ELECTION_MS = 30_000
"""A leader stays at least this long, since there was a reason for its election."""
BETWEEN_MS = 60_000
"""Shortest time between two such transfers of a leader, failed ones included."""
STEADY_MS = 5_000
"""The preferred node must have been caught up for this long."""


class Preference:
    """What one leader does about `[raft] preferred_leaders`. Times in monotonic milliseconds."""

    def __init__(self, own: NodeId, wished: str, lag_max: int) -> None:
        """`wished`: ids, best first, as "2;1". `lag_max`: entries that a node may be behind to be handed leadership."""
        self._own = own
        self.reload(wished, lag_max)
        self._term = -1
        self._elected_ms = 0
        self._tried_ms: int | None = None
        self._candidate = NOBODY
        self._since_ms = 0

    def reload(self, wished: str, lag_max: int) -> None:
        """Other wishes from now on."""
        self._wished = [NodeId(int(node)) for node in wished.split(";") if node]
        self._lag_max = lag_max

    def choose(self, term: int, voters: Sequence[NodeId], peers: Sequence[PeerStatus], now_ms: int) -> NodeId:
        """The node that this leader of `term` should transfer leadership to, or NOBODY. Call it periodically."""
        if term != self._term:
            self._term, self._elected_ms, self._candidate = term, now_ms, NOBODY
        best = self._best(voters, {peer.node_id: peer for peer in peers})
        if best != self._candidate:
            self._candidate, self._since_ms = best, now_ms
        if best in (NOBODY, self._own) or not self._is_time(now_ms):
            return NOBODY
        self._tried_ms = now_ms
        return best

    def _best(self, voters: Sequence[NodeId], peers: dict[NodeId, PeerStatus]) -> NodeId:
        for node in self._wished:
            if node in voters and (node == self._own or (node in peers and self._is_near(peers[node]))):
                return node
        return NOBODY

    def _is_near(self, peer: PeerStatus) -> bool:
        return peer.fit and peer.caught_up and peer.lag <= self._lag_max

    def _is_time(self, now_ms: int) -> bool:
        return (
            now_ms - self._elected_ms >= AFTER_ELECTION_MS
            and now_ms - self._since_ms >= STEADY_MS
            and (self._tried_ms is None or now_ms - self._tried_ms >= BETWEEN_MS)
        )
