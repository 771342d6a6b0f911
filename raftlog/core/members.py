"""Who belongs to the group, and the leader's progress table.

The seam for membership change: `voters` decides quorums, `peers` decides who is sent the log. Today both hold the same
nodes (less the own one); a learner will be a peer that is no voter, and a MEMBERSHIP entry will replace both here, when
it is appended, one member at a time (docs/divergence.md).
"""

from __future__ import annotations

from collections.abc import Iterable

from raftlog.core.progress import Inflights, Progress
from raftlog.core.quorum import agreed_value, majority
from raftlog.types import NodeId


class Members:
    """The voter set and what the leader knows about each peer."""

    __slots__ = ("_bytes_max", "_messages_max", "own_id", "peers", "voters")

    def __init__(self, own_id: NodeId, voters: Iterable[NodeId], messages_max: int, bytes_max: int) -> None:
        self.own_id = own_id
        self.voters = tuple(sorted(voters))
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self.peers: dict[NodeId, Progress] = {}
        self.reset(0)

    @property
    def quorum(self) -> int:
        """Voters that make a majority."""
        return majority(len(self.voters))

    def is_voter(self, node: NodeId) -> bool:
        """True if `node` counts for elections and commits."""
        return node in self.voters

    def other_voters(self) -> list[NodeId]:
        """The voters to ask, in id order."""
        return [node for node in self.voters if node != self.own_id]

    def reset(self, next_index: int) -> None:
        """A new term: nothing is known about anyone."""
        self.peers = {
            node: Progress(next_index, Inflights(self._messages_max, self._bytes_max)) for node in self.other_voters()
        }

    def agreed_match(self, own_persisted: int) -> int:
        """Largest index that a majority of voters has on disk; the own disk is one vote like any other."""
        peers = self.peers
        own = self.own_id
        return agreed_value([own_persisted if node == own else peers[node].match_index for node in self.voters])

    def agreed_round(self, own_round: int) -> int:
        """Newest heartbeat round that a majority of voters, the leader included, has confirmed."""
        peers = self.peers
        own = self.own_id
        return agreed_value([own_round if node == own else peers[node].acked_round for node in self.voters])

    def active_voters(self) -> int:
        """Voters heard from since the last call, the own node included; starts a new observation."""
        active = 0
        for node in self.voters:
            active += node == self.own_id or self.peers[node].recent_active
        for progress in self.peers.values():
            progress.recent_active = False
        return active
