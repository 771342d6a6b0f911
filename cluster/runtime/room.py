"""Bounds on what is held at once, of bytes or of anything that is counted: taken before the work, given back after it.

A `Room` has a size and an account of what is taken. Nobody adds to the account or subtracts from it: who holds
something has a `Share` and says what it holds *now*; the account follows. So no error can leave a count that is off,
and a holder that goes away, or a whole room of them, holds nothing any more.

Rooms nest: what a connection holds is held of its node too. Who finds no room waits in turn (`Room.wait`) and is called
when there is some. A lone holder always finds room: a holder larger than the room would otherwise never get in.

Fit for every port: clients (`cluster.remoting.connection.server`), peers, HTTP. All of it runs on the event loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

Soon = Callable[[Callable[[], None]], object]
"""Calls a function in a later turn of the loop (`loop.call_soon`)."""


class Room:
    """`size` units, of which `taken` are held by shares, those of rooms inside this one included."""

    __slots__ = ("_queue", "_scheduled", "_soon", "_tree", "parent", "size", "taken", "waiting")

    def __init__(self, size: int, soon: Soon, parent: Room | None = None) -> None:
        self.size = size
        self.parent = parent
        self.taken = 0
        self.waiting = 0
        """Number of those that wait for room here."""
        self._soon = soon
        self._tree: _Tree = _Tree() if parent is None else parent._tree
        self._queue: deque[Waiter] = deque()
        self._scheduled = False

    def inside(self, size: int) -> Room:
        """A room of `size` within this one."""
        return Room(size, self._soon, self)

    def resize(self, size: int) -> None:
        """Another size from now on: what is taken stays taken, also if it is more."""
        self.size = size
        self._look()

    def share(self, held: int = 0) -> Share:
        """A new holder's."""
        share = Share(self)
        share.hold(held)
        return share

    def fits(self, more: int) -> bool:
        """Returns True if `more` may be taken now, here and in every room around. Those that wait already go first."""
        return self._lacking(more) is None

    def wait(self, more: int, again: Callable[[], None]) -> Waiter:
        """Calls `again` once, in a later turn, when `more` fits into the room that lacks it now, in order of asking.

        Another room around may lack it by then: `again` asks (`fits`) once more, and waits on.
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
        """Ends the room when its holder is gone: all in it is given back at once, nobody waits here, and its shares
        count for nothing."""
        self._queue.clear()
        self.waiting = 0
        parent, self.parent, self._tree = self.parent, None, _Tree()
        if parent is not None:
            parent._move(-self.taken)

    def _lacking(self, more: int) -> Room | None:
        """The innermost room that has no place for `more`."""
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
        """Has the first in the queue called if there is room for it: one per turn of the loop, so that work that was
        held back comes in pieces."""
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
    """The state that a room and those inside it share. It refers to no room: only the garbage collector would free a
    room that refers to itself, and each connection has one."""

    __slots__ = ("serves",)

    def __init__(self) -> None:
        self.serves = False
        """A waiter of some room has its turn right now."""


class Waiter:
    """Somebody's place in the queue of a room."""

    __slots__ = ("_room", "again", "left", "more")

    def __init__(self, room: Room, more: int, again: Callable[[], None]) -> None:
        self._room = room
        self.more = more
        self.again = again
        self.left = False

    def leave(self) -> None:
        """Waits no longer; nothing if its turn has come."""
        if not self.left:
            self.left = True
            self._room.waiting = max(0, self._room.waiting - 1)
            self._room._look()


class Share:
    """The part of a room that one holder holds."""

    __slots__ = ("held", "room")

    def __init__(self, room: Room) -> None:
        self.room = room
        self.held = 0

    def hold(self, count: int) -> None:
        """Holds `count` from now on, whatever it held; also more than fits, if it is there already."""
        delta = count - self.held
        if delta:
            self.held = count
            self.room._move(delta)
