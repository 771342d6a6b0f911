"""Collects connections that have closed with sends in flight. One search through all sends in flight then handles them
together."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cluster.replication.outcome import ReplyTo
    from cluster.runtime.turns.work import Soon


class ClosedConnections:
    """The closed connections whose sends were not searched for yet.

    The search comes in the next turn of the loop, or before the next request, which may repeat one of these sends.
    There is one search for all connections that closed since the last one, because its cost grows with the number of
    sends in flight.
    """

    def __init__(self, soon: Soon) -> None:
        """`soon` calls a function in a later turn of the loop."""
        self._soon = soon
        self._listeners: list[Callable[[Collection[ReplyTo]], None]] = []
        self.waiting: dict[ReplyTo, None] = {}
        """The connections that were not searched for yet, oldest first. If one of their sends is decided before the
        search, its identity is remembered at that moment."""

    def listen(self, told: Callable[[Collection[ReplyTo]], None]) -> None:
        """Registers `told`, which each search calls with the connections that have closed since the last one. Listeners
        are called in the order of registration."""
        self._listeners.append(told)

    def add(self, path: ReplyTo) -> None:
        """Adds a connection that has closed."""
        if not self.waiting:
            self._soon(self.look)
        self.waiting[path] = None

    def look(self) -> None:
        """Calls the listeners with all waiting connections, if there are any."""
        closed, self.waiting = self.waiting, {}
        if closed:
            for told in self._listeners:
                told(closed)

    def hears(self, path: ReplyTo) -> bool:
        """Returns True if the outcome of a send over `path` must still be answered or remembered. Returns False if the
        search has remembered it already."""
        return not path.closed or path in self.waiting
