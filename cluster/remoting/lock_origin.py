"""Who asks for queue locks (41, 42): what the connection's heartbeats said of the client that the request names.

Only the node with the connection knows. It says so when it forwards, in the ext field STANDING, whatever the client
wrote there; the leader believes the field of a forwarded request alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from cluster.broker.group_members import FIRST_HEARTBEAT_MS, Members, Role
from cluster.broker.queue_locks import Standing
from cluster.remoting.commit_origin import with_field
from cluster.remoting.frame import Frame
from cluster.runtime import metered_json
from cluster.runtime.request_limits import ClientId, GroupName
from cluster.wire.codec import ext_of
from cluster.wire.json_text import MALFORMED

if TYPE_CHECKING:
    from cluster.remoting.request import Connection, Request

STANDING: Final = "raftmqStanding"
"""A Standing. A node that does not know the field passes requests on without it: they count as a member's."""


class _Named(msgspec.Struct, rename="camel"):
    """Of a LockBody: who asks."""

    consumer_group: GroupName
    client_id: ClientId


_decode = metered_json.decoder(_Named, strict=False)


def standing_of(request: Request, group: str, client_id: str, members: Members) -> Standing:
    """The leader's question."""
    if not request.connection.forwarded:
        return _standing(request.connection, group, client_id, members)
    try:
        return Standing(request.ext.get(STANDING, Standing.MEMBER))
    except ValueError:
        return Standing.STRANGER


def gives_up(request: Request, group: str, client_id: str, members: Members) -> bool:
    """Whether the request may end that client's locks. Over a new connection nobody but its host may do that to a
    client that is there."""
    standing = standing_of(request, group, client_id, members)
    if standing is not Standing.NEW:
        return standing is Standing.MEMBER
    there = members.find(Role.CONSUMER, group, client_id)
    return there is None or there.connection.peer_address[0] == request.connection.peer_address[0]


def _standing(connection: Connection, group: str, client_id: str, members: Members) -> Standing:
    if client_id in members.clients_of(connection, group):
        return Standing.MEMBER
    return Standing.NEW if connection.age_s * 1000 < FIRST_HEARTBEAT_MS else Standing.STRANGER


def name_standing(frame: Frame, members: Members) -> Frame:
    """The request as it is forwarded. Raises CodecError if its header is malformed."""
    if frame.path.forwarded:
        return frame
    try:
        named = _decode(frame.body)
        standing = _standing(frame.path, named.consumer_group, named.client_id, members)
    except MALFORMED:  # the leader refuses it
        standing = Standing.STRANGER
    return with_field(frame, ext_of(frame.header), STANDING, standing.value)
