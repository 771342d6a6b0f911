"""Chooses the connection that is closed for a newcomer when few places are left.

While there is room, one address may have all of it. From 80 % of the limit on, a client of another address takes the
place of the longest idle connection of the address that holds most. So no client can keep others out by holding
connections, and none loses a connection that is in use.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Generic, TypeVar

PRESSED = 0.8
"""Share of the limit above which addresses share the places."""
LOOKED_AT = 64
"""Connections of one address that are checked for a newcomer, few enough to keep the turn of the loop short."""

C = TypeVar("C")


class ConnectionSlots(Generic[C]):
    """Open connections by address."""

    def __init__(self, idle_s: Callable[[C], float | None]) -> None:
        """`idle_s` returns the seconds for which a connection has been idle; None if it must stay."""
        self._idle_s = idle_s
        self._of: dict[str, dict[C, None]] = {}
        self._most: list[tuple[int, str]] = []
        """A heap of (-connections, address). A row is outdated if the address has another number by now."""

    def add(self, address: str, connection: C) -> None:
        """Adds an open connection."""
        mine = self._of.setdefault(address, {})
        mine[connection] = None
        if len(self._most) > 4 * len(self._of) + LOOKED_AT:
            self._most = [(-len(held), each) for each, held in self._of.items()]
            heapq.heapify(self._most)
        else:
            heapq.heappush(self._most, (-len(mine), address))

    def remove(self, address: str, connection: C) -> None:
        """Removes a connection that is closed, or about to be; does nothing if it is not known."""
        mine = self._of.get(address)
        if mine is not None and connection in mine:
            del mine[connection]
            if not mine:
                del self._of[address]

    def victim(self, newcomer: str) -> C | None:
        """Returns the connection whose place a client of this address takes; None if no address holds more, or none of
        its connections is idle."""
        top = self._top()
        if top is None or len(self._of[top]) <= len(self._of.get(newcomer, ())) + 1:
            return None
        held = self._of[top]
        idle: dict[C, float] = {}
        for connection in list(zip(held, range(LOOKED_AT), strict=False)):
            each = connection[0]
            del held[each]
            held[each] = None  # the next newcomer looks at others
            if (seconds := self._idle_s(each)) is not None:
                idle[each] = seconds
        return max(idle, key=idle.__getitem__, default=None)

    def _top(self) -> str | None:
        """Returns the address that holds most connections."""
        while self._most:
            count, address = self._most[0]
            now = len(self._of.get(address, ()))
            if now == -count:
                return address
            heapq.heappop(self._most)
            if now:
                heapq.heappush(self._most, (-now, address))
        return None
