"""Closes the connections of clients that use resources of this node without making progress, and of idle clients.

A client uses resources while it reads none of its answers, or sends no more of a frame that it has begun. Such a
connection is closed, and its memory is free for others. A slow client stays connected as long as it makes progress.
Only connections with something unfinished are checked, twice a second. If a check is late, this node stood still and no
client could make progress. So the time by which the check is late does not count.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from cluster.remoting.connection.connection_memory import (
    PRESSED_BYTES,
    PRESSED_MS,
    PRESSED_TAKES_MS,
    PROGRESS_BYTES,
    ConnectionMemory,
)
from cluster.runtime.host.connection_eviction import Places
from cluster.runtime.logs import Seldom
from raftlog.work import ITEM_UNITS, charge

if TYPE_CHECKING:
    from cluster.remoting.connection.server import RemotingConnection


logger = logging.getLogger(__name__)

LOOK_MS = 500


class _Progress:
    """The times since which one connection has made no progress, for each direction."""

    __slots__ = ("received", "since_ms", "taken", "taken_ms")

    def __init__(self, connection: RemotingConnection, now_ms: int) -> None:
        self.received, self.since_ms = connection.received, now_ms
        self.taken, self.taken_ms = connection.handed - connection.unsent_bytes, now_ms

    def pardon(self, ms: int) -> None:
        """Does not count `ms` milliseconds, in which this node itself stood still."""
        self.since_ms += ms
        self.taken_ms += ms


class StuckClients:
    """Watches connections with unread answers or an unfinished frame, and closes those that make no progress."""

    def __init__(self, memory: ConnectionMemory) -> None:
        self._memory = memory
        self._watched: dict[RemotingConnection, _Progress | None] = {}
        self._looked_ms = 0

    def __len__(self) -> int:
        return len(self._watched)

    def follow(self, connection: RemotingConnection) -> None:
        """Watches the connection until it has no unfinished work."""
        self._watched.setdefault(connection, None)

    def forget(self, connection: RemotingConnection) -> None:
        """Forgets a connection that is closed."""
        self._watched.pop(connection, None)

    def tick(self, now_ms: int) -> None:
        """Closes connections without progress for too long. Called periodically."""
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
        """Returns the reason to close the connection; "" if it makes progress or has time left."""
        stalled_ms = self._memory.stalled_ms
        taken = connection.handed - connection.unsent_bytes
        if not connection.is_slow or taken != progress.taken:
            progress.taken, progress.taken_ms = taken, now_ms
        elif now_ms - progress.taken_ms >= (
            min(PRESSED_TAKES_MS, stalled_ms) if self._memory.unsent.waiting else stalled_ms
        ):
            return f"has taken none of its answers for {now_ms - progress.taken_ms} ms"
        pressed = connection.holds_room and self._memory.pressed
        wanted, within_ms = (PRESSED_BYTES, PRESSED_MS) if pressed else (PROGRESS_BYTES, stalled_ms)
        came = connection.received - progress.received
        if connection.finished or not (connection.is_unfinished or pressed) or came >= wanted:
            connection.finished = False
            progress.received, progress.since_ms = connection.received, now_ms
        elif now_ms - progress.since_ms >= min(within_ms, stalled_ms):
            return f"has sent {came} bytes of an unfinished frame in {now_ms - progress.since_ms} ms"
        return ""


# Idle clients: closed after IDLE_S, as in RocketMQ's broker, and earlier if new clients need their places.
#
# A client with a waiting pull is not idle, nor is a member of a group, which has sent a heartbeat within the last 120 s
# (`cluster.broker.groups.group_members`). All connections are checked within LOOK_S, SLICE of them at each tick. The
# time in which this node stood still counts for none of them.

IDLE_S = 120.0
"""Seconds without data after which a client is closed (RocketMQ: serverChannelMaxIdleTimeSeconds)."""
LEAVES_S = 5.0
"""Seconds without data after which a connection may be closed in favour of a new one. A forwarded write is decided by
then."""
LOOK_S = 5.0
SLICE = 256
"""Connections that one tick checks."""
TICK_MAX_S = 0.2
"""Seconds. If more have passed since the last tick, the node itself stood still."""


class Uses(Protocol):
    """A check of whether a connection is in use at this moment."""

    def __call__(self, connection: RemotingConnection) -> bool:
        """Returns True if the connection is in use (`cluster.remoting.connection.open_connections`)."""


class IdleClients:
    """Closes clients that are idle for long, and chooses which ones make room for new clients. Event loop only."""

    def __init__(self, is_used: Uses, enforces: Callable[[], bool] = lambda: False) -> None:
        """`enforces` returns True while users are enforced: the last quarter of the places is then reserved for
        connections with a proven user."""
        self._is_used = is_used
        self._seen: dict[RemotingConnection, tuple[int, float]] = {}
        """Connection -> (bytes received at the last check, time at which they were found to have grown)."""
        self._told = Seldom(logger)
        self._now_s = 0.0
        """The time in seconds on this object's own clock. It advances by at most TICK_MAX_S with each tick."""
        self._ticked_ms: int | None = None
        self._round: list[RemotingConnection] = []
        self._due_s = 0.0
        self._places: Places[RemotingConnection] = Places(self._leaving_after, enforces)
        self.may_have_all = self._places.may_have_all

    def opened(self, connection: RemotingConnection) -> None:
        """Adds a connection of a client."""
        self._seen[connection] = (connection.received, self._now_s)
        self._places.add(connection.peer_address[0], connection)

    def closed(self, connection: RemotingConnection) -> None:
        """Forgets a connection that has closed."""
        self._seen.pop(connection, None)
        self._places.remove(connection.peer_address[0], connection)

    def proven(self, connection: RemotingConnection) -> None:
        """Records that a signature of the connection was right."""
        if connection in self._seen:
            self._places.proven(connection.peer_address[0], connection)

    def make_room(self, address: str, opening: int, limit: int, close: Callable[[RemotingConnection], None]) -> bool:
        """Makes room for a client of `address`, in addition to `opening` connections that are not open yet. If few
        places are left, it may close a connection, with `close`, that is idle or has no proven user. Returns True if
        there is a place. `limit`: the most connections."""
        leaving, is_free = self._places.make_room(address, opening, limit)
        if leaving is not None:
            self._told.warn("a client makes room for another one", "few places are left")
            logger.debug("%s:%d makes room for a client from %s", *leaving.peer_address, address)
            self.closed(leaving)
            close(leaving)
        return is_free

    def tick(self, now_ms: int) -> None:
        """Checks the next slice, and closes clients that have been idle for IDLE_S. Called periodically."""
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
        """Returns the seconds since the client last sent something; None if the connection is in use, closed, or sent
        bytes since the last check."""
        known = self._seen.get(connection)
        if known is None:
            return None
        received, since_s = known
        if connection.received != received or self._is_used(connection):
            self._seen[connection] = (connection.received, self._now_s)
            return None
        return self._now_s - since_s
