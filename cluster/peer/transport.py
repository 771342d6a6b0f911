"""Connects the nodes of a group over TCP: each node dials two connections to every peer, `control` and `bulk`.

A node sends only on the connections that it dialled, and receives only on those that it accepted. Heartbeats, votes and
acks travel on `control`, appends and forwarded requests on `bulk`, so bulk data cannot starve a heartbeat. Raft
tolerates loss: a message that cannot be sent now is dropped, never queued without bound. The transport tells the driver
at once when a connection closes, so the driver need not wait for a timeout.

Both sides prove that they have the cluster's secret before they send anything else (`handshake`, `connections`). Keys
can change while the node runs: connections are then replaced one by one, and each old one closes when the new one is
open.
"""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import logging
import os
import random
import socket as socket_module
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from cluster.config.local_layout import node_object
from cluster.peer import handshake
from cluster.peer.admission import ConnectionAdmission
from cluster.peer.allowed_peers import BELOW, REMOVED, Addresses, HostAndPort, Membership, Refusal, Roster
from cluster.peer.allowed_peers import LEVEL as TOO_OLD
from cluster.peer.connections import BULK, CONTROL, GROUP, Inlet, Link
from cluster.peer.keyring import OPEN, Keyring
from cluster.peer.transport_options import PEER_WAITS, FrameHandlers, HeartbeatNet, OtherGroups, PeerLevels, PeerWaits
from cluster.peer.wire import decode_message, encode_message, pack
from cluster.runtime.key_file import key_id
from cluster.runtime.peer_frames import NODE_KINDS, Kind, WireError
from cluster.runtime.tls.acceptor import Acceptor
from cluster.runtime.tls.dialling import PLAIN_DIALLING, Dialling
from cluster.runtime.tls.port_security import PLAIN, Security
from raftlog.format_versions import BASELINE
from raftlog.messages import AppendEntries, Message
from raftlog.types import NodeId
from raftlog.work import CALL_UNITS, METER
from statemachine.levels import GROUPS_LEVEL

logger = logging.getLogger(__name__)

__all__ = [
    "BULK",
    "CONTROL",
    "Inlet",
    "Link",
    "Membership",
    "PeerTransport",
]

OUT_BUFFER_MAX = 32 << 20
"""The most bytes that may wait for a slow peer; above this, messages to the peer are dropped."""
REDIAL_MIN_S, REDIAL_MAX_S = 0.05, 0.5
REDIAL_REMOVED_S = 5.0
"""Seconds between two dials once a peer has told this node that it was removed from the cluster."""

PLAIN_REFUSAL = pack(Kind.REFUSED, ["it takes TLS only, and this node speaks plain text (peer.tls)", "", -1])
"""The answer to a node that speaks plain text where TLS is required."""


