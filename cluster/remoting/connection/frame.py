"""A request frame as it came from a client. It is handed along until the request is answered."""

from __future__ import annotations

import msgspec

from cluster.remoting.connection.reply_path import ReplyPath
from cluster.replication.identity import Identity
from raftmq_wire.codec import Header


class Frame(msgspec.Struct, gc=False):
    """A frame, made once for each request. It is a Struct: making one calls no Python code on the way of every
    message."""

    path: ReplyPath
    """The connection that the frame came through; the answer goes back through it."""
    serialize_type: int
    """The form of its header, JSON or RocketMQ's binary one; the answer's header has the same."""
    header: Header
    header_bytes: bytes
    """The header as it came: a node that passes the request on changes nothing of it."""
    body: bytes
    size: int
    """Bytes of header and body: they count against the limits until it is answered."""
    identity: Identity | None = None
    """The identity that the node with the client's connection gave to a send; None otherwise."""
    user: int = 0
    """Id of the user who signed it, as the node that holds the connection has verified; 0: nobody."""
    judged: int = 0
    """The version of users and rules by which this node judged it; 0: it did not."""

    @property
    def version(self) -> int:
        """The version of the client's protocol (MQVersion's ordinal)."""
        return self.header.version
