"""States, in forwarded requests, which clients asked for a commit of an offset (15) or for a queue lock (41, 42), from
the heartbeats of their connection.

Only the node with the connection knows these clients. It writes them into an ext field of the request that it forwards,
in place of what the client wrote there, and the leader trusts that field in forwarded requests only.

- CLIENTS of a commit: the clients that the connection's heartbeats named for the group. The leader drops a commit for a
  queue that another client holds. The node with the connection cannot decide that, because its rows may not show the
  lock yet. Over a connection without heartbeats a client may name itself (`named_by_client`). A false name can only
  cause its own commit to be dropped.
- STANDING of a lock: whether the connection's heartbeats named the client of the request (`Standing`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from cluster.broker.groups.group_members import FIRST_HEARTBEAT_MS, Members, Role
from cluster.broker.groups.queue_locks import Standing
from cluster.remoting.connection.frame import Frame
from cluster.remoting.request import Request
from cluster.runtime import metered_json
from cluster.runtime.request_limits import ClientId, GroupName
from raftmq_wire.codec import HEADER_AT, encode_frame, ext_of
from raftmq_wire.json_text import MALFORMED
from statemachine.commands import is_same

if TYPE_CHECKING:
    from cluster.remoting.request import Connection


CLIENTS: Final = "raftmqClients"
"""Name of the ext field with a JSON list of client ids. A leader that does not know the field accepts every commit."""
CLIENTS_MAX = 16
"""The most clients that are stated for a commit. If a connection has more, none are stated, and the leader accepts
their commits."""

_encode = metered_json.encode
_decode_clients = metered_json.decoder(list[str])


def committers(request: Request, group: str, members: Members) -> frozenset[str]:
    """Returns the clients that may have sent a commit; an empty set if neither the connection nor the commit names
    any."""
    if request.connection.forwarded:
        return _listed(request.ext)
    known = members.clients_of(request.connection, group, request.user)
    return known or named_by_client(request.ext, group, request.user, members)


def named_by_client(ext: Mapping[str, str], group: str, user: int, members: Members) -> frozenset[str]:
    """Returns the clients that a commit over a connection without heartbeats says it is from: those of the user, and
    those that this node does not know in the group. Nobody can speak for another user's client. Returns an empty set if
    the commit names more than CLIENTS_MAX."""
    listed = _listed(ext)
    if not 0 < len(listed) <= CLIENTS_MAX:
        return frozenset()
    found = members.consumers.get(group)
    there = {client_id: found.members.get(client_id) if found is not None else None for client_id in listed}
    return frozenset(client_id for client_id, member in there.items() if member is None or is_same(member.user, user))


def _listed(ext: Mapping[str, str]) -> frozenset[str]:
    try:
        return frozenset(_decode_clients(ext.get(CLIENTS, "[]")))
    except msgspec.DecodeError:
        return frozenset()


def name_committers(frame: Frame, members: Members) -> Frame:
    """Returns the commit as it is forwarded, with the ids of the connection's clients of its group in the field
    CLIENTS; without that field if there are no such clients or more than CLIENTS_MAX. A commit that another node has
    forwarded is unchanged. Raises CodecError if its header is malformed."""
    if frame.path.forwarded:
        return frame
    ext = ext_of(frame.header)
    group = ext.get("consumerGroup", "")
    clients = members.clients_of(frame.path, group, frame.user) or named_by_client(ext, group, frame.user, members)
    if 0 < len(clients) <= CLIENTS_MAX:
        return with_field(frame, ext, CLIENTS, _encode(sorted(clients)).decode())
    return with_field(frame, ext, CLIENTS, None) if CLIENTS in ext else frame


def with_field(frame: Frame, ext: dict[str, str], name: str, value: str | None) -> Frame:
    """Returns the request with the ext fields `ext` and the field `name`; without that field if `value` is None."""
    header = frame.header
    ext = {**ext, name: value} if value is not None else {key: ext[key] for key in ext if key != name}
    written = encode_frame(
        header.code,
        header.opaque,
        header.flag,
        ext=ext,
        remark=header.remark,
        serialize_type=frame.serialize_type,
        language=str(header.language),
        version=header.version,
    )
    return msgspec.structs.replace(frame, header_bytes=written[HEADER_AT:])


STANDING: Final = "raftmqStanding"
"""Name of the ext field with a Standing. A node that does not know the field forwards requests without it, and the
leader treats them as requests of a member."""


class _NamedClient(msgspec.Struct, rename="camel"):
    """The fields of a LockBody that identify the asking client."""

    consumer_group: GroupName
    client_id: ClientId


_decode_named = metered_json.decoder(_NamedClient, strict=False)


def standing_of(request: Request, group: str, client_id: str, members: Members) -> Standing:
    """Returns the standing of the client that a request names, from the connection or from the forwarded field."""
    if not request.connection.forwarded:
        return _standing(request.connection, group, client_id, request.user, members)
    try:
        return Standing(request.ext.get(STANDING, Standing.MEMBER))
    except ValueError:
        return Standing.STRANGER


def gives_up(request: Request, group: str, client_id: str, members: Members) -> bool:
    """Returns True if the request may end that client's locks. If the connection is new and the client is connected
    elsewhere, only a request from the client's own host may do so."""
    standing = standing_of(request, group, client_id, members)
    if standing is not Standing.NEW:
        return standing is Standing.MEMBER
    there = members.find(Role.CONSUMER, group, client_id)
    if there is None:
        return True
    here = request.connection.peer_address[0]
    return is_same(there.user, request.user) and there.connection.peer_address[0] == here


def _standing(connection: Connection, group: str, client_id: str, user: int, members: Members) -> Standing:
    if client_id in members.clients_of(connection, group, user):
        return Standing.MEMBER
    return Standing.NEW if connection.age_s * 1000 < FIRST_HEARTBEAT_MS else Standing.STRANGER


def name_standing(frame: Frame, members: Members) -> Frame:
    """Returns the request as it is forwarded, with the field STANDING. A request that another node has forwarded is
    unchanged. Raises CodecError if its header is malformed."""
    if frame.path.forwarded:
        return frame
    try:
        named = _decode_named(frame.body)
        standing = _standing(frame.path, named.consumer_group, named.client_id, frame.user, members)
    except MALFORMED:  # the leader refuses such a request
        standing = Standing.STRANGER
    return with_field(frame, ext_of(frame.header), STANDING, standing.value)
