"""Requests of other nodes' clients that came before this node could handle them.

Its writes are not open yet, for milliseconds after its election; or it has no connection to the sender yet, so that an
answer would be lost. They are handled in the order in which they came, a few in each turn. What the same node forwards
meanwhile waits behind them: it may belong to the same client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cluster.flow.gate import Gate
    from cluster.flow.hold import Hold
    from cluster.remoting.forward.forward_frame import Forwarded
    from raftlog.types import NodeId


class _Early(NamedTuple):
    forwarded: Forwarded
    frame: bytes
    hold: Hold


class EarlyRequests:
    """The requests that wait, in the order in which each node forwarded them."""

    def __init__(self, gate: Gate) -> None:
        """`gate` has the memory for them."""
        self._gate = gate
        self._waiting: dict[NodeId, deque[_Early]] = {}
        """Only nodes with waiting requests."""
        self._gone: set[tuple[NodeId, int]] = set()
        """Requests whose clients went while there were early ones; empty when there are none."""

    def __len__(self) -> int:
        return sum(len(waiting) for waiting in self._waiting.values())

    def nodes(self) -> Collection[NodeId]:
        """Returns the nodes of which requests wait."""
        return self._waiting.keys()

    def put(self, node: NodeId, forwarded: Forwarded, frame: bytes) -> bool:
        """Keeps a request for later. Returns False if there is no room for it."""
        hold = self._gate.hold_early(len(frame))
        if hold is None:
            return False
        self._waiting.setdefault(node, deque()).append(_Early(forwarded, frame, hold))
        return True

    def gone(self, node: NodeId, forward_id: int) -> None:
        """Takes note that the client of a request is gone: if it waits here, it will not be handled."""
        if self._waiting:
            self._gone.add((node, forward_id))

    def take(self, node: NodeId) -> tuple[Forwarded, bytes] | None:
        """Takes out the next request of this node whose client is not gone, None if there is none."""
        waiting = self._waiting.get(node, ())
        found = None
        while waiting and found is None:
            early = waiting.popleft()
            early.hold.ended()
            if (node, early.forwarded.forward_id) not in self._gone:
                found = early.forwarded, early.frame
        if not waiting:
            self.drop(node)
        return found

    def drop(self, node: NodeId) -> None:
        """Forgets the requests of a node that is gone, and will forward them again."""
        for early in self._waiting.pop(node, ()):
            early.hold.ended()
        if not self._waiting:
            self._gone.clear()
