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
import random
import socket as socket_module
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from cluster.peer.connections import BULK, CONTROL, Inlet, Link
from cluster.peer.roster import REMOVED, Address, Addresses, Membership, Refusal, Roster
from cluster.peer.wire import NODE_KINDS, Kind, WireError, decode_message, encode_message, pack
from raftlog.messages import AppendEntries, Message
from raftlog.types import NodeId

logger = logging.getLogger(__name__)

__all__ = ["BULK", "CONTROL", "Handlers", "HeartbeatNet", "Inlet", "Link", "Membership", "PeerTransport"]

OUT_BUFFER_MAX = 32 << 20
"""Bytes waiting for a slow peer above which messages to it are dropped."""
REDIAL_MIN_S, REDIAL_MAX_S = 0.05, 0.5
REDIAL_REMOVED_S = 5.0
"""A node that was told that it left asks no more often."""
DIAL_S = 2.0
"""A dial into a partition is given up and repeated: the system's own timeout would outlive the partition by minutes."""


class Handlers(NamedTuple):
    """Where what arrives goes; all called on the loop."""

    message: Callable[[Message], None]
    closed: Callable[[NodeId], None]
    frame: Callable[[NodeId, int, list[Any], bytes], None]
    """Forwarded requests, fetches and the replies to both: (peer, kind, header, payload). May raise WireError."""
    refused: Callable[[NodeId, Refusal], None] = lambda peer, refusal: None
    """A peer does not let this node in."""


class HeartbeatNet(NamedTuple):
    """A network of its own for heartbeats, votes and acknowledgements: the control connections."""

    bind: Address | None = None
    """Where this node listens for them besides its peer port."""
    addresses: Mapping[NodeId, Address] = MappingProxyType({})
    """Where it dials peers for them; others at their peer port."""


