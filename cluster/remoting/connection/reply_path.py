"""Defines the path of an answer to a client, whose connection is on this node or on another node that forwards its
requests."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Hashable
from heapq import heappop, heappush
from typing import TYPE_CHECKING, ClassVar

from cluster.broker.services import ClientAnswer, ClientRequest
from cluster.replication.send_identity import ConnectionSession
from cluster.requests.table import ONE_TRY
from cluster.runtime.resource_budget import Room
from raftmq_wire.codec import FLAG_ONEWAY, Header, encode_frame, ext_of
from raftmq_wire.codes import RequestCode

if TYPE_CHECKING:
    from cluster.flow.gate import Gate


class ReplyPath:
    """Receives the answers to a client's requests: the client's own connection, or the stand-in for a forwarding
    node."""

    __slots__ = (
        "born_host",
        "calls",
        "closed",
        "in_flight",
        "line",
        "listener",
        "on_close",
        "peer_address",
        "room",
        "secure",
        "session",
    )

    forwarded: ClassVar[bool] = False
    """True if another node holds the client's connection."""

    def __init__(self, peer_address: tuple[str, int], listener: str, room: Room, gate: Gate) -> None:
        """`peer_address`: the client's own ip and port. `room`: the memory for answers that the client has not read.
        `gate`: the accounts of its requests in flight."""
        self.room = room
        self.peer_address = peer_address
        self.listener = listener
        self.closed = False
        self.secure = False
        """True for a client's own connection over TLS."""
        self.on_close: list[Callable[[], None]] = []
        self.in_flight = gate.holder(peer_address[0])
        self.born_host = pack_host(*peer_address)
        self.session: ConnectionSession | None = None
        """The session of this connection in the send path (`cluster.replication.send_identity`)."""
        self.line: OrderLine | None = None
        """The order of the requests of this connection that this node held for a leader; None until the first one is
        held."""

        self.calls: ClientCalls | None = None
        """Requests of this node to the client that the client has not answered; None before the first."""

    @property
    def owner(self) -> Hashable:
        return self

    @property
    def age_s(self) -> float:
        return math.inf

    def tell_closed(self) -> None:
        """Calls each function in `on_close` once, because the connection, or the request that another node forwarded,
        has ended."""
        callbacks, self.on_close = self.on_close, []
        for callback in callbacks:
            callback()

    def order_line(self) -> OrderLine:
        """Returns the connection's order line, and makes it for the first held request."""
        if self.line is None:
            self.line = OrderLine()
        return self.line

    def write(self, data: bytes) -> None:
        """Queues bytes for the client."""
        raise NotImplementedError

    def write_parts(self, head: bytes, body: bytes) -> None:
        """Queues a frame in two parts, of which the second may be large."""
        self.write(head + body)

    def unanswered(self) -> None:
        """Called when a oneway request has ended without an answer. Does nothing here, because a connection stays
        open."""

    def room_for(self, size: int, again: Callable[[], None]) -> bool:
        """Returns True if there is memory for an answer of `size` bytes now. Otherwise returns False, and calls `again`
        when there is memory, unless the client has disconnected by then."""
        if self.room.fits(size):
            return True
        self.room.wait(size, lambda: None if self.closed else again())
        return False

    def leave_now(self) -> None:
        """Sends the queued answers and closes the connection. Does nothing here, where there is no connection."""

    def work_waits(self, count: int) -> None:
        """Does nothing here: only paths that limit the work of their client count it."""

    def room_given_back(self) -> None:
        """Called when a request has released its reserved memory, so that waiting requests may continue. Does nothing
        here."""

    def consumers_changed(self, group: str) -> None:
        self.call_oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group})

    def call(self, request: ClientRequest, ended: Ended) -> Callable[[], None]:
        if self.calls is None:
            self.calls = ClientCalls()
            self.on_close.append(self.calls.close)
        opaque = next_opaque()
        give_up = self.calls.begin(opaque, ended)
        self.write(encode_frame(request.code, opaque, 0, ext=request.ext, body=request.body, language="JAVA"))
        return give_up

    def call_oneway(self, code: int, ext: dict[str, str], body: bytes = b"") -> None:
        """Sends a server-to-client request that expects no reply."""
        self.write(encode_frame(code, next_opaque(), FLAG_ONEWAY, ext=ext, body=body, language="JAVA"))


