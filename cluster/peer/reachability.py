"""Decides which nodes count as unreachable for the leader. Routes direct the broker names of unreachable nodes to
reachable ones (docs/adr/0010-broker-names.md).

Every node judges its own links, but only the leader's judgement counts: two nodes on different sides of a partition
must not give clients different routes. The leader sends its judgement in PING (docs/wire-protocol.md), at once when it
changes. A link that flaps moves a name only once: away after the peer was unreachable for a while, back only after a
calm period. But while several nodes are away, the name of a node that returns moves back at once. Otherwise the names
of several nodes would stay on the few nodes that are left. If these stopped next, clients that know only their
addresses would reach no node until the next route poll. A peer that announces that it is leaving (it is drained, in
maintenance, or stops) counts as away at once: clients move at their next route poll, while the peer still serves them.

Until a new leader's report arrives, the last leader's report is used. It may be out of date: a node may have returned,
and the last leader may be dead. So the names of this node and of the nodes that it reaches then lead to these nodes
themselves. All other names lead to nodes to which this node is connected.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from cluster.runtime.peer_frames import WireError
from raftlog.types import NOBODY, NodeId

if TYPE_CHECKING:
    from cluster.config.node_sections import RaftSection

logger = logging.getLogger(__name__)

AWAY_MS = 1000
"""Milliseconds out of reach after which the node's name moves."""
BACK_MS = 3000
"""Milliseconds for which a node must be in reach, without a silence of half of AWAY_MS, before its name moves back.
While another peer counts as away or is not connected, the name of a node that is reached again moves back at once: it
may lead to that other peer."""
DRAINED, STOPPING, MAINTAINED = "drain", "stop", "maintenance"
LEAVING = frozenset((DRAINED, STOPPING, MAINTAINED))
"""The reasons for holding back election campaigns (`RawNode.hold_campaigns`) with which a node announces that it is
leaving."""
_HEARTBEATS = 3
"""Heartbeats in a row whose absence makes a peer count as out of reach. They take longer than AWAY_MS only if [raft]
makes heartbeats slow."""
_NODES_MAX = 1024
"""The longest list of nodes that a peer may send."""

Unreached = frozenset[NodeId]


def patience_ms(raft: RaftSection) -> int:
    """Returns the milliseconds for which a peer may be silent before it counts as out of reach."""
    return max(AWAY_MS, _HEARTBEATS * raft.tick_ms * raft.heartbeat_ticks)