class PeerTransport:
    """Implements `raft_driver.Transport`, and carries forwarded requests."""

    def __init__(
        self, membership: Membership, addresses: Addresses, bind: Address, incarnation: int = 0,
        advertised: Address | None = None, heartbeats: HeartbeatNet = HeartbeatNet(),  # noqa: B008 - a value
    ) -> None:  # fmt: skip
        """`addresses`: where each peer may listen, by host name or ip; names are resolved at every dial.

        `incarnation`: another one at every start of the node; 0 is not compared. `advertised`: where others reach this
        node, for those that do not know it yet.
        """
        self.roster = Roster(membership, addresses)
        self.incarnation = incarnation
        self.links: dict[tuple[NodeId, str], Link] = {}
        self.inlets: dict[Inlet, None] = {}
        self.dropped = 0
        self._advertised = advertised
        self._bind = bind
        self._handlers: Handlers | None = None
        self._servers: list[asyncio.Server] = []
        self._heartbeats = heartbeats
        self.dial_errors: dict[NodeId, str] = {}
        """Peer -> why the last dial failed; nobody who was reached since."""
        self._diallers: dict[NodeId, list[asyncio.Task[None]]] = {}
        self._lookups: set[asyncio.Task[None]] = set()
        self._incarnations: dict[NodeId, object] = {}
        self._jitter = random.Random(incarnation)
        self._is_removed = False
        self._closing = False

    async def start(self, handlers: Handlers) -> None:
        """Listens and starts dialling. Raises OSError if a port cannot be bound."""
        self._handlers = handlers
        loop = asyncio.get_running_loop()
        for bind in dict.fromkeys([self._bind, *([self._heartbeats.bind] if self._heartbeats.bind else [])]):
            self._servers.append(await loop.create_server(lambda: Inlet(self), *bind))
        self._dial_all()

    async def close(self) -> None:
        """Closes every connection."""
        self._closing = True
        tasks = [*(task for tasks in self._diallers.values() for task in tasks), *self._lookups]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for transport in [link.transport for link in self.links.values()] + [i.transport for i in self.inlets]:
            if transport is not None:
                transport.abort()
        for server in self._servers:
            server.close()

    def set_members(self, membership: Membership, addresses: Addresses) -> None:
        """The members have changed: new ones are dialled, those that left are told so, links to old addresses end."""
        before = {peer: self.roster.addresses_of(peer) for peer in self.roster.peers()}
        self.roster.update(membership, addresses)
        for peer, known in before.items():
            if self.roster.addresses_of(peer) != known:
                self._stop_dialling(peer)
        for inlet in list(self.inlets):
            left = membership.removed.get(inlet.peer) if inlet.peer is not None else None
            if left is not None:
                reason = f"node {inlet.peer} was removed from this cluster at entry {left.since}"
                inlet.refuse(Refusal(reason, REMOVED, left.since))
        if self._servers:
            self._dial_all()

    def _dial_all(self) -> None:
        loop = asyncio.get_running_loop()
        for peer in self.roster.peers():
            if peer not in self._diallers and not self._closing:
                self._diallers[peer] = [
                    loop.create_task(self._dial(peer, channel), name=f"dial-{peer}-{channel}")
                    for channel in (CONTROL, BULK)
                ]

    def _stop_dialling(self, peer: NodeId) -> None:
        for task in self._diallers.pop(peer, ()):
            task.cancel()
        for link in [link for (to, _), link in self.links.items() if to == peer]:
            link.abort()

    def send(self, messages: Iterable[Message]) -> None:
        """Sends Raft messages, one write per connection."""
        parts: dict[tuple[NodeId, str], list[bytes]] = {}
        for message in messages:
            channel = BULK if isinstance(message, AppendEntries) else CONTROL
            parts.setdefault((message.to_id, channel), []).extend(encode_message(message))
        for (peer, channel), data in parts.items():
            self._write(peer, channel, data)

    def send_on(self, peer: NodeId, channel: str, kind: Kind, header: list[Any]) -> bool:
        """Sends a frame without payload on that channel; False if the peer cannot be reached there now."""
        return self._write(peer, channel, [pack(kind, header)])

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
        delay, attempt = REDIAL_MIN_S, 0
        while addresses := self._addresses(peer, channel):
            host, port = addresses[attempt % len(addresses)]
            try:
                async with asyncio.timeout(DIAL_S):
                    _, link = await loop.create_connection(lambda: Link(self, peer, channel), host, port)
            except OSError as error:
                logger.debug("node %d (%s:%d) cannot be reached: %s", peer, host, port, error)
                self.dial_errors[peer] = f"{host}:{port}: {error or 'no answer'}"
                attempt += 1
            else:
                started = loop.time()
                if peer in self._heartbeats.addresses:
                    attempt = 0  # theirs first, whatever served meanwhile
                self.dial_errors.pop(peer, None)
                await link.lost
                if loop.time() - started > 1.0:
                    delay = REDIAL_MIN_S
            await asyncio.sleep(REDIAL_REMOVED_S if self._is_removed else delay * self._jitter.uniform(0.75, 1.25))
            delay = min(REDIAL_MAX_S, delay * 2)

    def _addresses(self, peer: NodeId, channel: str) -> tuple[Address, ...]:
        """Where to dial, in this order. Heartbeats go over the peer port when their own address cannot be reached."""
        known = self.roster.addresses_of(peer)
        own = self._heartbeats.addresses.get(peer) if channel == CONTROL and known else None
        return known if own is None else tuple(dict.fromkeys((own, *known)))

    async def _leave_old_address(self, peer: NodeId) -> None:
        """Drops links to an address that none of the peer's names has any more: the dialler makes new ones at once."""
        addresses: set[str] = set()
        for host, port in self._addresses(peer, CONTROL):
            try:
                rows = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket_module.SOCK_STREAM)
            except OSError as error:
                logger.debug("node %d: the name %s cannot be looked up: %s", peer, host, error)
                return
            addresses |= {str(row[4][0]) for row in rows}
        for link in [link for (to, _), link in self.links.items() if to == peer]:
            remote = link.transport.get_extra_info("peername") if link.transport is not None else None
            if remote is not None and remote[0] not in addresses:
                logger.info("node %d has moved from %s to %s", peer, remote[0], ", ".join(sorted(addresses)))
                link.abort()

    # --- called by the protocols ---------------------------------------------------------------------------------

    def hello(self, peer: NodeId, channel: str) -> list[Any]:
        """How this node introduces itself (wire.Kind.HELLO)."""
        me = self.roster.membership
        who = [me.cluster_uuid, me.group_id, me.node_id, me.node_uuid, peer, channel, self.incarnation]
        return [*who, *self._advertised] if self._advertised is not None else who

    def on_hello(self, peer: NodeId, channel: str, header: list[Any]) -> None:
        """A peer introduced itself. One that lost power, or came back under another address, has left links behind that
        nobody closes: waiting for them to time out would keep it out for seconds."""
        self._close_older_inlets(peer, channel)
        before = self.roster.addresses_of(peer)
        if self.roster.greet(header):
            if before != self.roster.addresses_of(peer):
                logger.info("node %d says hello and is no member as far as this node knows", peer)
                self._stop_dialling(peer)
            self._dial_all()
        incarnation = header[6] if len(header) > 6 else 0
        if incarnation:
            if self._incarnations.get(peer, incarnation) != incarnation:
                for link in [link for (to, _), link in self.links.items() if to == peer]:
                    link.abort()
            self._incarnations[peer] = incarnation
        if channel != CONTROL or all(_is_address(host) for host, _ in self._addresses(peer, CONTROL)):
            return
        looking = self._leave_old_address(peer)
        task = asyncio.get_running_loop().create_task(looking, name=f"look up node {peer}")
        self._lookups.add(task)
        task.add_done_callback(self._lookups.discard)

    def _close_older_inlets(self, peer: NodeId, channel: str) -> None:
        """What the peer passes on keeps its order: an older connection may still hold what it has given up since."""
        if channel != BULK:
            return
        for inlet in [inlet for inlet in self.inlets if inlet.peer == peer and inlet.channel == channel][:-1]:
            if inlet.transport is not None:
                inlet.transport.abort()

    def on_refused(self, peer: NodeId, header: list[Any]) -> None:
        """A peer does not let this node in: [reason, kind, index]."""
        reason, kind, index = [*header, *("", "", -1)[len(header) :]][:3]
        if not self._is_removed:
            logger.error("node %d refuses this node: %s", peer, reason or "no reason")
        self._is_removed = self._is_removed or kind == REMOVED
        if self._handlers is not None and not self._closing:
            self._handlers.refused(peer, Refusal(str(reason), str(kind), index if type(index) is int else -1))

    def on_frame(self, peer: NodeId, kind: int, header: list[Any], payload: bytes) -> None:
        """A frame after the handshake. Raises WireError."""
        assert self._handlers is not None
        if kind in NODE_KINDS:
            self._handlers.frame(peer, kind, header, payload)
            return
        message = decode_message(kind, header, payload, self.roster.membership.group_id)
        if message.from_id != peer or message.to_id != self.roster.membership.node_id:
            raise WireError(f"a message from {message.from_id} to {message.to_id} on node {peer}'s connection")
        self._handlers.message(message)

    def on_inlet_closed(self, peer: NodeId, channel: str) -> None:
        """A connection from the peer closed. A guest that is gone is not dialled any more."""
        if self.roster.is_guest(peer) and not any(inlet.peer == peer for inlet in self.inlets):
            self.roster.leave(peer)
            self._stop_dialling(peer)
        if channel == CONTROL:
            self.on_closed(peer)

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
