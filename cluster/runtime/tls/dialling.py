"""Dials other nodes, in plain text or over TLS with the newest context, depending on the mode of this node's own port.

A cluster moves from plain text to TLS by one rolling restart for each step: if TLS is permitted it is tried first, and
plain text if the other node does not speak TLS yet.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
import ssl
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar, cast
from weakref import WeakKeyDictionary

from cluster.config.node_sections import TlsMode
from cluster.runtime.logs import Seldom
from cluster.runtime.tls.port_security import no_context, why_failed
from cluster.runtime.tls.transport import TlsTransport
from raftlog.kept_errors import bare

logger = logging.getLogger(__name__)

_P = TypeVar("_P", bound=asyncio.BaseProtocol)
_told = Seldom(logger)


class Dialling(NamedTuple):
    """Dials one kind of connections to other nodes; immutable. `context` is called for each connection, and returns the
    newest context."""

    mode: TlsMode = "disabled"
    context: Callable[[], ssl.SSLContext] = no_context
    opened: Callable[[TlsTransport], None] = lambda connection: None
    """Called for each connection whose handshake is complete, before its protocol is made; it may abort the
    connection."""
    fell_back: Callable[[asyncio.BaseTransport, str, str], None] = lambda transport, address, why: None
    """Called for each connection in plain text for which TLS was tried and failed, with "host:port" and the reason."""

    def ways(self) -> tuple[ssl.SSLContext | None, ...]:
        """Returns the contexts to try, one after the other; None means plain text."""
        if self.mode == "disabled":
            return (None,)
        return (self.context(),) if self.mode == "enforcing" else (self.context(), None)

    async def dial(self, factory: Callable[[], _P], host: str, port: int, *, plain: bool = False) -> _P:
        """Opens a connection and returns its protocol. The caller limits the time. `plain`: True if TLS has just failed
        there; then plain text is tried if it is permitted. Raises OSError if nothing listens there, or if the handshake
        fails and plain text is not permitted."""
        ways = self.ways()
        why = "the node closed the connection after the handshake" if plain and ways[0] is not None else ""
        if ways[0] is not None and not (plain and None in ways):
            failure = await self._over_tls(ways[0], factory, host, port)
            if not isinstance(failure, Exception):
                return failure
            if None not in ways:
                raise OSError(f"TLS: {why_failed(failure)}")
            why = why_failed(failure)
            _told.warn(f"{host}:{port} is dialled in plain text: TLS failed", why)
        transport, protocol = await _connected(factory, host, port)
        if why:
            self.fell_back(transport, f"{host}:{port}", why)
        return protocol

    async def _over_tls(
        self, context: ssl.SSLContext, factory: Callable[[], _P], host: str, port: int
    ) -> _P | Exception:
        """Returns the protocol, or the reason why the handshake failed. Raises OSError if nothing listens there."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Exception | None] = loop.create_future()

        def done(transport: TlsTransport, error: Exception | None) -> None:
            if error is None:
                self.opened(transport)
            if not ended.done():
                ended.set_result(error)

        made = TlsTransport(
            loop, context, factory, done, server_side=False, server_hostname=host if context.check_hostname else None
        )
        try:
            await connect(lambda: made, host, port)
            error = await ended
        except BaseException:
            made.abort()
            raise
        if error is None and not made.has_protocol:
            error = ConnectionAbortedError("the certificate of the other node has ended")
        return error if error is not None else cast(_P, made.get_protocol())


PLAIN_DIALLING = Dialling()


# Resolves the peers' names: at most one lookup of each name at a time, however often the name is dialled.
#
# The system answers lookups on few threads. A resolver that does not answer for one name (that of a removed container,
# while the next resolver cannot be reached) holds a thread for tens of seconds. If every dial of that name began
# another lookup, these lookups would take all threads, and no other node could be dialled by its name.

P = TypeVar("P", bound=asyncio.BaseProtocol)

LOOKUP_THREADS = 32
"""Threads of uvloop for lookups. It uses half of them, which is more than a cluster has nodes."""


def widen() -> None:
    """Gives uvloop enough threads for lookups of names. Has an effect only before its first lookup."""
    os.environ.setdefault("UV_THREADPOOL_SIZE", str(LOOKUP_THREADS))


_RUNNING: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Future[list[Any]]]] = WeakKeyDictionary()
"""Loop -> name -> the lookup in progress."""


async def connect(make: Callable[[], P], host: str, port: int) -> P:
    """Connects to the first address of the host that accepts the connection. Raises OSError if none does, or if the
    name cannot be resolved. If the caller gives up, the lookup continues for the next caller that needs the name."""
    return (await _connected(make, host, port))[1]


async def _connected(make: Callable[[], P], host: str, port: int) -> tuple[asyncio.BaseTransport, P]:
    loop = asyncio.get_running_loop()
    failure = OSError(f"the name {host} has no address")
    for address in await _addresses(host):
        try:
            return await loop.create_connection(make, address, port)
        except OSError as error:
            failure = bare(error)
    raise failure


async def _addresses(host: str) -> Iterable[str]:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return dict.fromkeys(str(row[4][0]) for row in await _rows(host))
    return (host,)


async def _rows(host: str) -> list[Any]:
    loop = asyncio.get_running_loop()
    running = _RUNNING.setdefault(loop, {})
    lookup = running.get(host)
    if lookup is None:
        lookup = running[host] = asyncio.ensure_future(loop.getaddrinfo(host, 0, type=socket.SOCK_STREAM))
        lookup.add_done_callback(_retrieved)
    try:
        return await asyncio.shield(lookup)
    finally:
        if lookup.done() and running.get(host) is lookup:
            del running[host]  # the next dial looks again: the node may have moved


def _retrieved(done: asyncio.Future[list[Any]]) -> None:
    """Marks the error of a lookup as retrieved, because the dialler may have given up."""
    if not done.cancelled():
        done.exception()
