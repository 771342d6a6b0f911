"""Finds the addresses of each member: in the log, else in this node's own [[peers]].

The members of GENESIS are known from the configuration only. A node that joins later gives its address when it is
added, and the log carries it to all nodes. An entry in the log is newer than any file, so it comes first.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from cluster.config.address import split_address
from cluster.config.config import Config
from cluster.config.node_sections import PeerNode
from cluster.peer.probe import PROBE_S, why_another, why_unreachable
from cluster.runtime.request_limits import TooLongError, read_at_most
from cluster.runtime.tls.dialling import PLAIN_DIALLING, Dialling
from raftlog.membership import Address, Membership
from raftlog.types import FIRST_GROUP, NodeId


class MemberAddresses(NamedTuple):
    """The addresses of one member: those of a [[peers]] table, without the id."""

    host: str
    port: int
    admin: str
    """The "host:port" of its HTTP API; "" if unknown."""
    listeners: Mapping[str, str]
    """Listener name -> advertised "host:port"."""

    def as_address(self, node: NodeId) -> Address:
        """Returns these addresses as a MEMBERSHIP entry contains them."""
        return Address(node, self.host, self.port, self.admin, tuple(sorted(self.listeners.items())))


def of_peer(peer: PeerNode) -> MemberAddresses:
    """Returns the addresses in a [[peers]] table."""
    return MemberAddresses(peer.host, peer.port, peer.admin, peer.listeners)


def peer_addresses(counted: Sequence[Membership], config: Config) -> dict[NodeId, tuple[tuple[str, int], ...]]:
    """Returns node id -> addresses at which the member may listen for other nodes: those in the log, newest first, then
    the configured one. `counted` are the memberships whose members are included, oldest first."""
    configured = {NodeId(peer.id): (peer.host, peer.port) for peer in config.peers}
    found: dict[NodeId, list[tuple[str, int]]] = {}
    for membership in reversed(counted):
        for node in membership.node_uuids:
            logged = membership.address(node)
            found.setdefault(node, []).extend([(logged.host, logged.port)] if logged is not None else [])
    return {
        node: tuple(dict.fromkeys([*known, *([configured[node]] if node in configured else [])]))
        for node, known in found.items()
    }


def addresses_of(membership: Membership, config: Config) -> dict[NodeId, MemberAddresses]:
    """Returns node id -> addresses of each voter and learner with known addresses, in id order."""
    configured = {NodeId(peer.id): of_peer(peer) for peer in config.peers}
    logged = {
        each.id: MemberAddresses(each.host, each.port, each.admin, dict(each.listeners))
        for each in membership.addresses
    }
    known = configured | logged
    return {node: known[node] for node in sorted(membership.node_uuids) if node in known}


ANSWER_BYTES_MAX: Final = 256 << 10
_REQUEST: Final = b"GET /v1/status HTTP/1.0\r\nAccept: application/json\r\n\r\n"
"""The request that asks a node for its identity. It has no Host header: the node refuses host names that it does not
know, such as its new one, to keep browsers out (`cluster.admin.server`). Browsers always send the header."""


class _Who(msgspec.Struct):
    """The fields of the answer to `GET /v1/status` that identify the node."""

    node: int
    cluster_id: str
    uuid: str = ""
    """The uuid of the node. "" from an earlier release; then only the node id and the cluster are compared."""


async def probe_http(
    node: NodeId,
    node_uuid: str,
    cluster_uuid: str,
    address: str,
    dialling: Dialling = PLAIN_DIALLING,
    group: int = FIRST_GROUP,
    limit_s: float = PROBE_S,
) -> str:
    """Asks the HTTP API at `address`, a "host:port", which node it belongs to. Returns "" if it belongs to the expected
    node, else the reason, for people, why that node was not found there. Takes at most `limit_s` seconds."""
    try:
        async with asyncio.timeout(limit_s):
            answer = await _ask(*split_address(address), dialling)
    except TimeoutError:
        return f"no answer within {limit_s:g} s"
    except OSError as error:
        return why_unreachable(error)
    except (ValueError, TooLongError) as error:
        return str(error)
    return _judge(answer, node, node_uuid, cluster_uuid, group)


async def _ask(host: str, port: int, dialling: Dialling) -> bytes:
    """Sends the request and returns the answer. Raises TooLongError if the answer is longer than ANSWER_BYTES_MAX, and
    OSError if the connection fails."""
    first, *others = dialling.ways()
    try:
        reader, writer = await asyncio.open_connection(host, port, ssl=first)
    except (ssl.SSLError, ConnectionError):
        if not others:
            raise
        reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(_REQUEST)
        return b"".join(await read_at_most(reader, ANSWER_BYTES_MAX))
    finally:
        writer.transport.abort()


def _judge(answer: bytes, node: NodeId, node_uuid: str, cluster_uuid: str, group: int) -> str:
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.split(b"\r\n", 1)[0].split(b" ")
    if not status[0].startswith(b"HTTP/1."):
        return "what listens there does not speak HTTP"
    try:
        who = msgspec.json.decode(body, type=_Who)
    except (msgspec.DecodeError, ValueError):
        return f"what answers there is no node (HTTP status {status[1][:3].decode('latin-1') if status[1:] else '?'})"
    return why_another([who.cluster_id, who.node, who.uuid or node_uuid], (cluster_uuid, node, node_uuid), group)