class Reach:
    """One node's view of which peers it reaches, and the leader's view as last received."""

    def __init__(
        self, away_ms: int = AWAY_MS, object_of: Callable[[NodeId], str] = lambda node: f"node {node}"
    ) -> None:
        """`away_ms`: milliseconds out of reach after which a peer counts as away (`patience_ms`). `object_of` returns
        the name of a node in log lines."""
        self._object_of = object_of
        self._away_ms = away_ms
        self._well_since: dict[NodeId, int | None] = {}
        """Peer that counts as away -> time since which it is reached again; None if it is not reached."""
        self._lost: Unreached = frozenset()
        """Peers to which this node is not connected now, whether or not they count as away."""
        self._reached: Unreached = frozenset()
        """Peers that this node reaches now, and that do not announce that they are leaving."""
        self._leaving: Unreached = frozenset()
        self._said: dict[NodeId, Unreached | None] = {}
        """Peer -> the nodes that it reported as unreachable when it was the leader; None if it did not lead when it
        last reported."""
        self._counts: Unreached = frozenset()
        """The unreachable peers according to the last leader from which this node received a report."""

    @property
    def away(self) -> Unreached:
        """The peers that count as away for this node, whatever the leader reports."""
        return frozenset(self._well_since)

    def judge(
        self,
        out_ms: Mapping[NodeId, int],
        now_ms: int,
        leaving: Collection[NodeId] = (),
        lost: Collection[NodeId] = (),
    ) -> bool:
        """Updates `away`; returns True if it changed. `out_ms`: peer -> milliseconds for which it has been out of reach
        or silent, 0 if data has just arrived. `leaving`: peers that announce that they are leaving, and this node if it
        does. `lost`: peers that are not connected."""
        self._lost, self._leaving = frozenset(lost), frozenset(leaving)
        there = out_ms.keys() - self._lost - self._leaving
        self._reached = frozenset(peer for peer in there if out_ms[peer] < self._away_ms)
        before = self.away
        for peer in before - out_ms.keys():
            del self._well_since[peer]
        for peer, ms in out_ms.items():
            if ms >= self._away_ms or peer in leaving or (peer in self._well_since and ms >= self._away_ms // 2):
                self._well_since[peer] = None
            elif peer in self._well_since:
                since = self._well_since[peer]
                if since is None:
                    self._well_since[peer] = now_ms
                elif now_ms - since >= BACK_MS:
                    del self._well_since[peer]
        for peer in [peer for peer, since in self._well_since.items() if since is not None]:
            if len(self._well_since) > 1 or self._lost - {peer}:
                del self._well_since[peer]
        return self.away != before

    # --- the leader's word ---------------------------------------------------------------------------------------

    def word(self, leads: bool) -> list[int] | None:
        """Returns this node's report for PING: the sorted ids of the peers that it does not reach; None if it does not
        lead."""
        return sorted(self.away) if leads else None

    def heard(self, peer: NodeId, word: object) -> None:
        """Records the list of unreachable nodes in a peer's PING; None if the peer does not lead. Raises WireError if
        it is malformed."""
        if word is None:
            self._said[peer] = None
            return
        if not isinstance(word, list) or len(word) > _NODES_MAX or any(type(node) is not int for node in word):
            raise WireError("malformed list of nodes that a leader does not reach")
        self._said[peer] = frozenset(NodeId(node) for node in word)

    def settle(self, own: NodeId, leader: NodeId) -> Unreached:
        """Returns the nodes that the leader `leader` does not reach; `own` is this node. Until the leader's first
        report arrives, returns the last leader's report without the nodes that this node reaches, and without this node
        unless it is leaving."""
        word = self._word_of(own, leader)
        if word is None:
            return self._counts - self._reached - ({own} - self._leaving)
        self._note(leader, word)
        return self._counts

    def stand_ins(self, own: NodeId, leader: NodeId, nodes: Collection[NodeId]) -> dict[NodeId, NodeId]:
        """Returns, for each of `nodes`, the node to which its broker name leads. `own` is this node, `leader` the
        present leader or NOBODY."""
        avoided = self._lost if self._word_of(own, leader) is None else frozenset[NodeId]()
        return stand_ins(nodes, self.settle(own, leader), avoided)

    def _word_of(self, own: NodeId, leader: NodeId) -> Unreached | None:
        """Returns the leader's last report; None if there is no leader, if this node has no connection to it, or if it
        has not reported as leader yet."""
        if leader == own:
            return self.away
        return None if leader == NOBODY or leader in self._lost else self._said.get(leader)

    def _names(self, nodes: Unreached) -> str:
        return ", ".join(map(self._object_of, sorted(nodes))) or "no node (all are reached)"

    def _note(self, leader: NodeId, unreached: Unreached) -> None:
        if unreached == self._counts:
            return
        if unreached:
            why = "is out of reach or leaves: clients are sent elsewhere"
            logger.info("%s leads: of the nodes, %s %s", self._object_of(leader), self._names(unreached), why)
        else:
            logger.info("%s leads, and reaches every node again", self._object_of(leader))
        self._counts = unreached


def stand_ins(
    nodes: Collection[NodeId], unreached: Collection[NodeId], avoided: Collection[NodeId] = ()
) -> dict[NodeId, NodeId]:
    """Returns, for each of `nodes`, the node to which its broker name leads: itself if it is reachable, else the next
    reachable node in the ring of ids. A node in `avoided` is chosen only if there is no other. If no node is reachable,
    each name leads to its own node."""
    ring = sorted(nodes)
    living = [node for node in ring if node not in unreached]
    if not living:
        return {node: node for node in ring}
    there = [node for node in ring if node not in avoided]
    offered = [node for node in living if node in there] or there or living
    return {node: node if node in living else next((one for one in offered if one > node), offered[0]) for node in ring}
