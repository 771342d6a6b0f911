"""Limits the connections of the HTTP API, and the memory for its answers.

- At most CONNECTIONS_MAX connections are accepted, because the node needs file descriptors for files
  (`cluster.runtime.host.descriptors`). From 80 % of them on, a client of another address takes the place of an idle
  connection (`cluster.runtime.host.connection_eviction`). While users are enforced, the last quarter is for connections
  that have proven a user: when the others are taken, a client that has proven none takes the place of another such
  client.
- If all are taken, SPARE_MAX more connections may ask if this node lives and is ready, for SPARE_S seconds each.
  Otherwise a probe would take the node for dead, because other clients keep it busy.
- A connection has PATIENCE_S seconds to finish a request, from its opening or the answer before. Then it is closed.
- A client must read SLOWEST_BYTES of an answer in each PATIENCE_S seconds. Otherwise its connection is closed.
- An answer that grows with the stored data reserves memory before it is made, and keeps it until it is sent. A request
  for which there is no memory waits, and is refused (`busy`) after half of PATIENCE_S.
- While a request waits for memory, connections that have held memory for HELD_S seconds are closed.
- The unfinished work for a connection is dropped when the connection ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, cast

from aiohttp import web

from cluster.admin.errors import ApiError
from cluster.admin.forward import OF_NODE
from cluster.runtime.host.connection_eviction import Places
from cluster.runtime.resource_budget import Room, Share
from cluster.runtime.turns.work import Turns

logger = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 64
SPARE_MAX: Final = 8
SPARE_S: Final = 2.0
PROBES: Final = frozenset({"/v1/health/live", "/v1/health/ready"})
"""Paths that spare connections, those beyond CONNECTIONS_MAX, may request."""
PATIENCE_S: Final = 10.0
SLOWEST_BYTES: Final = 64 << 10
ANSWERS_BYTES_MAX: Final = 64 << 20
"""The most bytes of memory for all answers that are being made or sent."""
HELD_S: Final = 20.0
"""Seconds for which an answer may hold memory while other requests wait for some. Then its connection is closed."""
LOOK_EVERY_S: Final = 1.0


class Guarded(asyncio.Protocol):
    """Wraps aiohttp's protocol of one connection, and records since when the node waits for the client."""

    def __init__(self, guard: Guard, inner: asyncio.Protocol) -> None:
        self._guard = guard
        self._inner = inner
        self.transport: asyncio.Transport | None = None
        self.address = ""
        self.since_s = 0.0
        """Time in seconds since when the node waits for the client. It is that of the opening, of the end of the last
        answer, or of the last check at which the client had read enough of an answer."""
        self.busy = 0
        self.is_spare = False
        """True if the connection was accepted beyond CONNECTIONS_MAX. It may only request the paths in PROBES."""
        self.of_node = False
        """True if another node has forwarded a request over this connection."""
        self.unsent = 0
        self.holds_since_s: float | None = None
        """Time in seconds since when an answer to this connection holds memory; None if none does."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Registers the open connection."""
        self.transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else ""
        self._guard.opened(self)
        self._inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Removes the closed connection."""
        self._guard.closed(self)
        self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Passes a part of a request on to aiohttp."""
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """Tells aiohttp that the client sends no more."""
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        """Tells aiohttp that the client is slow."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Tells aiohttp that the client is no longer slow."""
        self._inner.resume_writing()


