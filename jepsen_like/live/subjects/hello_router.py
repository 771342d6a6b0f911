"""The port at which all other nodes reach a node that joined: the HELLO on a connection names the dialler, and so the
edge.

The log tells one address of a node to everybody, while a fault needs an edge per pair. Nodes introduce themselves first
(cluster/peer/wire.py), so the edge is found by reading that frame, which is then passed on like everything after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from cluster.peer.wire import Kind, WireError, unpack

Enter = Callable[[asyncio.Transport], asyncio.Protocol]
HELLO_MAX = 4096


class HelloRouter(asyncio.Protocol):
    """One accepted connection until it has said whose it is."""

    def __init__(self, enter: Callable[[int], Enter | None]) -> None:
        """`enter`: node id -> what takes over the connection; None if there is no edge from that node."""
        self._enter = enter
        self._early = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Waits for the whole first frame, then lets the edge have it."""
        transport, early = self._transport, self._early + data
        assert transport is not None
        self._early = early
        stop = 4 + int.from_bytes(early[:4], "big") if len(early) >= 4 else HELLO_MAX
        if stop > HELLO_MAX:
            transport.abort()
        if len(early) < stop or stop > HELLO_MAX:
            return
        enter = self._enter(_source(early, stop))
        if enter is None:
            transport.abort()
            return
        side = enter(transport)
        transport.set_protocol(side)
        side.data_received(early)


def _source(early: bytes, stop: int) -> int:
    """The node id in the HELLO; -1 if it is none."""
    try:
        kind, header, _ = unpack(early, 4, stop)
    except WireError:
        return -1
    return int(header[2]) if kind == Kind.HELLO and len(header) > 2 and type(header[2]) is int else -1
