"""Who holds something of this node and does not move: a client that takes none of its answers, or sends no more of a
frame that it has begun. It is closed, and what it held is there for others. A slow client stays connected as long as it
makes progress.

Only connections that have something unfinished are looked at, twice a second. A look that comes late means that this
node stood still, and then no client could move: that time counts for none of them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cluster.remoting.rooms import PRESSED_BYTES, PRESSED_MS, PRESSED_TAKES_MS, PROGRESS_BYTES, Rooms

if TYPE_CHECKING:
    from cluster.remoting.server import RemotingConnection

logger = logging.getLogger(__name__)

LOOK_MS = 500


class _Progress:
    """Since when a connection has not moved, in both directions."""

    __slots__ = ("received", "since_ms", "taken", "taken_ms")

    def __init__(self, connection: RemotingConnection, now_ms: int) -> None:
        self.received, self.since_ms = connection.received, now_ms
        self.taken, self.taken_ms = connection.handed - connection.unsent_bytes, now_ms

    def pardon(self, ms: int) -> None:
        """So much of the time was this node's own."""
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
        """It is closed."""
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