_opaque = 0


def next_opaque() -> int:
    """Returns the next id of a server-to-client request. These ids are independent of those of the client's
    requests."""
    global _opaque
    _opaque = (_opaque + 1) & 0x7FFFFFFF
    return _opaque


def pack_host(host: str, port: int) -> bytes:
    """Encodes ip (4 or 16 bytes) and int32 port. A host that is no ip address is encoded as 127.0.0.1."""
    try:
        packed = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host.partition("%")[0])
    except OSError:
        packed = b"\x7f\x00\x00\x01"
    if len(packed) == 16 and packed[:12] == b"\0" * 10 + b"\xff\xff":
        packed = packed[12:]
    return packed + port.to_bytes(4, "big")


Ended = Callable[[ClientAnswer | None], None]


class ClientCalls:
    """Requests to the client of one connection. Each call ends exactly once: with the client's answer, or with None."""

    def __init__(self) -> None:
        self._waiting: dict[int, Ended] = {}

    def begin(self, opaque: int, ended: Ended) -> Callable[[], None]:
        """Registers `ended`, which is called with the answer that carries `opaque`. Returns a function that gives up
        the call."""
        self._waiting[opaque] = ended
        return lambda: self._end(opaque, None)

    def on_response(self, header: Header, body: bytes) -> None:
        """Delivers the client's answer, if its call still waits. Raises CodecError for malformed fields."""
        if header.opaque in self._waiting:
            self._end(header.opaque, ClientAnswer(header.code, header.remark or "", ext_of(header), body))

    def close(self) -> None:
        """Ends all calls with None, because the connection closed."""
        for opaque in list(self._waiting):
            self._end(opaque, None)

    def _end(self, opaque: int, answer: ClientAnswer | None) -> None:
        ended = self._waiting.pop(opaque, None)
        if ended is not None:
            ended(answer)


# Keeps the order of the requests of one client connection, on a node that forwards them (docs/guarantees.md, "Consumer
# offsets").
#
# Requests that change offsets, topics or groups, and all sends, are forwarded to a leader in the order in which they
# came, on one connection between the nodes, which keeps that order. A write without an identity is forwarded a second
# time only if two conditions hold: the leader said that it did nothing with it, and no later such write was forwarded
# or carried out by this node meanwhile.


class OrderLine:
    """The requests of one connection whose order must be kept, by the numbers under which the forwarder holds them."""

    __slots__ = ("_newest", "_newest_sent", "_order", "_waiting")

    def __init__(self) -> None:
        self._waiting: set[int] = set()
        """Numbers of requests that the present leader has not received."""
        self._order: list[int] = []
        """A heap of the numbers in `_waiting`. It may also contain numbers of requests that no longer wait."""
        self._newest = self._newest_sent = 0

    @property
    def waits(self) -> bool:
        """True if a request waits that the present leader has not received."""
        return bool(self._waiting)

    def join(self, number: int) -> None:
        """Adds a request that arrived, that a leader returned, or whose leader was replaced."""
        if number not in self._waiting:
            self._waiting.add(number)
            heappush(self._order, number)
            self._newest = max(self._newest, number)

    @property
    def first(self) -> int:
        """The number of the first request that waits; 0 if none does."""
        order = self._order
        while order and order[0] not in self._waiting:
            heappop(order)
        return order[0] if order else 0

    def may_go(self, number: int) -> bool:
        """Returns True if no earlier request waits."""
        return not 0 < self.first < number

    def sent(self, number: int, code: int) -> None:
        """Records that a leader, which may be this node, has received the request. `code`: its request code."""
        self._waiting.discard(number)
        if code in ONE_TRY:
            self._newest_sent = max(self._newest_sent, number)

    def served(self, code: int) -> None:
        """Records that this node itself carries out a request that came after those in this line. If a former leader
        returns one of these now, it counts as overtaken."""
        if code in ONE_TRY:
            self._newest_sent = self._newest + 1

    def leave(self, number: int) -> None:
        """Forgets a request that was answered or given up."""
        self._waiting.discard(number)

    def overtaken(self, number: int, code: int) -> bool:
        """Returns True if this request must not be forwarded any more: it may be carried out once at most (ONE_TRY),
        and a later such request was forwarded or carried out."""
        return code in ONE_TRY and self._newest_sent > number
