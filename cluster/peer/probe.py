"""Asks which node listens at an address, with a handshake on the channel `probe`. The listener answers and closes the
connection.

A probe disturbs nothing: the node that is asked does not take the end of the connection as a sign that the peer failed.
A node of an older release refuses this channel. If the cluster has a secret, that node proves its identity before it
refuses. Without a secret it does not, and so counts as not reached (docs/wire-protocol.md).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any, Protocol, cast

from cluster.config.local_layout import node_object
from cluster.peer import handshake
from cluster.peer.allowed_peers import HostAndPort, Roster
from cluster.peer.connections import HELLO_MAX, OTHER_SECRET, PROBE, certified
from cluster.peer.keyring import Keyring
from cluster.peer.wire import pack, unpack
from cluster.runtime.framing import FrameBuffer, FrameTooLargeError
from cluster.runtime.peer_frames import Kind, WireError
from cluster.runtime.tls.dialling import Dialling
from raftlog.types import NodeId

PROBE_S = 2.0
"""Seconds for the dial and the handshake together."""
_SHOWN_MAX = 200
"""The most characters of each field of an answer that a reason quotes."""


class ProbingTransport(Protocol):
    """The peer transport of the node that asks (`cluster.peer.transport`)."""

    roster: Roster
    keyring: Keyring
    dialling: Dialling

    def introduction(self, peer: NodeId, channel: str) -> list[Any]:
        """Returns the header of this node's HELLO to that peer."""


async def probe(
    asker: ProbingTransport, node: NodeId, node_uuid: str, address: HostAndPort, limit_s: float = PROBE_S
) -> str:
    """Returns the reason why that node was not found at the address; "" if the node with that uuid proved its identity
    there."""
    made: list[Probe] = []

    def make() -> Probe:
        made.append(Probe(asker, node, node_uuid))
        return made[-1]

    try:
        async with asyncio.timeout(limit_s):
            connection = await asker.dialling.dial(make, *address)
            return await connection.found
    except TimeoutError:
        return f"no answer within {limit_s:g} s"
    except OSError as error:
        return why_unreachable(error)
    finally:
        for each in made:
            each.abort()


def why_unreachable(error: OSError) -> str:
    """Returns the reason of a failed dial, in the system's words."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return str(error.strerror or error)[:_SHOWN_MAX]


def why_another(found: Sequence[object], wanted: tuple[str, NodeId, str], group: int) -> str:
    """Returns the reason why the node that answers is not the wanted one; "" if it is. `found` and `wanted` are
    [cluster uuid, node id, node uuid]. `found` comes from the network, may contain anything, and is shortened. `group`:
    the group of the wanted node."""
    cluster, node, node_uuid = found
    if cluster != wanted[0]:
        return f"a node of another cluster answers there ({cluster!s:.36})"
    if node != wanted[1]:
        return "another node answers there" if type(node) is not int else f"{node_object(group, node)} answers there"
    if node_uuid != wanted[2]:
        return f"{node_object(group, wanted[1])} with another disk answers there (uuid {node_uuid!s:.36})"
    return ""


class Probe(asyncio.Protocol):
    """One dialled connection, which this node closes when it knows the listener's identity."""

    def __init__(self, asker: ProbingTransport, node: NodeId, node_uuid: str) -> None:
        self.found: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Its result is that of `probe`: the reason why the node was not found, or ""."""
        self._asker = asker
        self._node = node
        self._node_uuid = node_uuid
        self._buffer = FrameBuffer(HELLO_MAX)
        self._hello = self._challenge = b""
        self._key: bytes | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Sends this node's HELLO."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is no subclass of asyncio.Transport
        names, cluster = certified(self._transport), self._asker.roster.membership.cluster_uuid
        if names is not None and names != (cluster, self._node_uuid):
            why = self._why_another([names[0], self._node, names[1]])
            self._end(f"by its certificate, {why}")
            return
        frame = pack(Kind.HELLO, self._asker.introduction(self._node, PROBE))
        self._hello = frame[4:]
        self._transport.write(frame)

    def abort(self) -> None:
        """Closes the connection."""
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the probe with a reason, if the connection closed before the listener's identity was known."""
        self._end("it closed the connection before it said who it is")

    def data_received(self, data: bytes) -> None:
        """Handles the frames of the handshake."""
        if self.found.done():
            return
        try:
            buffer, frames = self._buffer.feed(data)
            for start, stop in frames:
                kind, header, _ = unpack(buffer, start, stop)
                self._on_frame(kind, header, buffer[start:stop])
        except (WireError, FrameTooLargeError):
            self._end("what listens there does not speak the protocol of the peer port")

    def _on_frame(self, kind: int, header: list[Any], frame: bytes) -> None:
        if kind == Kind.CHALLENGE and not self._challenge:
            self._on_challenge(header, frame)
        elif kind == Kind.WELCOME and len(header) >= 4:
            self._end(self._judge(header))
        elif kind == Kind.REFUSED:
            self._end(_why_refused(header))
        else:
            raise WireError("a frame out of turn")

    def _on_challenge(self, header: list[Any], frame: bytes) -> None:
        self._key = self._asker.keyring.key(header[1]) if len(header) >= 2 else None
        if self._key is None or self._transport is None:
            self._end(OTHER_SECRET)
            return
        self._challenge = frame
        self._transport.write(pack(Kind.PROOF, [handshake.dialler_proof(self._key, self._hello, frame)]))

    def _judge(self, header: list[Any]) -> str:
        who = header[:3]
        if self._key is not None:
            if not handshake.fits(header[3], handshake.acceptor_proof(self._key, self._hello, self._challenge, who)):
                return OTHER_SECRET
        elif self._asker.keyring.demanded:
            return "it does not prove the secret of the cluster"
        return self._why_another(who)

    def _why_another(self, found: Sequence[object]) -> str:
        own = self._asker.roster.membership
        return why_another(found, (own.cluster_uuid, self._node, self._node_uuid), own.group_id)

    def _end(self, why: str) -> None:
        if not self.found.done():
            self.found.set_result(why)


def _why_refused(header: list[Any]) -> str:
    why = str(header[0])[:_SHOWN_MAX] if header else "no reason"
    if why.startswith("unknown channel"):
        return "a node of an earlier release answers there; without a secret it does not say who it is"
    return f"it refuses this node: {why}"
