"""Clients that append to the list and read it, and remember what they were told.

The model: an acknowledged append has a position, no two operations share one, and whatever begins later lands behind
it; a read returns the whole list, hence at least everything acknowledged or read before it began.
"""

from __future__ import annotations

from collections import Counter

from jepsen_like.core_sim.violation import Violation
from raftlog.types import NodeId


class History:
    """The operations of the clients and the answers to them; raises Violation when an answer contradicts an earlier
    one.
    """

    def __init__(self, seen: Counter[str]) -> None:
        self.seen = seen
        self.invoked: dict[int, int] = {}
        """Operation -> length everybody knew when it was first asked for."""
        self.acked: dict[int, int] = {}
        """Operation -> position."""
        self.at: dict[int, int] = {}
        """Position -> operation, of everything acknowledged."""
        self.known_length = 0
        """Everything below was acknowledged or read."""

    def invoke(self, operation: int) -> None:
        """A client asks for `operation`, perhaps again."""
        self.invoked.setdefault(operation, self.known_length)

    def ack(self, operation: int, position: int) -> None:
        """The client was told that `operation` is at `position`."""
        if self.acked.setdefault(operation, position) != position:
            raise Violation("duplicate", f"operation {operation} at {self.acked[operation]} and at {position}")
        if self.at.setdefault(position, operation) != operation:
            raise Violation("lost-ack", f"position {position}: {self.at[position]} was acknowledged, now {operation}")
        if position < self.invoked[operation]:
            raise Violation(
                "order", f"operation {operation} landed at {position}, asked for when {self.invoked[operation]} were in"
            )
        self.known_length = max(self.known_length, position + 1)

    def read(self, node: NodeId, values: list[int], floor: int) -> None:
        """A read that began when `floor` operations were known returned `values`."""
        if len(values) < floor:
            raise Violation("stale-read", f"node {node} returned {len(values)} operations, {floor} were known before")
        if floor and self.at.get(floor - 1, values[floor - 1]) != values[floor - 1]:
            raise Violation(
                "lost-ack",
                f"position {floor - 1}: {self.at[floor - 1]} acknowledged, node {node} returned {values[floor - 1]}",
            )
        self.known_length = max(self.known_length, len(values))
        self.seen["reads"] += 1

    def check_final(self, node: NodeId, values: list[int]) -> None:
        """The list of `node` once everything is calm."""
        if len(set(values)) != len(values):
            raise Violation("duplicate", f"node {node} holds an operation twice")
        for position, operation in self.at.items():
            if position >= len(values) or values[position] != operation:
                raise Violation("lost-ack", f"node {node} lacks operation {operation}, acknowledged at {position}")
        for operation in values:
            if operation not in self.invoked:
                raise Violation("phantom", f"node {node} holds {operation}, which nobody asked for")


class Client:
    """One batch of operations at a time, retried until answered or given up."""

    __slots__ = ("batch", "id", "open", "patience", "round", "sequence", "target")

    def __init__(self, client_id: int) -> None:
        self.id = client_id
        self.sequence = 0
        self.batch: list[int] = []
        self.open: dict[int, None] = {}
        """Operations without an answer, in order."""
        self.round = 0
        """Counts attempts: a timeout of an older one means nothing."""
        self.target = NodeId(0)
        self.patience = 0
        """Timeouts in a row: it waits longer each time."""

    def fresh(self, count: int) -> list[int]:
        """`count` new operations."""
        first = (self.id << 24) + self.sequence
        self.sequence += count
        self.batch = list(range(first, first + count))
        self.open = dict.fromkeys(self.batch)
        return self.batch