class PeerTransport:
    """Implements `raft_driver.MessageSender`, and carries forwarded requests."""

    def __init__(
        self,
        membership: Membership,
        addresses: Addresses,
        bind: HostAndPort,
        incarnation: int = 0,
        advertised: HostAndPort | None = None,
        heartbeats: HeartbeatNet = HeartbeatNet(),  # noqa: B008 - a value
        keyring: Keyring = OPEN,
        entropy: Callable[[int], bytes] = os.urandom,
        levels: PeerLevels = PeerLevels(),  # noqa: B008 - a value
        security: Security = PLAIN,
        dialling: Dialling = PLAIN_DIALLING,
        waits: PeerWaits = PEER_WAITS,
    ) -> None:
        """`addresses`: where each peer may listen, by host name or ip; names are resolved at every dial.

        `incarnation` differs between any two starts of the node; 0 means that it is unknown and is not compared.
        `advertised` is the address at which others reach this node, for nodes that do not know it yet. `keyring` holds
        the keys that are proven and required; `entropy(n)` returns n random bytes for nonces. `security` and `dialling`
        configure TLS for accepted and dialled connections; without them connections are in plain text.
        """
        self.dialling = dialling
        self._security, self._waits = security, waits
        self.roster = Roster(membership, addresses)
        self.incarnation = incarnation
        self.links: dict[tuple[NodeId, str], Link] = {}
        """(peer, channel) -> the link on which this node sends to that peer."""
        self.dialled: dict[Link, None] = {}
        """The open links, and those whose handshake is not finished. The values have no meaning."""
        self.inlets: dict[Inlet, None] = {}
        self.dropped = 0
        self.entry_bytes = 0
        """Bytes of appends handed to connections since the start."""
        self.keyring = keyring
        self.challengers: set[NodeId] = set()
        """Peers that have asked this node to prove that it has the cluster's secret. These peers have the secret too.
        So this node sends them nothing before they have proven it, even if no proof is required yet."""
        self.admission = ConnectionAdmission()
        self._entropy = entropy
        self._renewals: dict[tuple[NodeId, str], asyncio.Task[None]] = {}
        self._renew_again: set[tuple[NodeId, str]] = set()
        self._advertised = advertised
        self._level = levels.own
        self._levels = {} if levels.announced is None else levels.announced
        self._cluster_level = levels.of_cluster
        self._bind = bind
        self._handlers: FrameHandlers | None = None
        self._servers: list[asyncio.Server | Acceptor] = []
        self._heartbeats = heartbeats
        self.dial_errors: dict[NodeId, str] = {}
        """Peer -> the reason why the last dial failed. A peer is removed when it is reached."""
        self._diallers: dict[NodeId, list[asyncio.Task[None]]] = {}
        self._lookups: set[asyncio.Task[None]] = set()
        self._incarnations: dict[NodeId, object] = {}
        self._jitter = random.Random(incarnation)
        self._is_removed = False
        self._closing = False
        self._groups: OtherGroups | None = None

    def serve_groups(self, groups: OtherGroups) -> None:
        """Accepts nodes of other groups from now on, for `groups`."""
        self._groups = groups

    async def start(self, handlers: FrameHandlers) -> None:
        """Listens and starts dialling. Raises OSError if a port cannot be bound."""
        self._handlers = handlers
        loop = asyncio.get_running_loop()
        make = lambda: Inlet(self, self._waits.handshake_s)  # noqa: E731
        for bind in dict.fromkeys([self._bind, *([self._heartbeats.bind] if self._heartbeats.bind else [])]):
            if self._security.mode == "disabled":
                self._servers.append(await loop.create_server(make, *bind))
            else:
                acceptor = Acceptor(loop, make, lambda opening, address: "", self._security)
                self._servers.append(acceptor)
                await acceptor.open(*bind)
        self._dial_all()

    async def close(self) -> None:
        """Closes every connection, including those accepted while it does so."""
        self._closing = True
        for server in self._servers:
            server.close()
        tasks = [*(task for tasks in self._diallers.values() for task in tasks), *self._lookups]
        tasks += self._renewals.values()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for transport in [link.transport for link in self.dialled] + [inlet.transport for inlet in self.inlets]:
            if transport is not None:
                transport.abort()

    def set_members(self, membership: Membership, addresses: Addresses) -> None:
        """Applies changed members and addresses: dials new members, tells removed ones the reason, and closes links to
        old addresses."""
        before = {peer: self.roster.addresses_of(peer) for peer in self.roster.peers()}
        self.roster.update(membership, addresses)
        # A node may have joined by an entry that this node has just truncated, and may be the leader that made it
        # truncate the entry. That leader has sent its HELLO as a member and goes on sending. If this node did not
        # answer, that leader could not send the entry that makes it a member again.
        for inlet in self.inlets:
            if inlet.peer is not None and inlet.peer not in membership.removed:
                self.roster.greet(inlet.introduction)
        for peer, known in before.items():
            if self.roster.addresses_of(peer) != known:
                self._stop_dialling(peer)
        for inlet in list(self.inlets):
            left = membership.removed.get(inlet.peer) if inlet.peer is not None else None
            if left is not None and inlet.peer is not None:
                about = self.roster.object_of(inlet.peer)
                reason = f"{about} was removed from this cluster at entry {left.since}"
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
        for link in [link for link in self.dialled if link.peer == peer]:
            link.abort()

    def send(self, messages: Iterable[Message]) -> None:
        """Sends Raft messages, with one write per connection. Drops those to peers that cannot be reached now."""
        parts: dict[tuple[NodeId, str], list[bytes]] = {}
        for message in messages:
            channel = BULK if isinstance(message, AppendEntries) else CONTROL
            parts.setdefault((message.to_id, channel), []).extend(encode_message(message))
        for (peer, channel), data in parts.items():
            if self._write(peer, channel, data) and channel == BULK:
                self.entry_bytes += sum(map(len, data))

    def send_on(self, peer: NodeId, channel: str, kind: Kind, header: list[Any]) -> bool:
        """Sends a frame without payload on that channel; returns False if the peer cannot be reached on it now."""
        return self._write(peer, channel, [pack(kind, header)])

    def send_frame(self, peer: NodeId, kind: Kind, header: list[Any], payload: bytes) -> bool:
        """Sends a frame with a payload, such as a forwarded request or its reply, on the channel `bulk`; returns False
        if the peer cannot be reached now."""
        return self._write(peer, BULK, [pack(kind, header, len(payload)), payload])

    def request_ids(self) -> Iterator[int]:
        """Yields numbers for requests to peers, below 2^63. Two runs of this node use different numbers: an answer to a
        request of the former run may arrive over a connection of this run, and must not match a request of this run."""
        return itertools.count((self.incarnation & 0x7FFF_FFFF) << 32 | 1)

    def known_incarnation(self, peer: NodeId) -> object:
        """Returns the incarnation in the last HELLO of `peer`; None if there was none yet."""
        return self._incarnations.get(peer)

    def connected_members(self) -> list[NodeId]:
        """Returns the members, other than this node, to which this node has an open connection, ascending."""
        peers = [peer for peer in self.roster.peers() if not self.roster.is_guest(peer)]
        return [peer for peer in peers if self.connected(peer)]

    def reaches_all(self) -> bool:
        """Returns True if this node has an open connection to every other member."""
        return all(self.connected(peer) for peer in self.roster.peers() if not self.roster.is_guest(peer))

    def connected(self, peer: NodeId) -> bool:
        """Returns True if a frame could be sent to the peer now."""
        return (peer, BULK) in self.links

    def _write(self, peer: NodeId, channel: str, parts: list[bytes]) -> bool:
        link = self.links.get((peer, channel))
        if link is None or link.transport is None or link.transport.is_closing():
            self.dropped += 1
            return False
        if link.transport.get_write_buffer_size() > OUT_BUFFER_MAX:
            self.dropped += 1
            return False
        METER.units += CALL_UNITS + (sum(map(len, parts)) >> 10)
        link.transport.writelines(parts)
        return True

    async def _dial(self, peer: NodeId, channel: str) -> None:
        loop = asyncio.get_running_loop()
        delay, attempt, plain = REDIAL_MIN_S, 0, False
        make = lambda: Link(self, peer, channel, handshake_s=self._waits.handshake_s)  # noqa: E731
        while addresses := self._addresses(peer, channel):
            host, port = addresses[attempt % len(addresses)]
            try:
                async with asyncio.timeout(self._waits.dial_s):
                    link = await self.dialling.dial(make, host, port, plain=plain)
            except OSError as error:
                logger.debug("%s (%s:%d) cannot be reached: %s", self.roster.object_of(peer), host, port, error)
                self.dial_errors[peer] = f"{host}:{port}: {error.strerror or str(error) or 'no answer'}"
                attempt += 1
            else:
                started = loop.time()
                if peer in self._heartbeats.addresses:
                    attempt = 0  # the next dial begins with the heartbeat address again, whichever address worked last
                await self._last_of(link)
                # A link that ended before it opened may be one whose certificate the peer refused, which shows only
                # after the TLS handshake. The next dial then tries plain text, if that is permitted, and the one
                # after it TLS again.
                plain = not plain and not link.is_open
                if loop.time() - started > 1.0:
                    delay = REDIAL_MIN_S
            await asyncio.sleep(REDIAL_REMOVED_S if self._is_removed else delay * self._jitter.uniform(0.75, 1.25))
            delay = min(REDIAL_MAX_S, delay * 2)

    async def _last_of(self, link: Link | None) -> None:
        """Waits until the link, and each link that replaces it in turn, is lost."""
        while link is not None:
            await link.lost
            link = self.links.get((link.peer, link.channel))

    async def _renew(self, peer: NodeId, channel: str) -> None:
        """Dials another connection on that channel to replace the open one. If the peer does not prove its identity on
        the new connection, the old one stays."""
        try:
            done = await self._renew_once(peer, channel)
            while not done and (peer, channel) in self._renew_again:  # the peer has proven the key meanwhile
                self._renew_again.discard((peer, channel))
                done = await self._renew_once(peer, channel)
        finally:
            self._renewals.pop((peer, channel), None)
            self._renew_again.discard((peer, channel))
        if done and channel == BULK:
            self._renew_links(peer, (CONTROL,))

    async def _renew_once(self, peer: NodeId, channel: str) -> bool:
        link: Link | None = None
        make = lambda: Link(self, peer, channel, renews=True, handshake_s=self._waits.handshake_s)  # noqa: E731
        try:
            for host, port in self._addresses(peer, channel):
                try:
                    async with asyncio.timeout(self._waits.dial_s):
                        link = await self.dialling.dial(make, host, port)
                except OSError as error:
                    logger.debug("%s (%s:%d) cannot be reached: %s", self.roster.object_of(peer), host, port, error)
                    continue
                await asyncio.wait([link.lost, link.opened], return_when=asyncio.FIRST_COMPLETED)
                if link.is_open:
                    return True
        finally:
            if link is not None and not link.is_open:
                link.abort()
        return False

    def _addresses(self, peer: NodeId, channel: str) -> tuple[HostAndPort, ...]:
        """Returns the addresses to dial, in the order in which to try them; empty if the peer is not to be dialled. On
        the channel `control` the peer's heartbeat address comes first, and its peer port is used if that cannot be
        reached."""
        known = self.roster.addresses_of(peer)
        own = self._heartbeats.addresses.get(peer) if channel == CONTROL and known else None
        return known if own is None else tuple(dict.fromkeys((own, *known)))

    async def _leave_old_address(self, peer: NodeId) -> None:
        """Closes links whose address none of the peer's host names resolves to any more; the dialler makes new links at
        once."""
        addresses: set[str] = set()
        for host, port in self._addresses(peer, CONTROL):
            try:
                rows = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket_module.SOCK_STREAM)
            except OSError as error:
                logger.debug("%s: the name %s cannot be looked up: %s", self.roster.object_of(peer), host, error)
                return
            addresses |= {str(row[4][0]) for row in rows}
        for link in [link for (to, _), link in self.links.items() if to == peer]:
            remote = link.transport.get_extra_info("peername") if link.transport is not None else None
            if remote is not None and remote[0] not in addresses:
                logger.info(
                    "%s has moved from %s to %s", self.roster.object_of(peer), remote[0], ", ".join(sorted(addresses))
                )
                link.abort()

    # --- called by the protocols ---------------------------------------------------------------------------------

    def hello(self, peer: NodeId, channel: str) -> list[Any]:
        """Returns the header of this node's HELLO (wire.Kind.HELLO) without nonce, key ids and levels."""
        me = self.roster.membership
        who = [me.cluster_uuid, me.group_id, me.node_id, me.node_uuid, peer, channel, self.incarnation]
        return [*who, *self._advertised] if self._advertised is not None else who

    def introduction(self, peer: NodeId, channel: str) -> list[Any]:
        """Returns the header of this node's HELLO with nonce, key ids and levels."""
        hello, keyring = self.hello(peer, channel), self.keyring
        nonce = self._entropy(handshake.NONCE_BYTES) if keyring.keys else b""
        return [*handshake.with_keys(hello, nonce, keyring.ids), self._level, self._cluster_level()]

    def judge_level(self, header: list[Any], *, proven: bool) -> Refusal | None:
        """Returns the reason to refuse the sender of this HELLO, if the cluster has a level that one of the two nodes
        does not know; else None. A cluster at the baseline accepts every node."""
        node, theirs, floor, mine = header[2], handshake.level(header), handshake.floor(header), self._cluster_level()
        told = node_object(header[1], node)
        if theirs < mine and mine > BASELINE:
            return Refusal(
                f"the cluster has level {mine}, and {told} knows levels up to {theirs}, so it would misread the "
                "log: start it with the newer version: pip install --upgrade 'raftmq[server]'",
                TOO_OLD,
            )
        if floor <= self._level:
            return None
        if self._handlers is not None and (proven or not self.keyring.demanded):
            why = f"{told} says that the cluster has level {floor}, and this node knows levels up to {self._level}"
            self._handlers.refused(node, Refusal(why, TOO_OLD))
        return Refusal(f"this node knows levels up to {self._level}, and the cluster has level {floor}")

    def judge_group(self, header: list[Any]) -> Refusal | None:
        """Returns the reason to refuse the sender of this HELLO on the channel `group`; else None."""
        if self._groups is None or self._closing:
            return Refusal(f"unknown channel {GROUP!r}")
        refusal = self.roster.judge_group(header)
        if refusal is None and (level := self._cluster_level()) < GROUPS_LEVEL:
            me = self.roster.membership
            why = f"group {me.group_id} has level {level}, and several groups of brokers need level {GROUPS_LEVEL}"
            return Refusal(f"{why}; in group {me.group_id}: raftmq upgrade finalize", BELOW)
        if refusal is None and (full := self._groups.why_full(header[1], NodeId(header[2]))):
            return Refusal(full)
        return refusal

    def open_group(self, inlet: Inlet, header: list[Any]) -> asyncio.Protocol:
        """Returns the protocol that handles the connection of a node of another group, which `judge_group` has
        accepted."""
        assert self._groups is not None
        assert inlet.transport is not None
        return self._groups.accept(inlet.transport, header[1], NodeId(header[2]), inlet.key_id)

    def keep_to(self, level: int) -> None:
        """Ends connections of nodes that do not know the cluster's new level. The handshake tells these nodes the
        reason when they connect again."""
        for inlet in [inlet for inlet in self.inlets if inlet.peer is not None]:
            if handshake.level(inlet.introduction) < level:
                inlet.abort()

    def challenge(self, key: bytes) -> list[Any]:
        """Returns the header of a CHALLENGE (wire.Kind.CHALLENGE), which asks a peer to prove that it has this key."""
        return [self._entropy(handshake.NONCE_BYTES), key_id(key)]

    def who(self) -> list[Any]:
        """Returns this node's identity: [cluster uuid, node id, node uuid]. Only peers that have proven theirs receive
        it."""
        me = self.roster.membership
        return [me.cluster_uuid, me.node_id, me.node_uuid]

    def demands_proof_of(self, peer: NodeId) -> bool:
        """Returns True if this node sends nothing before the peer has proven that it has the secret."""
        return self.keyring.demanded or peer in self.challengers

    def note_refused(self, remote: str, reason: str) -> None:
        """Counts and logs that a connection from the address `remote` is refused."""
        self.admission.note_refused(remote, reason, asyncio.get_running_loop().time())

    def on_link_open(self, link: Link) -> None:
        """Sends everything for the peer and channel of this link, whose handshake is complete, on it from now on.
        Closes the link that it replaces."""
        before = self.links.get((link.peer, link.channel))
        self.links[link.peer, link.channel] = link
        self.dial_errors.pop(link.peer, None)
        if before is not None and before.transport is not None:
            before.transport.close()

    def on_inlet(self, inlet: Inlet) -> None:
        """Registers an accepted connection, and closes one if too many connections have not finished their
        handshake."""
        self.inlets[inlet] = None
        if self._closing:  # the connection was accepted before the port was closed, but is reported only now
            inlet.abort()
            return
        surplus = self.admission.surplus_stranger(self.inlets)
        if surplus is not None:
            self.note_refused(surplus.remote, "too many connections have not identified themselves")
            surplus.abort()

    def on_inlet_open(self, inlet: Inlet) -> None:
        """Handles a peer whose handshake was accepted. Closes its oldest connection if it has too many on the channel.
        If the peer has proven the newest key, renews the links to it that have not proven that key."""
        surplus = self.admission.surplus_of_peer(self.inlets, inlet)
        if surplus is not None:
            surplus.abort()
        if inlet.peer is not None and inlet.key_id and inlet.key_id == self.keyring.newest:
            self._renew_links(inlet.peer, (BULK, CONTROL))

    def proven_by(self) -> set[NodeId]:
        """Returns the peers that have proven the newest key on all their connections to this node, on both channels."""
        newest, seen = self.keyring.newest, dict[NodeId, dict[str, bool]]()
        for inlet in self.inlets:
            if inlet.peer is not None:
                channels = seen.setdefault(inlet.peer, {})
                channels[inlet.channel] = channels.get(inlet.channel, True) and inlet.key_id == newest
        return {peer for peer, channels in seen.items() if len(channels) == 2 and all(channels.values()) and newest}

    def set_keyring(self, keyring: Keyring) -> None:
        """Uses another keyring from now on. If it demands a proof, connections that have proven none of its keys are
        closed at once. Links that have not proven the newest key are replaced without a gap."""
        self.keyring = keyring
        if keyring.demanded:
            stand: list[Link | Inlet] = [*self.links.values(), *self.inlets]
            for one in stand:
                if one.peer is not None and one.key_id not in keyring.ids:
                    one.abort()
        if self._groups is not None:
            self._groups.use(keyring)
        self.renew()

    def renew(self) -> None:
        """Tries to prove the newest key on connections that have not proven it. Begins with the bulk connections. If
        the peer has no secret yet, the additional connection ends: a peer ignores that on `bulk`, but on `control`
        takes it for a failure of this node."""
        for peer in self.roster.peers():
            self._renew_links(peer, (BULK,))

    def renew_certified(self) -> None:
        """Replaces every link by one with the newest certificates, the bulk connections first. Does nothing if TLS is
        off."""
        if self.dialling.mode == "disabled":
            return
        for (peer, channel), link in list(self.links.items()):
            link.outdate()
            if channel == BULK:
                self._renew_links(peer, (BULK,))

    def cut_off(self, peer: NodeId, why: str) -> None:
        """Closes the connections of a peer that sent an implausible message; the peer may connect again. `why` goes to
        the log."""
        for inlet in [inlet for inlet in self.inlets if inlet.peer == peer]:
            self.note_refused(f"{inlet.remote} ({self.roster.object_of(peer)})", why)
            inlet.abort()

    def _renew_links(self, peer: NodeId, channels: tuple[str, ...]) -> None:
        newest = self.keyring.newest
        for channel in channels:
            link = self.links.get((peer, channel))
            if link is None or self._closing or not link.is_outdated(newest):
                continue
            if (peer, channel) in self._renewals:
                self._renew_again.add((peer, channel))
                continue
            task = asyncio.get_running_loop().create_task(self._renew(peer, channel), name=f"renew-{peer}-{channel}")
            self._renewals[peer, channel] = task

    def on_hello(self, peer: NodeId, channel: str, header: list[Any]) -> None:
        """Handles an accepted HELLO. If the peer lost power or has a new address, this node still has links to its
        former run or address, which the peer will not close. This node closes them now, because their timeout would
        keep the peer out for seconds."""
        self._close_older_inlets(peer, channel)
        before = self.roster.addresses_of(peer)
        if self.roster.greet(header):
            if before != self.roster.addresses_of(peer):
                logger.info("%s connected and is not a member as far as this node knows", self.roster.object_of(peer))
                self._stop_dialling(peer)
            self._dial_all()
        incarnation = header[6] if len(header) > 6 else 0
        if incarnation:
            if self._incarnations.get(peer, incarnation) != incarnation:
                self._end_earlier_run(peer, incarnation)
            self._incarnations[peer] = incarnation
        self._note_level(peer, handshake.level(header))
        if channel != CONTROL or all(_is_address(host) for host, _ in self._addresses(peer, CONTROL)):
            return
        looking = self._leave_old_address(peer)
        task = asyncio.get_running_loop().create_task(looking, name="look up a peer")
        self._lookups.add(task)
        task.add_done_callback(self._lookups.discard)

    def _end_earlier_run(self, peer: NodeId, incarnation: object) -> None:
        """Closes the connections of earlier runs of the peer. A run that lost power does not close its own, and the
        level that it announced would be taken for the level of the present run. If this HELLO itself is a late one of
        an earlier run, this closes connections of the present run. The peer then connects again, and the connections of
        the earlier run are closed."""
        for link in [link for (to, _), link in self.links.items() if to == peer]:
            link.abort()
        for inlet in [inlet for inlet in self.inlets if inlet.peer == peer and inlet.incarnation != incarnation]:
            inlet.abort()

    def _note_level(self, peer: NodeId, *said: int) -> None:
        """Records the lowest level that the peer announced on its open connections. The HELLO of an earlier run may
        arrive late. It counts until its connection closes, because this node cannot tell which of the two runs is the
        present one."""
        levels = [*said, *(handshake.level(inlet.introduction) for inlet in self.inlets if inlet.peer == peer)]
        if levels:
            self._levels[peer] = min(levels)
        else:
            self._levels.pop(peer, None)

    def _close_older_inlets(self, peer: NodeId, channel: str) -> None:
        """Closes all bulk connections of the peer but the newest. An older connection may still contain requests that
        the peer has given up meanwhile. Closing it keeps the order of the requests that the peer forwards."""
        if channel != BULK:
            return
        for inlet in [inlet for inlet in self.inlets if inlet.peer == peer and inlet.channel == channel][:-1]:
            inlet.abort()

    def on_refused(self, peer: NodeId, header: list[Any], *, proven: bool) -> None:
        """Handles a refusal from a peer; `header` is [reason, kind, index]. A refusal that says that this node was
        removed stops the service. So if a proof is required, this node believes it only from a peer that has proven to
        belong to the cluster."""
        reason, kind, index = [*header, *("", "", -1)[len(header) :]][:3]
        if not self._is_removed:
            self.dial_errors[peer] = f"it refuses this node: {str(reason)[:500] or 'no reason'}"
            self.admission.note_refusal_by(
                self.roster.object_of(peer), str(reason)[:500], asyncio.get_running_loop().time()
            )
        if kind in (REMOVED, TOO_OLD) and not proven and self.keyring.demanded:
            return
        self._is_removed = self._is_removed or kind == REMOVED
        if self._handlers is not None and not self._closing:
            self._handlers.refused(peer, Refusal(str(reason), str(kind), index if type(index) is int else -1))

    def on_frame(self, peer: NodeId, kind: int, header: list[Any], payload: bytes) -> None:
        """Passes a frame that arrived after the handshake to its handler. Raises WireError if the frame is malformed or
        its Raft message is not from this peer to this node."""
        assert self._handlers is not None
        if kind in NODE_KINDS:
            self._handlers.frame(peer, kind, header, payload)
            return
        message = decode_message(kind, header, payload, self.roster.membership.group_id)
        if message.from_id != peer or message.to_id != self.roster.membership.node_id:
            raise WireError(
                f"a message from {message.from_id} to {message.to_id}, on {self.roster.object_of(peer)}'s connection"
            )
        self._handlers.message(message)

    def on_inlet_closed(self, closed: Inlet) -> None:
        """Handles the end of a connection from a peer. Nothing is reported if the same run of the peer has another one
        in its place. A guest without connections is no longer dialled."""
        peer = closed.peer
        assert peer is not None
        others = [inlet for inlet in self.inlets if inlet.peer == peer]
        self._note_level(peer)
        if self.roster.is_guest(peer) and not others:
            self.roster.leave(peer)
            self._stop_dialling(peer)
        channel = closed.channel
        if not any(inlet.channel == channel and inlet.incarnation == closed.incarnation for inlet in others):
            self.on_closed(peer, channel)

    def on_closed(self, peer: NodeId, channel: str) -> None:
        """Reports that a connection from or to the peer closed. When a node dies, all its connections close, in any
        order. Each is reported, because frames may have been sent between two closings (found by the simulator, seed
        850000425)."""
        if self._closing or self._handlers is None:
            return
        if channel == CONTROL:
            self._handlers.closed(peer)
        elif channel == BULK:
            self._handlers.frames_lost(peer)


def _is_address(host: str) -> bool:
    """Returns True if `host` is an IP address, which needs no name resolution."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
