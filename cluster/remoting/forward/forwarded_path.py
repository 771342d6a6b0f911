"""The stand-in, on the leader, for a client that is connected to another node. One stand-in exists for each forwarded
request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import TYPE_CHECKING

from cluster.remoting.connection.reply_path import ReplyPath
from cluster.runtime.peer_frames import Kind

if TYPE_CHECKING:
    from cluster.flow.gate import Gate
    from cluster.runtime.peer_frames import PeerLinks
    from cluster.runtime.resource_budget import Room
    from raftlog.types import NodeId

WORKS_MAX = 256
"""Pieces of work of one client behind another node that may wait for their turns; requests above that are refused. The
forwarding node cannot stop reading from the client because of work here, and must not stop forwarding for others."""


class ForwardedPath(ReplyPath):
    """The stand-in, on the leader, for a client that is connected to another node."""

    __slots__ = ("_id", "_open", "_peer", "_transport", "_works", "is_send")

    forwarded = True

    def __init__(
        self,
        transport: PeerLinks,
        peer: NodeId,
        forward_id: int,
        client: tuple[str, int],
        listener: str,
        room: Room,
        works: Counter[Hashable],
        gate: Gate,
        open_paths: dict[tuple[NodeId, int], ForwardedPath],
    ) -> None:
        """`works`: owner -> pieces of work that wait for their turn. `open_paths`: the paths of requests that end if
        their client is gone, from which this one is removed when it is answered."""
        super().__init__(client, listener, room, gate)
        self._works = works
        self._open = open_paths
        self._transport = transport
        self._peer = peer
        self._id = forward_id
        self.is_send = False
        """True if the request is a send, which waits in the queue of sends and not with its handler."""

    @property
    def owner(self) -> Hashable:
        """The key under which work is counted: the client behind the forwarding node, rather than each of its requests
        or all clients of that node."""
        return self._peer, self.peer_address, self.listener

    def work_waits(self, count: int) -> None:
        """Counts the waiting work of the client behind the forwarding node. Above WORKS_MAX its requests are
        refused."""
        owner, works = self.owner, self._works
        works[owner] += count
        if works[owner] <= 0:
            del works[owner]

    def write(self, data: bytes) -> None:
        """Sends the answer to the node that holds the connection."""
        self._end()
        self._transport.send_frame(self._peer, Kind.FORWARD_REPLY, [self._id, True], data)

    def unanswered(self) -> None:
        self._end()

    def client_gone(self) -> None:
        """Ends the request, because its client has disconnected."""
        self.closed = True
        self._end()

    def hand_back(self) -> None:
        """Returns the request to the node with the client's connection, because this node no longer leads and has not
        proposed it. That node forwards it to the next leader."""
        self._end()
        self._transport.send_frame(self._peer, Kind.FORWARD_REPLY, [self._id, False], b"")

    def _end(self) -> None:
        """Calls the functions in `on_close`, because the only request of this path has ended."""
        name = self._peer, self._id
        if self._open.get(name) is self:  # after a lost connection, the same request may have been forwarded here again
            del self._open[name]
        self.tell_closed()
