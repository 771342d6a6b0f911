"""TCP between the nodes of a group: two connections per directed pair, `control` and `bulk`.

A node dials every peer and sends only on connections that it dialled; it receives on those it accepted. Heartbeats,
votes and acks travel on `control`, appends and forwarded requests on `bulk`, so bulk data cannot starve a heartbeat.
Raft tolerates loss: what cannot be sent now is dropped, never queued without bound. A closed connection is news: the
driver hears of it at once and need not wait for a timeout.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket as socket_module
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, cast

from cluster.framing import FrameBuffer, FrameTooLargeError
from cluster.peer.wire import FRAME_MAX, NODE_KINDS, Kind, WireError, decode_message, encode_message, pack, unpack
from raftlog.messages import AppendEntries, Message
from raftlog.types import NodeId

logger = logging.getLogger(__name__)

CONTROL, BULK = "control", "bulk"
OUT_BUFFER_MAX = 32 << 20
"""Bytes waiting for a slow peer above which messages to it are dropped."""
REDIAL_MIN_S, REDIAL_MAX_S = 0.05, 0.5
HANDSHAKE_S = 5.0
DIAL_S = 2.0
"""A dial into a partition is given up and repeated: the system's own timeout would outlive the partition by minutes."""
UNACKNOWLEDGED_MS = 5000
"""A connection whose bytes nobody acknowledges for so long is closed, for the same reason."""
_USER_TIMEOUT: int | None = getattr(socket_module, "TCP_USER_TIMEOUT", None)
HELLO_MAX = 4096
"""Longest frame from a stranger, bytes."""


class Membership(NamedTuple):
    """What a handshake carries and is checked against: a node of another cluster, or with another disk, is refused."""

    cluster_uuid: str
    group_id: int
    node_id: NodeId
    node_uuid: str
    members: dict[NodeId, str]
    """node id -> node uuid of every member."""


class Handlers(NamedTuple):
    """Where what arrives goes; all called on the loop."""

    message: Callable[[Message], None]
    closed: Callable[[NodeId], None]
    frame: Callable[[NodeId, int, list[Any], bytes], None]
    """Forwarded requests, fetches and the replies to both: (peer, kind, header, payload). May raise WireError."""


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
        me = self._owner.membership
        hello = [me.cluster_uuid, me.group_id, me.node_id, me.node_uuid, self.peer, self.channel]
        transport.write(pack(Kind.HELLO, [*hello, self._owner.incarnation]))
        self._owner.links[self.peer, self.channel] = self

    def data_received(self, data: bytes) -> None:
        """The only thing a peer says here is why it refuses this node."""
        try:
            buffer, frames = self._buffer.feed(data)
            for start, stop in frames:
                kind, header, _ = unpack(buffer, start, stop)
                if kind == Kind.REFUSED:
                    logger.error("node %d refuses this node: %s", self.peer, header[0] if header else "no reason")
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
        self._peer: NodeId | None = None
        self._refused = False
        self._channel = ""
        self._timer: asyncio.TimerHandle | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Waits for the handshake, not for ever."""
        self.transport = transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._owner.inlets[self] = None
        self._timer = asyncio.get_running_loop().call_later(HANDSHAKE_S, self._no_hello)

    def _no_hello(self) -> None:
        if self._peer is None and self.transport is not None:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Dispatches every complete frame."""
        try:
            peer = self._peer
            if peer is None:
                data = self._take_hello(data)
                peer = self._peer
                if peer is None:
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
        reason = self._owner.check_hello(header)[:500]
        if reason:
            logger.warning("a node is refused: %s", reason)
            self.transport.write(pack(Kind.REFUSED, [reason]))
            self.transport.close()
            self._refused = True
            return
        self._peer = NodeId(header[2])
        self._channel = header[5]
        self._owner.on_hello(self._peer, self._channel, header[6] if len(header) > 6 else 0)

    def connection_lost(self, exc: Exception | None) -> None:
        """A peer that closes its control connection may be dead."""
        self._owner.inlets.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        if self._peer is not None and self._channel == CONTROL:
            self._owner.on_closed(self._peer)


