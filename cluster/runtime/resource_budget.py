"""Limits bytes, or other counted things, that are held at the same time: reserved before the work, released after it.

A `Room` has a size and an account of the units that are taken. Nothing adds to the account or subtracts from it
directly: each holder has a `Share`, in which it states what it holds *now*, and the account follows. So no error can
leave a wrong count, and when a holder, or a whole room of holders, goes away, it no longer holds anything.

Rooms nest: what a connection holds counts in its node's room too. A holder without room waits in order (`Room.wait`)
and is called when there is room. A lone holder always gets room, because one larger than the room would otherwise
never get it.

It suits every port: clients (`cluster.remoting.connection.server`), peers, HTTP. All of it runs on the event loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from cluster.runtime.turns.work import Soon


class Room:
    """An account of `size` units. `taken` of them are held by shares, including those of rooms inside this one."""

    __slots__ = ("_queue", "_scheduled", "_soon", "_tree", "parent", "size", "taken", "waiting")

    def __init__(self, size: int, soon: Soon, parent: Room | None = None) -> None:
        self.size = size
        self.parent = parent
        self.taken = 0
        self.waiting = 0
        """The number of holders that wait for room here."""
        self._soon = soon
        self._tree: _Tree = _Tree() if parent is None else parent._tree
        self._queue: deque[Waiter] = deque()
        self._scheduled = False

    def inside(self, size: int) -> Room:
        """Makes a room of `size` inside this one."""
        return Room(size, self._soon, self)

    def resize(self, size: int) -> None:
        """Changes the size. Units that are taken stay taken, even if they are more."""
        self.size = size
        self._look()

    def share(self, held: int = 0) -> Share:
        """Makes the share of a new holder, which holds `held` units from the start."""
        share = Share(self)
        share.hold(held)
        return share

    def fits(self, more: int) -> bool:
        """Returns True if `more` units may be taken now, here and in every enclosing room. Waiting holders go first."""
        return self._lacking(more) is None

    def wait(self, more: int, again: Callable[[], None]) -> Waiter:
        """Calls `again` once, in a later turn, when `more` units fit into the room that lacks them now. Those that wait
        for a room are called in the order in which they began to wait.

        Another enclosing room may lack the units by then: `again` must check (`fits`) once more, and wait again.
        """
        room = self._lacking(more) or self
        waiter = Waiter(room, more, again)
        room.waiting += 1
        if self._tree.serves:
            room._queue.appendleft(waiter)  # it has waited for its turn already
        else:
            room._queue.append(waiter)
        room._look()
        return waiter

    def close(self) -> None:
        """Closes the room when its owner ends: all its units are released at once, its waiters are dropped, and its
        shares no longer count."""
        self._queue.clear()
        self.waiting = 0
        parent, self.parent, self._tree = self.parent, None, _Tree()
        if parent is not None:
            parent._move(-self.taken)

    def _lacking(self, more: int) -> Room | None:
        """Returns the innermost room without space for `more` units; None if all have it. A room in which holders wait
        counts as one without space, except for the holder that is called now."""
        served = self._tree.serves
        room: Room | None = self
        while room is not None:
            if (room.waiting and not served) or not room._has(more):
                return room
            room = room.parent
        return None

    def _has(self, more: int) -> bool:
        return not self.taken or self.taken + more <= self.size

    def _move(self, delta: int) -> None:
        room: Room | None = self
        while room is not None:
            room.taken += delta
            if room.waiting:
                room._look()
            room = room.parent

    def _look(self) -> None:
        """Schedules the first waiter if there is room for it: one per turn of the loop, so that delayed work comes in
        pieces."""
        queue = self._queue
        while queue and queue[0].left:
            queue.popleft()
        if queue and not self._scheduled and self._has(queue[0].more):
            self._scheduled = True
            self._soon(self._grant)

    def _grant(self) -> None:
        self._scheduled = False
        queue = self._queue
        while queue and queue[0].left:
            queue.popleft()
        if not queue or not self._has(queue[0].more):
            return
        first = queue.popleft()
        self.waiting -= 1
        first.left = True
        tree = self._tree
        tree.serves = True
        try:
            first.again()
        finally:
            tree.serves = False
            self._look()


class _Tree:
    """The state that a room shares with the rooms inside it. It refers to no room: a room that refers to itself would
    be freed only by the garbage collector, and each connection has a room."""

    __slots__ = ("serves",)

    def __init__(self) -> None:
        self.serves = False
        """True while a waiter of one of the rooms is called."""


class Waiter:
    """The place of one holder in the queue of a room."""

    __slots__ = ("_room", "again", "left", "more")

    def __init__(self, room: Room, more: int, again: Callable[[], None]) -> None:
        self._room = room
        self.more = more
        self.again = again
        self.left = False

    def leave(self) -> None:
        """Leaves the queue; does nothing if the waiter was called already."""
        if not self.left:
            self.left = True
            self._room.waiting = max(0, self._room.waiting - 1)
            self._room._look()


class Share:
    """The units of a room that one holder has taken."""

    __slots__ = ("held", "room")

    def __init__(self, room: Room) -> None:
        self.room = room
        self.held = 0

    def hold(self, count: int) -> None:
        """Sets the number of units that the holder has now. `count` may exceed what the room has free, because the
        holder uses the units already."""
        delta = count - self.held
        if delta:
            self.held = count
            self.room._move(delta)
