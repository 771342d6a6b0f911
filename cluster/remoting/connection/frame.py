"""Holds a request frame as received from a client. The node passes it along until the request is answered."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from cluster.remoting.connection.reply_path import ReplyPath
from cluster.replication.send_identity import Identity
from raftmq_wire.codec import Header


class Frame(msgspec.Struct, gc=False):
    """A request frame. A msgspec.Struct, because one is made for each request and a Struct is made without running
    Python code."""

    path: ReplyPath
    """The connection through which the frame came, and through which the answer goes back."""
    serialize_type: int
    """The encoding of its header, JSON or RocketMQ's binary one; the answer's header has the same."""
    header: Header
    header_bytes: bytes
    """The header as received. A node that forwards the request forwards these bytes unchanged."""
    body: bytes
    size: int
    """Bytes of header and body. They count against the limits until the request is answered."""
    identity: Identity | None = None
    """The identity of a send, issued by the node with the client's connection; None otherwise. It never depends on what
    the client sent (see `cluster.broker.sends.send_request.Origin`)."""
    user: int = 0
    """Id of the user who signed the request, as verified by the node with the client's connection; 0 if the request has
    no proven user."""
    judged: int = 0
    """The version of users and rules by which this node judged the request; 0 if it did not judge the request."""
    unsure: Callable[[Frame, str], None] | None = None
    """Called with this frame and a reason in place of a refusal, because a former leader received the send and may have
    stored it. None if no leader has received it."""

    def may_be_stored(self, unsure: Callable[[Frame, str], None]) -> None:
        """Makes `unsure` answer when this send would be refused, because an earlier leader may have stored it."""
        self.unsure = unsure

    @property
    def version(self) -> int:
        """The version of the client's protocol (MQVersion's ordinal)."""
        return self.header.version
