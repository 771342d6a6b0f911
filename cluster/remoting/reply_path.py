"""The path of an answer to the client, whose connection is on this node or on one that forwards."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Hashable
from typing import ClassVar

from cluster.broker.client_request import ClientRequest
from cluster.remoting.client_calls import ClientCalls, Ended
from cluster.remoting.order_line import OrderLine
from cluster.replication.identity import ConnectionSession
from cluster.runtime.room import Room
from cluster.wire.codec import FLAG_ONEWAY, encode_frame
from cluster.wire.codes import RequestCode


class ReplyPath:
    """What a request's answer goes through: a client's own connection, or a forwarding node's stand-in for it."""

    __slots__ = (
        "born_host",
        "calls",
        "closed",
        "inflight_bytes",
        "line",
        "listener",
        "on_close",
        "peer_address",
        "room",
        "session",
    )

    forwarded: ClassVar[bool] = False
    """Whether another node holds the client's connection."""

    def __init__(self, peer_address: tuple[str, int], listener: str, room: Room) -> None:
        """`peer_address`: the client's own ip and port; `room`: for answers that it has not taken."""
        self.room = room
        self.peer_address = peer_address
        self.listener = listener
        self.closed = False
        self.on_close: list[Callable[[], None]] = []
        self.inflight_bytes = 0
        self.born_host = pack_host(*peer_address)
        self.session: ConnectionSession | None = None
        """The send path's identity for what comes through here (see `replication.identity`)."""
        self.line: OrderLine | None = None
        """What is held here and keeps its order; None while nothing was."""

        self.calls: ClientCalls | None = None
        """Requests to the client that it has not answered; None before the first."""

    @property
    def owner(self) -> Hashable:
        """See `cluster.broker.services.Client`."""
        return self

    @property
    def age_s(self) -> float:
        """See `cluster.remoting.request.Connection`."""
        return math.inf

    def order_line(self) -> OrderLine:
        """The connection's line, begun when the first request is held."""
        if self.line is None:
            self.line = OrderLine()
        return self.line

    def write(self, data: bytes) -> None:
        """Queues bytes for the client."""
        raise NotImplementedError

    def write_parts(self, head: bytes, body: bytes) -> None:
        """The same of a frame in two parts, of which the second may be large."""
        self.write(head + body)

    def room_for(self, size: int, again: Callable[[], None]) -> bool:
        """Whether an answer of `size` bytes may be made now. If not, `again` is called when it may, unless the client
        is gone by then."""
        if self.room.fits(size):
            return True
        self.room.wait(size, lambda: None if self.closed else again())
        return False

    def work_waits(self, count: int) -> None:
        """See `cluster.broker.services.Client`."""

    def room_given_back(self) -> None:
        """What was promised to a request is not held for it any more: what waits behind it may go on."""

    def consumers_changed(self, group: str) -> None:
        """See `cluster.broker.services.Client`."""
        self.call_oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group})

    def call(self, request: ClientRequest, ended: Ended) -> Callable[[], None]:
        """See `cluster.broker.services.Client`."""
        if self.calls is None:
            self.calls = ClientCalls()
            self.on_close.append(self.calls.close)
        opaque = next_opaque()
        give_up = self.calls.begin(opaque, ended)
        self.write(encode_frame(request.code, opaque, 0, ext=request.ext, body=request.body, language="JAVA"))
        return give_up

    def call_oneway(self, code: int, ext: dict[str, str], body: bytes = b"") -> None:
        """Sends a server-to-client request that wants no reply."""
        self.write(encode_frame(code, next_opaque(), FLAG_ONEWAY, ext=ext, body=body, language="JAVA"))


_opaque = 0


def next_opaque() -> int:
    """Ids of server-to-client requests: their own space."""
    global _opaque
    _opaque = (_opaque + 1) & 0x7FFFFFFF
    return _opaque


def pack_host(host: str, port: int) -> bytes:
    """ip (4 or 16 bytes) and int32 port; a name that is no address counts as 127.0.0.1."""
    try:
        packed = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host.partition("%")[0])
    except OSError:
        packed = b"\x7f\x00\x00\x01"
    if len(packed) == 16 and packed[:12] == b"\0" * 10 + b"\xff\xff":
        packed = packed[12:]
    return packed + port.to_bytes(4, "big")
