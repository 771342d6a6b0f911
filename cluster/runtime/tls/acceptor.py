"""Accepts connections from a listening socket, never more than the limit, in plain text and over TLS.

An event loop's own server accepts all waiting connections at once: a burst of clients would take the descriptors that
the next segment file needs. Here `room` is asked for each connection, and a connection too many is closed at once. If
TLS is possible, the first byte of a connection decides (`accepted_sockets`).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from typing import Any, NamedTuple

from cluster.runtime.tls.accepted_sockets import ARRIVAL_LIMITS, AcceptedSockets, ArrivalLimits
from cluster.runtime.tls.port_security import PLAIN, Security

logger = logging.getLogger(__name__)

BACKLOG = 1024
PER_TURN = 64
"""The most connections that are accepted in one turn of the loop."""
OPENING_MAX = 16
"""The most connections that are accepted but not open yet. Opening takes a turn or two. Other connections wait in the
listening socket."""
PAUSE_S = 0.1
"""Seconds for which accepting pauses when there are no free descriptors: an immediate retry would only use CPU."""
KEEP_IDLE_S, KEEP_INTERVAL_S = 60, 15
"""Seconds of silence before the system asks a client's host if it is still there, and between two such questions."""
SILENT_MS = 120_000
"""Milliseconds after which a connection is ended if the client's host acknowledges nothing, or if the client reads none
of the bytes that wait for it. A member of a consumer group that is silent for so long is removed as well. A waiting
pull alone does not show that its client is alive."""
QUIET_S = 10.0
"""Seconds between two log lines about missing descriptors."""
_NONE_LEFT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def has_descriptors(loop: asyncio.AbstractEventLoop) -> bool:
    """Returns False for a loop without real sockets (the simulator's)."""
    return type(loop).add_reader is not asyncio.AbstractEventLoop.add_reader


class SilenceLimits(NamedTuple):
    """Limits how long the system keeps a connection whose other host is silent. The defaults explain the fields."""

    keep_idle_s: int = KEEP_IDLE_S
    keep_interval_s: int = KEEP_INTERVAL_S
    silent_ms: int = SILENT_MS


SILENCE_LIMITS = SilenceLimits()


def _end_with_the_host(listening: socket.socket, limits: SilenceLimits) -> None:
    """Enables keepalive on the socket, whose accepted connections inherit it. So a connection ends when the client's
    host loses its power or its network and sends nothing more."""
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    tcp = {"TCP_KEEPIDLE": limits.keep_idle_s, "TCP_KEEPINTVL": limits.keep_interval_s}
    tcp["TCP_USER_TIMEOUT"] = limits.silent_ms
    for name, value in tcp.items():
        if (option := getattr(socket, name, None)) is not None:  # not every system has all
            listening.setsockopt(socket.IPPROTO_TCP, option, value)


class Acceptor:
    """Accepts connections at one port, at every address to which its host name resolves."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        factory: Callable[[], asyncio.BaseProtocol],
        room: Callable[[int, str], str],
        security: Security = PLAIN,
        may_have_all: Callable[[str], bool] = lambda _: True,
        limits: ArrivalLimits = ARRIVAL_LIMITS,
        silence: SilenceLimits = SILENCE_LIMITS,
    ) -> None:
        """`room(opening, address)` returns the reason why no more connections of that address may be accepted, when
        `opening` accepted ones are not open yet; "" if one may. `may_have_all` returns False for addresses of strangers
        while the last quarter of handshakes is not for them."""
        self._loop = loop
        self._factory = factory
        self._room, self._silence = room, silence
        self._sockets: list[socket.socket] = []
        self._opening: set[asyncio.Task[object]] = set()
        self._arrivals = (
            None
            if security.mode == "disabled"
            else AcceptedSockets(loop, security, factory, self._begin, may_have_all, limits)
        )
        self._quiet_until = 0.0
        self._closed = False

    @property
    def addresses(self) -> list[tuple[Any, ...]]:
        """The addresses at which it listens, with the ports that the system chose for port 0."""
        return [listening.getsockname() for listening in self._sockets]

    async def open(self, host: str, port: int) -> None:
        """Starts to listen. Raises OSError if the address cannot be bound."""
        rows = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, kind, protocol, _, address in dict.fromkeys(rows):
                self._listen(family, kind, protocol, address)
        except OSError:
            self.close()
            raise
        for listening in self._sockets:
            self._loop.add_reader(listening.fileno(), self._accept, listening)

    def _listen(self, family: int, kind: int, protocol: int, address: tuple[object, ...]) -> None:
        listening = socket.socket(family, kind, protocol)
        self._sockets.append(listening)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _end_with_the_host(listening, self._silence)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            listening.bind(address)
        except OSError as error:
            why = f"error while attempting to bind on address {address!r}: {(error.strerror or str(error)).lower()}"
            raise OSError(error.errno, why) from None
        listening.listen(BACKLOG)
        listening.setblocking(False)

    def close(self) -> None:
        """Stops listening, and closes accepted sockets that wait for their first byte or for TLS. Open connections
        stay."""
        self._closed = True
        for listening in self._sockets:
            if listening.fileno() >= 0:
                self._loop.remove_reader(listening.fileno())
                listening.close()
        self._sockets.clear()
        if self._arrivals is not None:
            self._arrivals.close()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(PER_TURN):
            if len(self._opening) >= OPENING_MAX:
                return
            try:
                connection, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NONE_LEFT:
                    raise
                self._pause(listening, error)
                return
            arrivals, host = self._arrivals, str(address[0])
            why = self._room(self._not_open(), host)
            if why and arrivals is not None and arrivals.give_way(host):
                why = self._room(self._not_open(), host)
            if why:
                connection.close()
                self._say("connection refused: %s", why)
                continue
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if arrivals is None:
                self._begin(connection)
            else:
                arrivals.take(connection, (host, int(address[1])))

    def _not_open(self) -> int:
        """Returns the number of accepted sockets that are no open connections yet."""
        return len(self._opening) + (len(self._arrivals) if self._arrivals is not None else 0)

    def _begin(self, connection: socket.socket) -> None:
        """Makes a connection in plain text from the socket."""
        task: asyncio.Task[object] = self._loop.create_task(self._open(connection))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._factory, connection)
        except OSError as error:
            logger.debug("a connection ended before it was open: %s", error)
            connection.close()

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        self._say("no connection can be taken: %s", error.strerror or str(error))
        self._loop.remove_reader(listening.fileno())

        def again() -> None:
            if not self._closed:
                self._loop.add_reader(listening.fileno(), self._accept, listening)

        self._loop.call_later(PAUSE_S, again)

    def _say(self, line: str, why: str) -> None:
        if self._loop.time() >= self._quiet_until:
            self._quiet_until = self._loop.time() + QUIET_S
            logger.warning(line, why)
