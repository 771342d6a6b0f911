"""The bytes in flight of a node: those of requests that it holds, because they are unanswered or their outcome is open.

`BytesInFlight.take` and `give_back` are the only lines that change such a figure, in the kernel too
(`tests/architecture/test_in_flight.py`). When no request is in progress, each figure is 0.
"""

from __future__ import annotations

from raftmq_wire.kernel import twin


@twin
class BytesInFlight:
    """The bytes that one owner holds. They are also counted for the owner `above`."""

    __slots__ = ("_above", "bytes")

    def __init__(self, above: BytesInFlight | None = None) -> None:
        self.bytes = 0
        self._above = above

    def take(self, size: int) -> None:
        """Adds `size` bytes. Each `take` is followed by one `give_back` of as many."""
        self.bytes += size
        if self._above is not None:
            self._above.take(size)

    def give_back(self, size: int) -> None:
        """Subtracts `size` bytes."""
        self.bytes -= size
        if self._above is not None:
            self._above.give_back(size)


class InFlight:
    """The bytes in flight of one node, by the owner that gives them back."""

    __slots__ = ("clients", "early", "forwarded", "sends")

    def __init__(self) -> None:
        self.sends = BytesInFlight()
        """Bytes of sends without a final outcome: queued, proposed, or undecided after an UNKNOWN."""
        self.forwarded = BytesInFlight()
        """Bytes of requests of this node's clients that another node has to answer; bounded by
        limits.node_inflight_bytes_max."""
        self.early = BytesInFlight()
        """Bytes of requests that were forwarded to this node before it could handle them."""
        self.clients = BytesInFlight()
        """Bytes of unanswered requests of all paths (`cluster.replication.outcome.ReplyTo`). Each path has its own
        figure below this one."""

    @property
    def requests(self) -> int:
        """Returns the bytes of all requests that this node holds."""
        return self.sends.bytes + self.forwarded.bytes + self.early.bytes
