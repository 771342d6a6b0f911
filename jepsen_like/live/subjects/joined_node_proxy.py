"""The gate of a node that joined: the port at which all other nodes reach it. The HELLO on a connection names the node
that dialled, and so the edge of the connection.

The log has one address of a node for everybody, while a fault needs an edge per pair of nodes. Nodes introduce
themselves first (cluster/peer/wire.py), so the router reads that frame to find the edge, and passes on the frame and
everything after it. TLS hides the frame; then the edge is that of the process to which the dialler's port belongs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from cluster.peer.wire import unpack
from cluster.runtime.peer_frames import Kind, WireError
from cluster.runtime.tls.port_security import HELLO

Enter = Callable[[asyncio.Transport], asyncio.Protocol]
HELLO_MAX = 4096


class HelloRouter(asyncio.Protocol):
    """An accepted connection until its first frame says which node it comes from."""

    def __init__(self, enter: Callable[[int], Enter | None], owner: Callable[[int], int]) -> None:
        """`enter`: node id -> a function that takes over the connection; None if there is no edge from that node.
        `owner`: local port -> the id of the node whose process has a connection from it; -1 if none has."""
        self._enter = enter
        self._owner = owner
        self._early = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Stores the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Waits for the complete first frame, or the first byte of TLS, then hands the connection to its edge."""
        transport, early = self._transport, self._early + data
        assert transport is not None
        self._early = early
        if early[0] == HELLO:
            self._go_on(self._owner(transport.get_extra_info("peername")[1]))
            return
        stop = 4 + int.from_bytes(early[:4], "big") if len(early) >= 4 else HELLO_MAX
        if stop > HELLO_MAX:
            transport.abort()
        if len(early) < stop or stop > HELLO_MAX:
            return
        self._go_on(_source(early, stop))

    def _go_on(self, source: int) -> None:
        transport, enter = self._transport, self._enter(source)
        assert transport is not None
        if enter is None:
            transport.abort()
            return
        side = enter(transport)
        transport.set_protocol(side)
        side.data_received(self._early)


def _source(early: bytes, stop: int) -> int:
    """Returns the node id in the HELLO; -1 if the frame is no HELLO."""
    try:
        kind, header, _ = unpack(early, 4, stop)
    except WireError:
        return -1
    return int(header[2]) if kind == Kind.HELLO and len(header) > 2 and type(header[2]) is int else -1
