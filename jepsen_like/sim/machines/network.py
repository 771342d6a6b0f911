"""TCP in memory: byte streams between hosts, with latency, cuts in one direction, slow links, resets and dead hosts.

A cut loses packets, and TCP hides that: bytes wait and arrive late, after the heal; a dial hangs. The kernel of a
killed process sends a FIN. A machine without power sends nothing until it is powered again, and then answers with a
reset. Bytes of one connection never overtake each other. A side that pauses reading receives nothing and does not
notice the end of the connection either: the bytes wait with their writer, which is told to pause when too many do. Not
modelled: half-closing.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple, Protocol
from zlib import crc32

from jepsen_like.sim.machines.loop import PROCESS, Process, SimLoop

SOCKET_BUFFER = 256 << 10
"""Bytes that the kernels of both sides hold for a writer before its own buffer grows."""
HIGH_WATER, LOW_WATER = 64 << 10, 16 << 10
"""HIGH_WATER: bytes in a writer's own buffer above which the writer must pause. LOW_WATER: bytes at or below which it
may go on. These are asyncio's values.
"""
SYN_RETRIES_S = (1.0, 2.0, 4.0, 8.0, 16.0)
FIRST_PORT = 40001
"""First port number of the sides that dial."""
HostPair = tuple[str, str]
"""A directed link: (from host, to host)."""
Address = tuple[str, int]


class ConnectionObserver(Protocol):
    """Observer of the bytes of one connection at the side that accepted it, in the order of reads and writes."""

    def received(self, data: bytes) -> None:
        """Called with bytes that this side is about to read."""

    def sent(self, data: bytes) -> None:
        """Called with bytes that this side writes."""

    def ended(self) -> None:
        """Called when the connection has ended at this side."""


class EdgeConditions:
    """The state of each directed link of the network: cut, slow, or without power at one end."""

    def __init__(self, rng: random.Random, latency_s: tuple[float, float], split: float) -> None:
        """`latency_s`: shortest and longest delay of a packet, in seconds. `split`: share (0 to 1) of writes that
        arrive in two pieces."""
        self.rng = rng
        self.latency_s = latency_s
        self.split = split
        self.cuts: set[HostPair] = set()
        self.slow: dict[HostPair, float] = {}
        """Directed link -> extra delay in seconds."""
        self.down: set[str] = set()
        """Hosts that have no power."""

    def blocked(self, edge: HostPair) -> bool:
        """Returns True if packets on this link are lost now."""
        return edge in self.cuts or (bool(self.down) and (edge[0] in self.down or edge[1] in self.down))

    def delay_s(self, edge: HostPair) -> float:
        """Draws the delay of one packet, in seconds."""
        return self.rng.uniform(*self.latency_s) + self.slow.get(edge, 0.0)


class _Segment(NamedTuple):
    data: bytes
    end: str
    """"" if the segment carries data; "fin" or "rst" if it ends the connection."""
    due: float


class Endpoint(asyncio.Transport):
    """One side of a connection, as an asyncio transport."""

    polled = True
    """True: an event loop learns of received data by polling (`SimLoop.end_stall`)."""

    def __init__(self, network: Network, process: Process, own: Address, other: Address) -> None:
        super().__init__()
        self.network = network
        self.process = process
        self.own, self.other = own, other
        self.edge = (own[0], other[0])
        self.peer: Endpoint
        self.protocol: Any = None
        self.out: deque[_Segment] = deque()
        self.buffered = 0
        self.closing = False
        """True once this side has closed the connection."""
        self.ended = False
        """True once no more bytes go in or out; connection_lost was or is about to be called."""
        self.dead = False
        """True if this side's process is gone."""
        self._moving = False
        self._due = 0.0
        self.forgotten = False
        """True if a middlebox has forgotten the connection: everything sent on it is lost."""
        self.holds = False
        """True if this side has paused reading."""
        self._unread: list[bytes] = []
        """Bytes that arrived just when this side paused reading. They are delivered when it reads again."""
        self._high, self._low = HIGH_WATER, LOW_WATER
        self._told_to_pause = False
        self.watched: ConnectionObserver | None = None

    # --- Transport ---------------------------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": self.other, "sockname": self.own}.get(name, default)

    def is_closing(self) -> bool:
        return self.closing or self.ended

    def can_write_eof(self) -> bool:
        """Returns False: half-closing is not modelled."""
        return False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self.protocol  # type: ignore[no-any-return]

    def get_write_buffer_size(self) -> int:
        return max(0, self.buffered - self.network.socket_buffer)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = HIGH_WATER if low is None else 4 * low
        self._high, self._low = high, high // 4 if low is None else low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    @property
    def leads_nowhere(self) -> bool:
        """True if the other side has ended, or a middlebox has forgotten the connection."""
        return self.peer.dead or self.peer.ended or self.forgotten

    def is_reading(self) -> bool:
        return not (self.holds or self.closing or self.ended)

    def pause_reading(self) -> None:
        self.holds = True

    def resume_reading(self) -> None:
        if not self.holds:
            return
        self.holds = False
        unread, self._unread = self._unread, []
        for data in unread:
            self.network.loop.call_soon(self._data, data, context=self.process.context)
        self.peer.move()

    def _press(self) -> None:
        """Tells this side's protocol to pause writing when the buffer has grown above the high limit, and to go on when
        it has shrunk to the low limit (`set_write_buffer_limits`; HIGH_WATER and LOW_WATER at first).
        """
        size = self.get_write_buffer_size()
        if not self._told_to_pause and size > self._high:
            self._told_to_pause = True
            self._tell("pause_writing")
        elif self._told_to_pause and size <= self._low:
            self._told_to_pause = False
            self._tell("resume_writing")

    def _tell(self, what: str) -> None:
        """Calls `pause_writing` or `resume_writing` of the protocol, unless the protocol does not override it: then the
        call would change nothing."""
        if getattr(type(self.protocol), what) is not _PLAIN[what]:
            self.network.loop.call_soon(self._tell_now, what, context=self.process.context)

    def _tell_now(self, what: str) -> None:
        if not (self.ended or self.dead):
            getattr(self.protocol, what)()

    def write(self, data: Any) -> None:
        if self.closing or self.ended or not data:
            return
        data = bytes(data)
        if self.watched is not None:
            self.watched.sent(data)
        self.buffered += len(data)
        self._press()
        links = self.network.links
        if links.split and len(data) > 1 and links.rng.random() < links.split:
            at = links.rng.randrange(1, len(data))
            self._queue(data[:at], "")
            self._queue(data[at:], "")
        else:
            self._queue(data, "")

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if self.closing or self.ended:
            return
        self.closing = True
        self._queue(b"", "fin")
        self._lose(None)

    def abort(self) -> None:
        if self.ended and self.closing:
            return
        self.closing = True
        self.out.clear()
        self._queue(b"", "rst")
        self._lose(None)

    # --- the wire ----------------------------------------------------------------------------------------------------

    def _queue(self, data: bytes, end: str) -> None:
        due = self.network.loop.now + self.network.links.delay_s(self.edge)
        self._due = due = max(due, self._due)
        self.out.append(_Segment(data, end, due))
        self.move()

    def move(self) -> None:
        """Schedules the arrival of the first waiting segment, unless one is already scheduled."""
        if self._moving or not self.out:
            return
        self._moving = True
        loop = self.network.loop
        loop.call_at(max(loop.now, self.out[0].due), self._arrive, context=loop.outside)

    def _arrive(self) -> None:
        self._moving = False
        if not self.out:
            return
        if self.network.links.blocked(self.edge):
            self.network.stalled[self] = None
            return
        if self.forgotten:
            self.out.clear()  # dropped bytes still count as unacknowledged
            return
        if self.peer.holds and not (self.peer.dead or self.peer.ended):
            return  # delivery continues when the reader reads again
        segment = self.out.popleft()
        self.buffered -= len(segment.data)
        self._press()
        self.network.note(self, segment.data)
        self.peer.receive(segment)
        self.move()

    def receive(self, segment: _Segment) -> None:
        """Handles a segment that arrives at this side."""
        if self.dead:
            if segment.end != "rst":  # the process is gone: the kernel answers with a reset
                self.out.clear()
                self._queue(b"", "rst")
            return
        if self.ended:
            return
        if segment.end:
            error = ConnectionResetError(errno.ECONNRESET, "reset by peer") if segment.end == "rst" else None
            self._lose(error)
        else:
            self.network.loop.call_soon(self._data, segment.data, context=self.process.context)

    def _data(self, data: bytes) -> None:
        if self.closing or self.dead:
            return
        if self.holds:
            self._unread.append(data)
        else:
            if self.watched is not None:
                self.watched.received(data)
            self.protocol.data_received(data)

    def _lose(self, error: Exception | None) -> None:
        if self.ended:
            return
        self.ended = True
        if self.watched is not None:
            self.watched.ended()
        self.network.ended(self)
        self.network.loop.call_soon(self._lost, error, context=self.process.context)

    def _lost(self, error: Exception | None) -> None:
        self.closing = True
        if self.protocol is not None:
            self.protocol.connection_lost(error)

    def reset(self) -> None:
        """Ends this side with a connection reset, as a middlebox does."""
        self.out.clear()
        self._lose(ConnectionResetError(errno.ECONNRESET, "connection reset"))

    def leave(self, *, politely: bool) -> None:
        """Handles the end of this side's process. With `politely`, its written bytes still travel, followed by a FIN;
        without (power failure), they are lost."""
        self.dead = self.ended = True
        if politely:
            self._queue(b"", "fin")
        else:
            self.out.clear()


