"""TCP in memory: byte streams between hosts, with latency, cuts in one direction, slow links, resets and dead hosts.

A cut loses packets, and TCP hides that: bytes wait and arrive after the heal, late; a dial hangs. A killed process's
kernel says goodbye (FIN), a machine without power says nothing until it is back and answers with a reset. Bytes of one
connection never overtake each other. Who pauses reading takes nothing, and does not notice the end either: the bytes
wait with their writer, which is told to pause when too many do. Not modelled: half-closing.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple
from zlib import crc32

from jepsen_like.sim.machines.loop import PROCESS, Process, SimLoop

SOCKET_BUFFER = 256 << 10
"""Bytes that the kernels hold for a writer before its own buffer grows."""
HIGH_WATER, LOW_WATER = 64 << 10, 16 << 10
"""Bytes in a writer's own buffer from which on, and down to which, it is told to pause: asyncio's."""
SYN_RETRIES_S = (1.0, 2.0, 4.0, 8.0, 16.0)
FIRST_PORT = 40001
"""First port of the sides that dial."""
Edge = tuple[str, str]
"""(from host, to host)"""
Address = tuple[str, int]


class EdgeConditions:
    """The conditions of each directed edge of the network."""

    def __init__(self, rng: random.Random, latency_s: tuple[float, float], split: float) -> None:
        """`split`: how often a write arrives in two pieces."""
        self.rng = rng
        self.latency_s = latency_s
        self.split = split
        self.cuts: set[Edge] = set()
        self.slow: dict[Edge, float] = {}
        """Edge -> extra seconds."""
        self.down: set[str] = set()
        """Hosts without power."""

    def blocked(self, edge: Edge) -> bool:
        """True if packets are lost now."""
        return edge in self.cuts or (bool(self.down) and (edge[0] in self.down or edge[1] in self.down))

    def delay_s(self, edge: Edge) -> float:
        """Draws the delay of one packet, in seconds."""
        return self.rng.uniform(*self.latency_s) + self.slow.get(edge, 0.0)


class _Segment(NamedTuple):
    data: bytes
    end: str
    """"" for data; "fin" or "rst" ends the connection."""
    due: float


class Endpoint(asyncio.Transport):
    """One side of a connection."""

    polled = True
    """Its loop hears of it by polling (`SimLoop.end_stall`)."""

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
        """True once this side has closed it."""
        self.ended = False
        """No more bytes in or out; connection_lost was or is about to be called."""
        self.dead = False
        """True if its process is gone."""
        self._moving = False
        self._due = 0.0
        self.forgotten = False
        """True if what is sent on this connection is lost."""
        self.holds = False
        """True if this side has paused reading."""
        self._unread: list[bytes] = []
        """Bytes that arrived in the moment in which it paused."""
        self._high, self._low = HIGH_WATER, LOW_WATER
        self._told_to_pause = False

    # --- Transport ---------------------------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": self.other, "sockname": self.own}.get(name, default)

    def is_closing(self) -> bool:
        return self.closing or self.ended

    def can_write_eof(self) -> bool:
        """Half-closing is not modelled."""
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
        """The other side is gone, or a box in the middle has forgotten the connection."""
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
        """Tells the writer to pause, or to go on, as its buffer grows and shrinks."""
        size = self.get_write_buffer_size()
        if not self._told_to_pause and size > self._high:
            self._told_to_pause = True
            self._tell("pause_writing")
        elif self._told_to_pause and size <= self._low:
            self._told_to_pause = False
            self._tell("resume_writing")

    def _tell(self, what: str) -> None:
        """Protocols that do not care are left alone: what they are told changes nothing."""
        if getattr(type(self.protocol), what) is not _PLAIN[what]:
            self.network.loop.call_soon(self._tell_now, what, context=self.process.context)

    def _tell_now(self, what: str) -> None:
        if not (self.ended or self.dead):
            getattr(self.protocol, what)()

    def write(self, data: Any) -> None:
        if self.closing or self.ended or not data:
            return
        data = bytes(data)
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
        """Sees to it that the first waiting segment travels."""
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
            self.out.clear()  # and still counts as unacknowledged
            return
        if self.peer.holds and not (self.peer.dead or self.peer.ended):
            return  # it moves on when the reader does
        segment = self.out.popleft()
        self.buffered -= len(segment.data)
        self._press()
        self.network.note(self, segment.data)
        self.peer.receive(segment)
        self.move()

    def receive(self, segment: _Segment) -> None:
        """A segment came to this side."""
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
            self.protocol.data_received(data)

    def _lose(self, error: Exception | None) -> None:
        if self.ended:
            return
        self.ended = True
        self.network.ended(self)
        self.network.loop.call_soon(self._lost, error, context=self.process.context)

    def _lost(self, error: Exception | None) -> None:
        self.closing = True
        if self.protocol is not None:
            self.protocol.connection_lost(error)

    def reset(self) -> None:
        """A box in the middle ended the connection."""
        self.out.clear()
        self._lose(ConnectionResetError(errno.ECONNRESET, "connection reset"))

    def leave(self, *, politely: bool) -> None:
        """The process is gone: what it wrote still travels and then a FIN, or with the power everything is gone."""
        self.dead = self.ended = True
        if politely:
            self._queue(b"", "fin")
        else:
            self.out.clear()


_PLAIN = {name: getattr(asyncio.BaseProtocol, name) for name in ("pause_writing", "resume_writing")}


class Server(asyncio.AbstractServer):
    """A listening port."""

    sockets: tuple[()] = ()

    def __init__(self, network: Network, process: Process, factory: Callable[[], Any], address: Address) -> None:
        self.network, self.process, self.factory, self.address = network, process, factory, address

    def close(self) -> None:
        self.network.listeners.pop(self.address, None)

    async def wait_closed(self) -> None:
        """Returns at once: there is nothing to wait for."""

    async def start_serving(self) -> None:
        """Does nothing: it serves since it was made."""

    async def serve_forever(self) -> None:
        """Nobody calls it."""

    def get_loop(self) -> SimLoop:
        """Returns the loop of the network."""
        return self.network.loop

    def is_serving(self) -> bool:
        return self.network.listeners.get(self.address) is self


class Network:
    """All hosts, listeners and connections."""

    polled = True
    """Loops hear by polling of the connections that they accept."""

    def __init__(self, loop: SimLoop, links: EdgeConditions) -> None:
        self.loop = loop
        self.links = links
        self.listeners: dict[Address, Server] = {}
        self.endpoints: dict[Endpoint, None] = {}
        self.stalled: dict[Endpoint, None] = {}
        self.hash = 0
        """Hash of everything that arrived: when, where, what."""
        self.bytes = 0
        self.socket_buffer = SOCKET_BUFFER
        self._ports = FIRST_PORT - 1
        loop.network = self

    def note(self, sender: Endpoint, data: bytes) -> None:
        """Counts a delivery into the trace's hash."""
        self.bytes += len(data)
        self.hash = crc32(data, crc32(f"{self.loop.now:.9f} {sender.own} {sender.other}".encode(), self.hash))

    def ended(self, endpoint: Endpoint) -> None:
        """Forgets the connection, which has ended."""
        self.endpoints.pop(endpoint, None)

    def listen(self, factory: Callable[[], Any], host: str, port: int) -> Server:
        """Raises OSError if the port is taken."""
        process = PROCESS.get()
        assert process is not None, "only a process listens"
        if (host, port) in self.listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        server = self.listeners[host, port] = Server(self, process, factory, (host, port))
        return server

    async def connect(self, factory: Callable[[], Any], host: str, port: int) -> tuple[Endpoint, Any]:
        """Raises ConnectionRefusedError, or TimeoutError after half a minute without an answer."""
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
        self.endpoints[near] = self.endpoints[far] = None
        near.protocol = factory()
        self.loop.call_soon(self._accept, far, server, context=server.process.context)
        near.protocol.connection_made(near)
        return near, near.protocol

    def _accept(self, endpoint: Endpoint, server: Server) -> None:
        endpoint.protocol = server.factory()
        endpoint.protocol.connection_made(endpoint)

    # --- what nemeses do ---------------------------------------------------------------------------------------------

    def cut(self, edges: list[Edge]) -> None:
        """Loses every packet on these edges from now on."""
        self.links.cuts.update(edges)

    def heal(self, edges: list[Edge] | None = None) -> None:
        """Lets packets through again (all edges without a list); what waited arrives after TCP's next retry."""
        if edges is None:
            self.links.cuts.clear()
        else:
            self.links.cuts.difference_update(edges)
        self.retry()

    def retry(self) -> None:
        """TCP sends again what was lost on edges that carry now."""
        waiting, self.stalled = self.stalled, {}
        for endpoint in waiting:
            if self.links.blocked(endpoint.edge):
                self.stalled[endpoint] = None
            else:
                self.loop.call_outside(self.links.rng.uniform(0.0, 0.25), endpoint.move)

    def reset(self, hosts: set[str]) -> None:
        """Ends every connection between these hosts."""
        for endpoint in list(self.endpoints):
            if endpoint.own[0] in hosts and endpoint.other[0] in hosts:
                endpoint.reset()

    def dialled(self, a: str, b: str) -> list[Endpoint]:
        """The connections that stand between two hosts, each by the side that dialled it."""
        return [one for one in self.endpoints if {one.own[0], one.other[0]} == {a, b} and one.own[1] >= FIRST_PORT]

    def forget(self, connections: Iterable[Endpoint], told: str | None = None) -> None:
        """A box in the middle forgets these: what is sent there is lost, for good, and no heal mends it. `told`: the
        host whose side hears a reset."""
        for endpoint in [side for one in connections for side in (one, one.peer)]:
            endpoint.forgotten = True
            if endpoint.own[0] == told:
                endpoint.reset()

    def forgets(self, hosts: Collection[str]) -> bool:
        """True if a connection between two of `hosts` that one of them still holds has been forgotten."""
        return any(one.forgotten and one.own[0] in hosts and one.other[0] in hosts for one in self.endpoints)

    def process_ended(self, process: Process, *, politely: bool) -> None:
        """Closes what the process had open."""
        for endpoint in [one for one in self.endpoints if one.process is process]:
            del self.endpoints[endpoint]
            endpoint.leave(politely=politely)
        for address, server in list(self.listeners.items()):
            if server.process is process:
                del self.listeners[address]