class Guard:
    """Keeps the connections to one node's HTTP API within the limits."""

    def __init__(
        self,
        now_s: Callable[[], float],
        turns: Turns | None = None,
        enforces: Callable[[], bool] = lambda: False,
        *,
        patience_s: float = PATIENCE_S,
        look_every_s: float = LOOK_EVERY_S,
    ) -> None:
        """Keeps the arguments. `now_s` returns the time in seconds. `turns` has the work of connections, which is
        dropped when they end. `enforces` returns True while rights of users are enforced."""
        self._now_s = now_s
        self._patience_s, self._look_every_s = patience_s, look_every_s
        self._turns = turns
        self._connections: dict[asyncio.BaseTransport, Guarded] = {}
        self._spare: dict[Guarded, None] = {}
        """The spare connections, oldest first. They are also in `_connections`."""
        self._places: Places[Guarded] = Places(self._idle_s, enforces)
        self.may_have_all = self._places.may_have_all
        self.answers = Room(ANSWERS_BYTES_MAX, lambda callback: asyncio.get_running_loop().call_soon(callback))
        """The memory for answers that are being made, or that clients have not read completely."""

    def room(self, opening: int, address: str) -> str:
        """Returns "" if another connection from that address may be accepted, else the reason why not. It may close
        another connection to make room. `opening` is the number of connections that are accepted but not open yet."""
        leaving, is_free = self._places.make_room(address, opening, CONNECTIONS_MAX)
        if leaving is not None:
            self._end(leaving)
        if is_free:
            return ""
        refusal = f"the HTTP API has {CONNECTIONS_MAX} connections; idle ones are closed after {self._patience_s:g} s"
        count = self._count() + opening
        if count < CONNECTIONS_MAX:
            return refusal
        if len(self._spare) + max(0, count - CONNECTIONS_MAX) < SPARE_MAX:
            return ""
        silent = next((each for each in self._spare if not each.busy), None)  # a probe would have asked at once
        if silent is not None:
            self._end(silent)
            return ""
        return refusal

    def _count(self) -> int:
        """Returns the number of connections without the spare ones."""
        return len(self._connections) - len(self._spare)

    def _end(self, connection: Guarded) -> None:
        self.closed(connection)  # its place is free before its transport reports the end
        if connection.transport is not None:
            connection.transport.abort()

    def _idle_s(self, connection: Guarded) -> float | None:
        return None if connection.busy or connection.of_node else self._now_s() - connection.since_s

    def opened(self, connection: Guarded) -> None:
        """Registers a new connection. It is a spare one if CONNECTIONS_MAX others are open."""
        assert connection.transport is not None
        connection.since_s = self._now_s()
        connection.is_spare = self._count() >= CONNECTIONS_MAX
        self._connections[connection.transport] = connection
        if connection.is_spare:
            self._spare[connection] = None
        else:
            self._places.add(connection.address, connection)

    def closed(self, connection: Guarded) -> None:
        """Forgets a closed connection, and drops its unfinished work."""
        self._spare.pop(connection, None)
        self._places.remove(connection.address, connection)
        if connection.transport is not None:
            self._connections.pop(connection.transport, None)
            if self._turns is not None:
                self._turns.drop(connection.transport)

    def proven(self, request: web.Request) -> None:
        """Records that the connection of this request has proven who its user is."""
        connection = self._connections.get(request.transport) if request.transport is not None else None
        if connection is not None and not connection.is_spare:
            self._places.proven(connection.address, connection)

    @contextlib.asynccontextmanager
    async def serving(self, request: web.Request) -> AsyncIterator[None]:
        """Marks the connection of a request as busy while the request is handled, so that it is not closed for
        idleness. Only the client's reading of the answer is timed. Raises ApiError(`busy`) if a spare connection
        requests another path than PROBES."""
        connection = self._connections.get(request.transport) if request.transport is not None else None
        if connection is None:
            yield
            return
        if connection.is_spare and request.path not in PROBES:
            raise ApiError(
                "busy",
                f"the HTTP API has {CONNECTIONS_MAX} connections; beyond them it answers only "
                f"{' and '.join(sorted(PROBES))}",
                "ask again in a moment, or ask another node",
            )
        connection.busy += 1
        try:
            yield
        finally:
            connection.busy -= 1
            connection.of_node = connection.of_node or request.get(OF_NODE, False)
            connection.since_s = self._now_s()

    @contextlib.asynccontextmanager
    async def answering(self, request: web.Request | None, size: int) -> AsyncIterator[Share]:
        """Reserves memory for an answer of at most `size` bytes, until the context ends. Waits for it up to half of the
        patience, and then raises ApiError(`busy`)."""
        share = self.answers.share()
        connection = self._connections.get(request.transport) if request is not None and request.transport else None
        try:
            await self._find_room(share, size)
            if connection is not None:
                connection.holds_since_s = self._now_s()
            yield share
        finally:
            share.hold(0)
            if connection is not None:
                connection.holds_since_s = None

    async def _find_room(self, share: Share, size: int) -> None:
        if self.answers.fits(size):
            share.hold(size)
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def take() -> None:
            if not granted.done():
                share.hold(size)
                granted.set_result(None)

        waiter = self.answers.wait(size, take)
        try:
            async with asyncio.timeout(self._patience_s / 2):
                await granted
        except TimeoutError:
            why = (
                f"answers that are being made or sent take {self.answers.taken} bytes, {self.answers.size} are allowed"
            )
            raise ApiError("busy", why, "ask again in a moment") from None
        finally:
            waiter.leave()

    async def run(self) -> None:
        """Checks all connections every second until it is cancelled, and closes those that have exceeded a limit."""
        while True:
            await asyncio.sleep(self._look_every_s)
            self.look()

    def look(self) -> None:
        """Checks every connection once, and closes those that have exceeded a limit."""
        now_s = self._now_s()
        for connection in list(self._connections.values()):
            transport = connection.transport
            unsent = transport.get_write_buffer_size() if transport is not None else 0
            if unsent:
                moved = connection.unsent == 0 or unsent > connection.unsent
                moved = moved or unsent <= connection.unsent - SLOWEST_BYTES
            else:
                moved = connection.busy > 0 or connection.unsent > 0
            if moved or not unsent:
                connection.unsent = unsent
            if moved:
                connection.since_s = now_s
            held_s = 0.0 if connection.holds_since_s is None else now_s - connection.holds_since_s
            pressed = self.answers.waiting > 0 and held_s >= HELD_S
            patience_s = SPARE_S if connection.is_spare else self._patience_s
            if transport is not None and (pressed or now_s - connection.since_s >= patience_s):
                logger.debug("a connection of the HTTP API was waited for too long, closed")
                transport.abort()


def guarded(guard: Guard, inner: Callable[[], Any]) -> Callable[[], Guarded]:
    """Returns a function that makes the protocol of a new connection: aiohttp's, which `inner` makes, wrapped in
    Guarded."""
    return lambda: Guarded(guard, inner())
