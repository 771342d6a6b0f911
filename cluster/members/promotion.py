"""Decides when a learner has caught up: the leader replicates in rounds, and the last was short (Raft thesis 4.2.1).

A round covers the leader's log as it is when the round begins. The next one begins when the learner's disk has all of
it. A learner that needs less than an election timeout for a round delays clients no longer than a failed leader does,
so it may vote.
"""

from __future__ import annotations

from raftlog.types import NodeId


class Rounds:
    """The rounds of every learner, as the leader measures them; times in monotonic milliseconds."""

    def __init__(self, short_ms: int) -> None:
        """`short_ms`: a round that took less is short."""
        self._short_ms = short_ms
        self._began: dict[NodeId, tuple[int, int]] = {}
        """Learner -> (index that ends the round, when it began)."""
        self._caught_up: set[NodeId] = set()

    def observe(self, node: NodeId, match_index: int, last_index: int, now_ms: int) -> bool:
        """Whether the learner has caught up. `match_index`: what it has on disk; `last_index`: the leader's log."""
        target, began_ms = self._began.setdefault(node, (last_index, now_ms))
        if match_index >= target:
            self._note(node, now_ms - began_ms < self._short_ms)
            self._began[node] = (last_index, now_ms)
        elif now_ms - began_ms >= self._short_ms:
            self._note(node, False)
        return node in self._caught_up

    def _note(self, node: NodeId, is_short: bool) -> None:
        if is_short:
            self._caught_up.add(node)
        else:
            self._caught_up.discard(node)

    def keep(self, learners: set[NodeId]) -> None:
        """Forgets all but these."""
        self._began = {node: began for node, began in self._began.items() if node in learners}
        self._caught_up &= learners
