"""Simulated clients, which append to the replicated list and read it, and a check of the answers.

The model: each acknowledged append has a position of its own, and an append that begins after another was acknowledged
gets a higher one. A read returns the whole list, so at least everything that was acknowledged or read before it began.
"""

from __future__ import annotations

from collections import Counter

from jepsen_like.core_sim.violation import PromiseBroken
from raftlog.types import NodeId


class CoreHistory:
    """The operations of the clients and the answers to them. It raises PromiseBroken if an answer contradicts another
    one."""

    def __init__(self, seen: Counter[str]) -> None:
        self.seen = seen
        self.invoked: dict[int, int] = {}
        """Operation -> the known length of the list when the operation was first requested."""
        self.acked: dict[int, int] = {}
        """Acknowledged operation -> its position in the list."""
        self.at: dict[int, int] = {}
        """Position -> operation, for everything that was acknowledged."""
        self.known_length = 0
        """The length of the list as clients know it: every position below it was acknowledged or read."""

    def invoke(self, operation: int) -> None:
        """Records that a client requests `operation`, perhaps again."""
        self.invoked.setdefault(operation, self.known_length)

    def ack(self, operation: int, position: int) -> None:
        """Records that a client got the answer that `operation` is at `position`, and checks it against earlier
        answers."""
        if self.acked.setdefault(operation, position) != position:
            raise PromiseBroken("duplicate", f"operation {operation} at {self.acked[operation]} and at {position}")
        if self.at.setdefault(position, operation) != operation:
            raise PromiseBroken(
                "lost-ack", f"position {position}: {self.at[position]} was acknowledged, now {operation}"
            )
        if position < self.invoked[operation]:
            raise PromiseBroken(
                "order", f"operation {operation} landed at {position}, asked for when {self.invoked[operation]} were in"
            )
        self.known_length = max(self.known_length, position + 1)

    def read(self, node: NodeId, values: list[int], floor: int) -> None:
        """Checks a read that returned `values` and began when the known length was `floor`."""
        if len(values) < floor:
            raise PromiseBroken(
                "stale-read", f"node {node} returned {len(values)} operations, {floor} were known before"
            )
        if floor and self.at.get(floor - 1, values[floor - 1]) != values[floor - 1]:
            raise PromiseBroken(
                "lost-ack",
                f"position {floor - 1}: {self.at[floor - 1]} acknowledged, node {node} returned {values[floor - 1]}",
            )
        self.known_length = max(self.known_length, len(values))
        self.seen["reads"] += 1

    def check_final(self, node: NodeId, values: list[int]) -> None:
        """Checks the list of `node` at the end, when all faults are over."""
        if len(set(values)) != len(values):
            raise PromiseBroken("duplicate", f"node {node} holds an operation twice")
        for position, operation in self.at.items():
            if position >= len(values) or values[position] != operation:
                raise PromiseBroken("lost-ack", f"node {node} lacks operation {operation}, acknowledged at {position}")
        for operation in values:
            if operation not in self.invoked:
                raise PromiseBroken("phantom", f"node {node} holds {operation}, which nobody asked for")


class CoreClient:
    """A client with one batch of operations at a time, which it retries until they are answered or given up."""

    __slots__ = ("batch", "id", "open", "patience", "round", "sequence", "target")

    def __init__(self, client_id: int) -> None:
        self.id = client_id
        self.sequence = 0
        self.batch: list[int] = []
        self.open: dict[int, None] = {}
        """Operations without an answer, in order."""
        self.round = 0
        """The number of the last scheduled attempt or timeout. An event that was scheduled with an older number does
        nothing.
        """
        self.target = NodeId(0)
        self.patience = 0
        """The number of attempts since a batch was answered completely, at most 8. Each attempt waits longer."""

    def fresh(self, count: int) -> list[int]:
        """Makes a new batch of `count` operations."""
        first = (self.id << 24) + self.sequence
        self.sequence += count
        self.batch = list(range(first, first + count))
        self.open = dict.fromkeys(self.batch)
        return self.batch
