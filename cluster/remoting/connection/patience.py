"""Closes clients that hold something of this node and do not move, and clients that say nothing.

A client holds something while it takes none of its answers, or sends no more of a frame that it has begun. It is
closed, and what it held is there for others. A slow client stays connected as long as it makes progress. Only
connections that have something unfinished are looked at, twice a second. A look that comes late means that this node
stood still, and then no client could move: that time counts for none of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from cluster.remoting.connection.rooms import PRESSED_BYTES, PRESSED_MS, PRESSED_TAKES_MS, PROGRESS_BYTES, Rooms
from cluster.runtime.host.places import PRESSED, Places
from raftlog.work import ITEM_UNITS, charge

if TYPE_CHECKING:
    from cluster.remoting.connection.server import RemotingConnection


logger = logging.getLogger(__name__)

LOOK_MS = 500


class _Progress:
    """Since when a connection has not moved, in both directions."""

    __slots__ = ("received", "since_ms", "taken", "taken_ms")

    def __init__(self, connection: RemotingConnection, now_ms: int) -> None:
        self.received, self.since_ms = connection.received, now_ms
        self.taken, self.taken_ms = connection.handed - connection.unsent_bytes, now_ms

    def pardon(self, ms: int) -> None:
        """Does not count `ms` of the time against the client: it was this node's own."""
        self.since_ms += ms
        self.taken_ms += ms


class Patience:
    """The connections with something unfinished."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms
        self._watched: dict[RemotingConnection, _Progress | None] = {}
        self._looked_ms = 0

    def __len__(self) -> int:
        return len(self._watched)

    def follow(self, connection: RemotingConnection) -> None:
        """Looks at it from now on, until nothing of it is unfinished."""
        self._watched.setdefault(connection, None)

    def forget(self, connection: RemotingConnection) -> None:
        """Forgets a connection that is closed."""
        self._watched.pop(connection, None)

    def tick(self, now_ms: int) -> None:
        """A chore: closes connections without progress for too long."""
        if now_ms - self._looked_ms < LOOK_MS:
            return
        late_ms = now_ms - self._looked_ms - LOOK_MS
        self._looked_ms = now_ms
        for connection, progress in list(self._watched.items()):
            if connection.is_slow:
                connection.count_unsent()
            if not (connection.is_slow or connection.is_unfinished):
                del self._watched[connection]
            elif progress is None:
                connection.finished = False
                self._watched[connection] = _Progress(connection, now_ms)
            else:
                progress.pardon(late_ms)
                if why := self._stands(connection, progress, now_ms):
                    logger.warning("%s:%d %s, connection closed", *connection.peer_address, why)
                    connection.abort()

    def _stands(self, connection: RemotingConnection, progress: _Progress, now_ms: int) -> str:
        """Why the connection is to be closed; "" if it moves, or has time."""
        stalled_ms = self._rooms.stalled_ms
        taken = connection.handed - connection.unsent_bytes
        if not connection.is_slow or taken != progress.taken:
            progress.taken, progress.taken_ms = taken, now_ms
        elif now_ms - progress.taken_ms >= (
            min(PRESSED_TAKES_MS, stalled_ms) if self._rooms.unsent.waiting else stalled_ms
        ):
            return f"has taken none of its answers for {now_ms - progress.taken_ms} ms"
        pressed = connection.holds_room and self._rooms.pressed
        wanted, within_ms = (PRESSED_BYTES, PRESSED_MS) if pressed else (PROGRESS_BYTES, stalled_ms)
        came = connection.received - progress.received
        if connection.finished or not (connection.is_unfinished or pressed) or came >= wanted:
            connection.finished = False
            progress.received, progress.since_ms = connection.received, now_ms
        elif now_ms - progress.since_ms >= min(within_ms, stalled_ms):
            return f"has sent {came} bytes of an unfinished frame in {now_ms - progress.since_ms} ms"
        return ""


# Clients that say nothing: closed after IDLE_S, as RocketMQ's broker does, and the first to make room for newcomers.
#
# A client with a pull that waits, or whose heartbeat came within the last 120 s, is not idle (it is a member of a
# group: `cluster.broker.groups.group_members`). All connections are looked at once in LOOK_S, a slice at each tick. The
# time in which this node stood still counts for none of them.

IDLE_S = 120.0
"""RocketMQ: serverChannelMaxIdleTimeSeconds."""
LEAVES_S = 5.0
"""Idle for so long, a connection may lose its place: a write that was forwarded is decided by then."""
LOOK_S = 5.0
SLICE = 256
"""Connections looked at in one tick."""
TICK_MAX_S = 0.2
"""A tick that comes later than this was late by this node's own doing."""


class Uses(Protocol):
    """Knows who uses a connection at this moment."""

    def __call__(self, connection: RemotingConnection) -> bool:
        """A pull of it waits, or its heartbeat is fresh."""


class IdleClients:
    """The open connections of clients. Event loop only."""

    def __init__(self, is_used: Uses) -> None:
        self._is_used = is_used
        self._seen: dict[RemotingConnection, tuple[int, float]] = {}
        """Bytes received at the last look, and when they were found to have grown."""
        self._now_s = 0.0
        """This object's own clock: it goes on by TICK_MAX_S at most with each tick."""
        self._ticked_ms: int | None = None
        self._round: list[RemotingConnection] = []
        self._due_s = 0.0
        self._places: Places[RemotingConnection] = Places(self._leaving_after)

    def opened(self, connection: RemotingConnection) -> None:
        """A client connected."""
        self._seen[connection] = (connection.received, self._now_s)
        self._places.add(connection.peer_address[0], connection)

    def closed(self, connection: RemotingConnection) -> None:
        """Forgets a connection that is gone."""
        self._seen.pop(connection, None)
        self._places.remove(connection.peer_address[0], connection)

    def make_room(self, address: str, count: int, limit: int, close: Callable[[RemotingConnection], None]) -> None:
        """A client of `address` connects while `count` of `limit` places are taken: closes one that is idle, if
        addresses have to share."""
        if count < PRESSED * limit:
            return
        victim = self._places.victim(address)
        if victim is not None:
            logger.warning("%s:%d is idle and makes room for a client from %s", *victim.peer_address, address)
            self.closed(victim)
            close(victim)

    def tick(self, now_ms: int) -> None:
        """A chore: looks at the next slice, and closes what has been idle for IDLE_S."""
        if self._ticked_ms is not None:
            self._now_s += min((now_ms - self._ticked_ms) / 1000, TICK_MAX_S)
        self._ticked_ms = now_ms
        if not self._round and self._now_s >= self._due_s:
            self._round = list(self._seen)
            self._due_s = self._now_s + LOOK_S
        part, self._round = self._round[:SLICE], self._round[SLICE:]
        charge(ITEM_UNITS * len(part))
        for connection in part:
            if (idle_s := self._idle_s(connection)) is not None and idle_s >= IDLE_S:
                logger.info("%s:%d has sent nothing for %d s, connection closed", *connection.peer_address, idle_s)
                connection.abort()

    def _leaving_after(self, connection: RemotingConnection) -> float | None:
        idle_s = self._idle_s(connection)
        return idle_s if idle_s is not None and idle_s >= LEAVES_S else None

    def _idle_s(self, connection: RemotingConnection) -> float | None:
        """Returns the seconds since the client last sent something; None if the connection is in use, closed, or
        received bytes since the last look."""
        known = self._seen.get(connection)
        if known is None:
            return None
        received, since_s = known
        if connection.received != received or self._is_used(connection):
            self._seen[connection] = (connection.received, self._now_s)
            return None
        return self._now_s - since_s
