"""Connections that closed while sends of theirs were under way, until one look at all sends under way finds those."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cluster.replication.outcome import ReplyTo
    from cluster.runtime.room import Soon


class Closings:
    """The look comes in the next turn of the loop, or before the next request, which may repeat one of these sends. It
    is one for all that closed meanwhile: it costs as much as there are sends under way, however many closed."""

    def __init__(self, soon: Soon) -> None:
        """`soon` calls in a later turn of the loop."""
        self._soon = soon
        self._listeners: list[Callable[[Collection[ReplyTo]], None]] = []
        self.waiting: dict[ReplyTo, None] = {}
        """Those that are not looked at yet, oldest first. What is decided of their sends meanwhile is remembered as it
        is decided."""

    def listen(self, told: Callable[[Collection[ReplyTo]], None]) -> None:
        """Tells `told` from now on which connections closed since the last look; listeners are told in turn."""
        self._listeners.append(told)

    def add(self, path: ReplyTo) -> None:
        """This connection has closed."""
        if not self.waiting:
            self._soon(self.look)
        self.waiting[path] = None

    def look(self) -> None:
        """Tells the listeners of all that wait, if any do."""
        closed, self.waiting = self.waiting, {}
        if closed:
            for told in self._listeners:
                told(closed)

    def hears(self, path: ReplyTo) -> bool:
        """Returns True if the fate of a send through `path` is yet to be told or remembered: else the look did that."""
        return not path.closed or path in self.waiting
