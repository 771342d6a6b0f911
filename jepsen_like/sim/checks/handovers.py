"""Records which node led when (a reign), and checks transfers of leadership: the successor must have all of the old
leader's log.

A leader that transfers leadership takes no more proposals and waits until its successor has all of its log on disk
(thesis 3.10). So a successor that campaigns because of TimeoutNow, while the old leader still waits for it, has
everything that the old leader ever acknowledged, at any level. The successor's reign continues the old one, and is no
excuse for a lost message (`allowed_losses`).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import NamedTuple

from jepsen_like.sim.callbacks import Report
from raftlog.core.raft import Raft
from raftlog.types import NOBODY, EntryId, NodeId, Role


class Reign:
    """One node's leadership in one term. It ends when the node no longer takes itself for the leader of that term, or
    when the node's process ends. Times are in seconds."""

    __slots__ = ("begun_s", "ended_s", "house", "node", "term")

    def __init__(self, node: NodeId, term: int, begun_s: float, house: int) -> None:
        """`house`: the term of the first leader in a chain of leaders, each of which transferred leadership to the
        next. The number identifies the chain."""
        self.node, self.term, self.begun_s, self.house = node, term, begun_s, house
        self.ended_s = math.inf


class _Handing(NamedTuple):
    """A transfer in progress: a leader waits for its successor and appends nothing during that time."""

    term: int
    to: NodeId
    tail: EntryId


class Reigns:
    """All reigns of a run. The monitor calls `turn` after every driver turn. Violations are reported under the name
    `handover`.
    """

    def __init__(self, report: Report) -> None:
        self.all: list[Reign] = []
        """All reigns, in the order in which they began."""
        self.handovers = 0
        self._report = report
        self._now: dict[NodeId, Reign] = {}
        self._handing: dict[NodeId, _Handing] = {}
        self._given_up: set[tuple[NodeId, int, NodeId]] = set()
        """(leader, term, successor) of transfers that the leader gave up. The leader's message to campaign may still
        arrive later, when the leader's log has grown.
        """
        self._roles: dict[NodeId, Role] = {}
        self._told: dict[NodeId, int] = {}
        """Node -> the term in which it campaigned without a pre-vote, which a node does only if the leader asked it to
        (TimeoutNow).
        """

    def turn(self, node: NodeId, raft: Raft, now_s: float) -> None:
        """Records the node's role after a turn of its driver."""
        if raft.role is Role.CANDIDATE and self._roles.get(node) is Role.FOLLOWER:
            self._told[node] = raft.term
        self._roles[node] = raft.role
        reign = self._now.get(node)
        if reign is not None and (raft.role is not Role.LEADER or raft.term != reign.term):
            self.ended(node, now_s)
            reign = None
        if raft.role is Role.LEADER:
            if reign is None:
                self._begin(node, raft, now_s)
            self._note_handing(node, raft)

    def gone(self, node: NodeId, now_s: float) -> None:
        """Records that the node's process has ended, and with it the node's reign."""
        self._roles.pop(node, None)
        self.ended(node, now_s)

    def ended(self, node: NodeId, now_s: float) -> None:
        """Records that the node no longer leads."""
        reign = self._now.pop(node, None)
        if reign is not None:
            reign.ended_s = now_s

    def houses(self, from_s: float, to_s: float) -> Collection[int]:
        """Returns the houses (chains of leaders by transfer) that led at any time between these two times in
        seconds."""
        return {reign.house for reign in self.all if reign.begun_s <= to_s and reign.ended_s >= from_s}

    def _begin(self, node: NodeId, raft: Raft, now_s: float) -> None:
        before = max((reign for reign in self.all if reign.term < raft.term), key=lambda r: r.term, default=None)
        handing = self._handing.get(before.node) if before is not None else None
        house, told = raft.term, self._told.get(node) == raft.term
        if before is not None and handing is not None and told and (handing.term, handing.to) == (before.term, node):
            house = before.house
            self.handovers += 1
            if not raft.log.matches(handing.tail):
                self._report(
                    "handover",
                    f"node {before.node} handed over to node {node}, which leads term {raft.term} without "
                    f"entry {handing.tail} of its log",
                )
        self._now[node] = reign = Reign(node, raft.term, now_s, house)
        self.all.append(reign)

    def _note_handing(self, node: NodeId, raft: Raft) -> None:
        known, to = self._handing.get(node), raft.transferee
        if known is not None and (known.term, known.to) != (raft.term, to):
            self._given_up.add((node, known.term, known.to))
            del self._handing[node]
        if to != NOBODY and (node, raft.term, to) not in self._given_up:
            self._handing[node] = _Handing(raft.term, to, raft.log.tail.id)
