"""One TCP connection between two nodes: a Link dials and sends, an Inlet accepts and receives; first comes a HELLO."""

from __future__ import annotations

import asyncio
import logging
import socket as socket_module
from typing import TYPE_CHECKING, Any, cast

from cluster.framing import FrameBuffer, FrameTooLargeError
from cluster.peer.roster import Refusal
from cluster.peer.wire import FRAME_MAX, Kind, WireError, pack, unpack
from raftlog.types import NodeId

if TYPE_CHECKING:
    from cluster.peer.transport import PeerTransport

logger = logging.getLogger(__name__)

CONTROL, BULK = "control", "bulk"
HANDSHAKE_S = 5.0
UNACKNOWLEDGED_MS = 5000
"""A connection whose bytes nobody acknowledges for so long is closed: the system's own patience outlives partitions."""
_USER_TIMEOUT: int | None = getattr(socket_module, "TCP_USER_TIMEOUT", None)
HELLO_MAX = 4096
"""Longest frame from a stranger, bytes."""


class Link(asyncio.Protocol):
    """One dialled connection: sends only; hears at most a refusal."""

    def __init__(self, owner: PeerTransport, peer: NodeId, channel: str) -> None:
        self.peer = peer
        self.channel = channel
        self.lost = asyncio.get_running_loop().create_future()
        self._owner = owner
        self._buffer = FrameBuffer(HELLO_MAX)
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Introduces this node."""
        self.transport = transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        socket = transport.get_extra_info("socket")
        if socket is not None and _USER_TIMEOUT is not None:
            socket.setsockopt(socket_module.IPPROTO_TCP, _USER_TIMEOUT, UNACKNOWLEDGED_MS)
        transport.write(pack(Kind.HELLO, self._owner.hello(self.peer, self.channel)))
        self._owner.links[self.peer, self.channel] = self

    def data_received(self, data: bytes) -> None:
        """The only thing a peer says here is why it refuses this node."""
        try:
            buffer, frames = self._buffer.feed(data)
            for start, stop in frames:
                kind, header, _ = unpack(buffer, start, stop)
                if kind == Kind.REFUSED:
                    self._owner.on_refused(self.peer, header)
        except (WireError, FrameTooLargeError) as error:
            logger.warning("node %d answered with a bad frame: %s", self.peer, error)
            self.abort()

    def abort(self) -> None:
        """Ends the connection; the dialler tries again."""
        if self.transport is not None:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The dialler tries again; the driver hears of it."""
        if self._owner.links.get((self.peer, self.channel)) is self:
            del self._owner.links[self.peer, self.channel]
        if not self.lost.done():
            self.lost.set_result(None)
        if self.channel == CONTROL:
            self._owner.on_closed(self.peer)


class Inlet(asyncio.Protocol):
    """One accepted connection: a peer's messages, after its handshake."""

    def __init__(self, owner: PeerTransport) -> None:
        self._owner = owner
        self._buffer = FrameBuffer(FRAME_MAX)
        self._early = b""
        """What arrived of the handshake."""
        self.peer: NodeId | None = None
        """Who it is, once its handshake was accepted."""
        self._refused = False
        self.channel = ""
        self.reads = 0
        """How often something came."""
        self.ping_interval_ms = 0
        """How often the peer says that it sends a PING; 0 while it has sent none."""
        self._timer: asyncio.TimerHandle | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Waits for the handshake, not for ever."""
        self.transport = transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._owner.inlets[self] = None
        self._timer = asyncio.get_running_loop().call_later(HANDSHAKE_S, self._no_hello)

    def _no_hello(self) -> None:
        if self.peer is None and self.transport is not None:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Dispatches every complete frame."""
        self.reads += 1
        try:
            peer = self.peer
            if peer is None:
                data = self._take_hello(data)
                peer = self.peer
            if peer is None or self._refused:
                return
            buffer, frames = self._buffer.feed(data)
            for start, stop in frames:
                kind, header, payload = unpack(buffer, start, stop)
                self._owner.on_frame(peer, kind, header, payload)
        except (WireError, FrameTooLargeError) as error:
            name = self.transport.get_extra_info("peername") if self.transport else None
            logger.warning("a bad frame on the peer port from %s, connection closed: %s", name, error)
            if self.transport is not None:
                self.transport.abort()

    def _take_hello(self, data: bytes) -> bytes:
        """Handles the handshake once it is complete; returns what follows it, which may be frames of any length."""
        early = self._early = self._early + data
        if self._refused:
            self._early = b""
            return b""
        if len(early) < 4:
            return b""
        length = int.from_bytes(early[:4], "big", signed=True)
        if not 0 <= length <= HELLO_MAX:
            raise FrameTooLargeError(f"handshake of {length} bytes; the limit is {HELLO_MAX}")
        stop = 4 + length
        if len(early) < stop:
            return b""
        self._early = b""
        kind, header, _ = unpack(early, 4, stop)
        self._on_hello(kind, header)
        return early[stop:]

    def _on_hello(self, kind: int, header: list[Any]) -> None:
        assert self.transport is not None
        if kind != Kind.HELLO or len(header) < 6:
            raise WireError("the first frame is no handshake")
        refusal = self._owner.roster.judge(header, (CONTROL, BULK))
        if refusal is not None:
            logger.warning("a node is refused: %s", refusal.reason[:500])
            self.refuse(refusal)
            return
        self.peer = NodeId(header[2])
        self.channel = header[5]
        self._owner.on_hello(self.peer, self.channel, header)

    def refuse(self, refusal: Refusal) -> None:
        """Tells the peer why, and hears no more of it."""
        self._refused = True
        if self.transport is not None:
            self.transport.write(pack(Kind.REFUSED, [refusal.reason[:500], refusal.kind, refusal.since]))
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """A peer that closes its control connection may be dead."""
        self._owner.inlets.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        if self.peer is not None:
            self._owner.on_inlet_closed(self.peer, self.channel)