_PLAIN = {name: getattr(asyncio.BaseProtocol, name) for name in ("pause_writing", "resume_writing")}


class Server(asyncio.AbstractServer):
    """A listening port of a process."""

    sockets: tuple[()] = ()

    def __init__(self, network: Network, process: Process, factory: Callable[[], Any], address: Address) -> None:
        self.network, self.process, self.factory, self.address = network, process, factory, address

    def close(self) -> None:
        self.network.listeners.pop(self.address, None)

    async def wait_closed(self) -> None:
        """Returns at once: there is nothing to wait for."""

    async def start_serving(self) -> None:
        """Does nothing: the server accepts connections from its creation on."""

    async def serve_forever(self) -> None:
        """Does nothing: no code of the nodes or clients calls this method."""

    def get_loop(self) -> SimLoop:
        """Returns the loop of the network."""
        return self.network.loop

    def is_serving(self) -> bool:
        return self.network.listeners.get(self.address) is self


class Network:
    """The simulated network: all hosts, listeners and connections."""

    polled = True
    """True: an event loop learns of new connections by polling."""

    def __init__(self, loop: SimLoop, links: EdgeConditions) -> None:
        self.loop = loop
        self.links = links
        self.listeners: dict[Address, Server] = {}
        self.endpoints: dict[Endpoint, None] = {}
        self.stalled: dict[Endpoint, None] = {}
        self.hash = 0
        """Hash of all deliveries: when, where and what arrived."""
        self.bytes = 0
        self.socket_buffer = SOCKET_BUFFER
        self.watch: Callable[[Address, Address], ConnectionObserver | None] = lambda dialler, listener: None
        """Function (address of the side that dials, address that it dials) -> the observer of the new connection's
        bytes; None if nothing observes them.
        """
        self._ports = FIRST_PORT - 1
        loop.network = self

    def note(self, sender: Endpoint, data: bytes) -> None:
        """Counts a delivery and includes it in the trace's hash."""
        self.bytes += len(data)
        self.hash = crc32(data, crc32(f"{self.loop.now:.9f} {sender.own} {sender.other}".encode(), self.hash))

    def dead_ends(self, hosts: Collection[str]) -> Iterator[Endpoint]:
        """Yields the ends of dead connections between these hosts: the other side has ended, or a middlebox has
        forgotten the connection.
        """
        return (end for end in self.endpoints if end.leads_nowhere and end.own[0] in hosts and end.other[0] in hosts)

    def ended(self, endpoint: Endpoint) -> None:
        """Removes a connection that has ended."""
        self.endpoints.pop(endpoint, None)

    def listen(self, factory: Callable[[], Any], host: str, port: int) -> Server:
        """Opens a listening port of the calling process. Raises OSError if the port is taken."""
        process = PROCESS.get()
        assert process is not None, "only a process listens"
        if (host, port) in self.listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        server = self.listeners[host, port] = Server(self, process, factory, (host, port))
        return server

    async def connect(self, factory: Callable[[], Any], host: str, port: int) -> tuple[Endpoint, Any]:
        """Dials a port and returns the endpoint and its protocol. Raises ConnectionRefusedError, or TimeoutError after
        half a minute without an answer."""
        process = PROCESS.get()
        assert process is not None, "only a process dials"
        edge, links = (process.host, host), self.links
        await asyncio.sleep(links.delay_s(edge))
        for wait in SYN_RETRIES_S:
            if not (links.blocked(edge) or links.blocked(edge[::-1])):
                break
            await asyncio.sleep(wait * links.rng.uniform(0.9, 1.1))
        else:
            raise TimeoutError(errno.ETIMEDOUT, "nobody answered the dial")
        await asyncio.sleep(links.delay_s(edge[::-1]))
        server = self.listeners.get((host, port))
        if server is None or not server.process.alive:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        self._ports += 1
        own = (process.host, self._ports)
        near, far = Endpoint(self, process, own, (host, port)), Endpoint(self, server.process, (host, port), own)
        near.peer, far.peer = far, near
        far.watched = self.watch(near.own, far.own)
        self.endpoints[near] = self.endpoints[far] = None
        near.protocol = factory()
        self.loop.call_soon(self._accept, far, server, context=server.process.context)
        near.protocol.connection_made(near)
        return near, near.protocol

    def _accept(self, endpoint: Endpoint, server: Server) -> None:
        endpoint.protocol = server.factory()
        endpoint.protocol.connection_made(endpoint)

    # --- what nemeses do ---------------------------------------------------------------------------------------------

    def cut(self, edges: list[HostPair]) -> None:
        """Loses every packet on these links from now on."""
        self.links.cuts.update(edges)

    def heal(self, edges: list[HostPair] | None = None) -> None:
        """Restores these links (None: all). Bytes that waited arrive after TCP's next retransmission."""
        if edges is None:
            self.links.cuts.clear()
        else:
            self.links.cuts.difference_update(edges)
        self.retry()

    def retry(self) -> None:
        """Makes TCP retransmit, within 0.25 s, what was lost on links that work again."""
        waiting, self.stalled = self.stalled, {}
        for endpoint in waiting:
            if self.links.blocked(endpoint.edge):
                self.stalled[endpoint] = None
            else:
                self.loop.call_outside(self.links.rng.uniform(0.0, 0.25), endpoint.move)

    def reset(self, hosts: set[str]) -> None:
        """Resets every connection between these hosts."""
        for endpoint in list(self.endpoints):
            if endpoint.own[0] in hosts and endpoint.other[0] in hosts:
                endpoint.reset()

    def dialled(self, a: str, b: str) -> list[Endpoint]:
        """Returns the open connections between two hosts, each as the endpoint of the side that dialled."""
        return [one for one in self.endpoints if {one.own[0], one.other[0]} == {a, b} and one.own[1] >= FIRST_PORT]

    def forget(self, connections: Iterable[Endpoint], told: str | None = None) -> None:
        """Makes a middlebox forget these connections: everything sent on them is lost for good, and healing the network
        does not change that. `told`: the host whose side receives a reset; None if neither does."""
        for endpoint in [side for one in connections for side in (one, one.peer)]:
            endpoint.forgotten = True
            if endpoint.own[0] == told:
                endpoint.reset()

    def forgets(self, hosts: Collection[str]) -> bool:
        """Returns True if a forgotten connection between two of `hosts` is still held open by one of them."""
        return any(one.forgotten and one.own[0] in hosts and one.other[0] in hosts for one in self.endpoints)

    def process_ended(self, process: Process, *, politely: bool) -> None:
        """Closes all connections and listeners of a process that has ended. `politely`: see `Endpoint.leave`."""
        for endpoint in [one for one in self.endpoints if one.process is process]:
            del self.endpoints[endpoint]
            endpoint.leave(politely=politely)
        for address, server in list(self.listeners.items()):
            if server.process is process:
                del self.listeners[address]