class PeerTransport:
    """Implements `raft_driver.Transport`, and carries forwarded requests."""

    def __init__(
        self, membership: Membership, addresses: dict[NodeId, tuple[str, int]], bind: tuple[str, int],
        incarnation: int = 0,
    ) -> None:  # fmt: skip
        """`addresses`: where each peer listens, by host name or ip; names are resolved at every dial.

        `incarnation`: another one at every start of the node; 0 is not compared.
        """
        self.membership = membership
        self.incarnation = incarnation
        self.links: dict[tuple[NodeId, str], Link] = {}
        self.inlets: dict[Inlet, None] = {}
        self.dropped = 0
        self._addresses = {peer: address for peer, address in addresses.items() if peer != membership.node_id}
        self._bind = bind
        self._handlers: Handlers | None = None
        self._server: asyncio.Server | None = None
        self._diallers: list[asyncio.Task[None]] = []
        self._lookups: set[asyncio.Task[None]] = set()
        self._incarnations: dict[NodeId, object] = {}
        self._closing = False

    async def start(self, handlers: Handlers) -> None:
        """Listens and starts dialling. Raises OSError if the port cannot be bound."""
        self._handlers = handlers
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Inlet(self), *self._bind)
        for peer in self._addresses:
            for channel in (CONTROL, BULK):
                self._diallers.append(loop.create_task(self._dial(peer, channel), name=f"dial-{peer}-{channel}"))

    async def close(self) -> None:
        """Closes every connection."""
        self._closing = True
        tasks = [*self._diallers, *self._lookups]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for transport in [link.transport for link in self.links.values()] + [i.transport for i in self.inlets]:
            if transport is not None:
                transport.abort()
        if self._server is not None:
            self._server.close()

    def send(self, messages: Iterable[Message]) -> None:
        """Sends Raft messages, one write per connection."""
        parts: dict[tuple[NodeId, str], list[bytes]] = {}
        for message in messages:
            channel = BULK if isinstance(message, AppendEntries) else CONTROL
            parts.setdefault((message.to_id, channel), []).extend(encode_message(message))
        for (peer, channel), data in parts.items():
            self._write(peer, channel, data)

    def send_frame(self, peer: NodeId, kind: Kind, header: list[Any], payload: bytes) -> bool:
        """Sends a forwarded request or its reply; False if the peer cannot be reached now."""
        return self._write(peer, BULK, [pack(kind, header, len(payload)), payload])

    def known_incarnation(self, peer: NodeId) -> object:
        """What `peer` said last; None if it has said nothing yet."""
        return self._incarnations.get(peer)

    def connected(self, peer: NodeId) -> bool:
        """True if something sent now has a connection to travel on."""
        return (peer, BULK) in self.links

    def _write(self, peer: NodeId, channel: str, parts: list[bytes]) -> bool:
        link = self.links.get((peer, channel))
        if link is None or link.transport is None or link.transport.is_closing():
            self.dropped += 1
            return False
        if link.transport.get_write_buffer_size() > OUT_BUFFER_MAX:
            self.dropped += 1
            return False
        link.transport.writelines(parts)
        return True

    async def _dial(self, peer: NodeId, channel: str) -> None:
        loop = asyncio.get_running_loop()
        delay = REDIAL_MIN_S
        while True:
            host, port = self._addresses[peer]
            try:
                async with asyncio.timeout(DIAL_S):
                    _, link = await loop.create_connection(lambda: Link(self, peer, channel), host, port)
            except OSError as error:
                logger.debug("node %d (%s:%d) cannot be reached: %s", peer, host, port, error)
            else:
                started = loop.time()
                await link.lost
                if loop.time() - started > 1.0:
                    delay = REDIAL_MIN_S
            await asyncio.sleep(delay)
            delay = min(REDIAL_MAX_S, delay * 2)

    async def _leave_old_address(self, peer: NodeId) -> None:
        """Drops links to an address that the peer's name no longer has: the dialler makes new ones at once."""
        host, port = self._addresses[peer]
        try:
            rows = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket_module.SOCK_STREAM)
        except OSError as error:
            logger.debug("node %d: the name %s cannot be looked up: %s", peer, host, error)
            return
        addresses = {str(row[4][0]) for row in rows}
        for link in [link for (to, _), link in self.links.items() if to == peer]:
            remote = link.transport.get_extra_info("peername") if link.transport is not None else None
            if remote is not None and remote[0] not in addresses:
                logger.info("node %d has moved from %s: %s is %s now", peer, remote[0], host, ", ".join(addresses))
                link.abort()

    # --- called by the protocols ---------------------------------------------------------------------------------

    def on_hello(self, peer: NodeId, channel: str, incarnation: object) -> None:
        """A peer introduced itself. One that lost power, or came back under another address, has left links behind that
        nobody closes: waiting for them to time out would keep it out for seconds."""
        if incarnation:
            if self._incarnations.get(peer, incarnation) != incarnation:
                for link in [link for (to, _), link in self.links.items() if to == peer]:
                    link.abort()
            self._incarnations[peer] = incarnation
        if channel != CONTROL or peer not in self._addresses or _is_address(self._addresses[peer][0]):
            return
        task = asyncio.get_running_loop().create_task(self._leave_old_address(peer), name=f"look up node {peer}")
        self._lookups.add(task)
        task.add_done_callback(self._lookups.discard)

    def check_hello(self, header: list[Any]) -> str:
        """Why a handshake is refused; "" if it is not."""
        cluster, group, node_id, node_uuid, to_id, channel = header[:6]
        me = self.membership
        if cluster != me.cluster_uuid or group != me.group_id:
            return (
                f"it belongs to cluster {cluster} group {group}, "
                f"this is cluster {me.cluster_uuid} group {me.group_id}"
            )
        if to_id != me.node_id:
            return f"it looks for node {to_id} at this address, which is node {me.node_id}: check [[peers]]"
        known = me.members.get(NodeId(node_id)) if type(node_id) is int else None
        if known is None:
            return f"node {node_id} is no member of this cluster"
        if known != node_uuid:
            return (
                f"node {node_id} comes with another disk (node uuid {node_uuid}, the cluster knows {known}): "
                "its data directory was replaced; bring the old one back"
            )
        if channel not in (CONTROL, BULK):
            return f"unknown channel {channel!r}"
        return ""

    def on_frame(self, peer: NodeId, kind: int, header: list[Any], payload: bytes) -> None:
        """A frame after the handshake. Raises WireError."""
        assert self._handlers is not None
        if kind in NODE_KINDS:
            self._handlers.frame(peer, kind, header, payload)
            return
        message = decode_message(kind, header, payload, self.membership.group_id)
        if message.from_id != peer or message.to_id != self.membership.node_id:
            raise WireError(f"a message from {message.from_id} to {message.to_id} on node {peer}'s connection")
        self._handlers.message(message)

    def on_closed(self, peer: NodeId) -> None:
        """A control connection from or to the peer closed."""
        if not self._closing and self._handlers is not None:
            self._handlers.closed(peer)


def _is_address(host: str) -> bool:
    """Whether there is nothing to look up."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
