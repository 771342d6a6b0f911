"""One request frame as it came from a client: what is handed along until the request is answered."""

from __future__ import annotations

import msgspec

from cluster.remoting.connection.reply_path import ReplyPath
from cluster.replication.identity import Identity
from cluster.wire.codec import Header


class Frame(msgspec.Struct, gc=False):
    """Made once for each request. A Struct: that is no call of Python's on the way of every message."""

    path: ReplyPath
    """Where it came from, and its answer goes."""
    serialize_type: int
    """In which form its header is, and the header of its answer."""
    header: Header
    header_bytes: bytes
    """The header as it came: a node that passes the request on changes nothing of it."""
    body: bytes
    size: int
    """Bytes of header and body: they count against the limits until it is answered."""
    identity: Identity | None = None
    """Given to a send by the node that holds the client's connection."""

    @property
    def version(self) -> int:
        """Of the client's protocol (MQVersion's ordinal)."""
        return self.header.version
