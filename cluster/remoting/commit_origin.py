"""Who commits an offset (15): the clients that its connection's heartbeats named for the group.

Only the node with the connection knows them. It adds them to a commit that it forwards, as the ext field CLIENTS; the
leader drops what a client commits of a queue that another client holds. The node with the connection cannot decide
that: its rows may not show the lock yet.
"""

from __future__ import annotations

from typing import Final

import msgspec

from cluster.broker.group_members import Members
from cluster.remoting.frame import Frame
from cluster.remoting.request import Request
from cluster.runtime import metered_json
from cluster.wire.codec import HEADER_AT, encode_frame, ext_of

CLIENTS: Final = "raftmqClients"
"""A JSON list of client ids. A leader that does not know the field takes every commit. A client may set it
on a connection without heartbeats."""
CLIENTS_MAX = 16
"""A connection of more clients is not told apart: its commits pass."""

_encode = metered_json.encode
_decode = metered_json.decoder(list[str])


def committers(request: Request, group: str, members: Members) -> frozenset[str]:
    """The clients that may have sent a commit; none if neither the connection nor the commit names any."""
    known = members.clients_of(request.connection, group)
    if known:
        return known
    try:
        return frozenset(_decode(request.ext.get(CLIENTS, "[]")))
    except msgspec.DecodeError:
        return frozenset()


def name_committers(frame: Frame, members: Members) -> Frame:
    """The commit as it is forwarded. Raises CodecError if its header is malformed."""
    ext = ext_of(frame.header)
    clients = members.clients_of(frame.path, ext.get("consumerGroup", ""))
    if frame.path.forwarded or not 0 < len(clients) <= CLIENTS_MAX:
        return frame
    return with_field(frame, ext, CLIENTS, _encode(sorted(clients)).decode())


def with_field(frame: Frame, ext: dict[str, str], name: str, value: str) -> Frame:
    """The request with these ext fields and one more."""
    header = frame.header
    written = encode_frame(
        header.code,
        header.opaque,
        header.flag,
        ext={**ext, name: value},
        remark=header.remark,
        serialize_type=frame.serialize_type,
        language=str(header.language),
        version=header.version,
    )
    return msgspec.structs.replace(frame, header_bytes=written[HEADER_AT:])
