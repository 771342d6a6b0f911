"""A TCP proxy on each directed edge between nodes, which can cut, hold, delay and lose what one node sends to another.

RaftMQ's nodes send only on connections that they dialled, so the proxy that `source` dials to reach `target` carries
exactly what `source` sends to `target`. Other processes send in both directions of one connection (`duplex`): each
direction then counts as an edge of its own. Either way, cutting one edge alone is a one-way partition. The proxies need
no special rights.

A cut edge behaves like a dropped cable: bytes are accepted and held, the end of a connection is not reported, new
connections stay silent. When it heals, held bytes flow on (as TCP would retransmit them), or are lost with their
connections.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar, cast

from jepsen_like.live.subjects.joined_node_proxy import HelloRouter
from raftmq.client.loop_thread import LoopThread

HELD_BYTES_MAX = 32 << 20
"""The most bytes held per connection and direction; beyond it the sender is no longer read, as with a full socket
buffer."""
HOST = "127.0.0.1"

Pair = tuple[int, int]
"""An edge: (source, target), for what source sends to target."""
T = TypeVar("T")


class EdgeTraffic(NamedTuple):
    """The traffic of an edge so far. `taken_bytes` counts what the source sent, `passed_bytes` what arrived."""

    taken_bytes: int
    passed_bytes: int
    late_pieces: int
    """The number of pieces that were delayed on purpose."""
    connections: int


class Edge:
    """One directed edge. All its methods run on the fabric's loop."""

    def __init__(self, pair: Pair, target_port: int, rng: random.Random) -> None:
        self.pair = pair
        self.target_port = target_port
        self.is_cut = False
        self.delay_s = 0.0
        self.jitter_s = 0.0
        self.taken_bytes = 0
        self.passed_bytes = 0
        self.late_pieces = 0
        self.accepted = 0
        self.links: set[_ProxiedConnection] = set()
        self.server: asyncio.Server | None = None
        self.answers: Edge | None = None
        """The edge that carries what the target sends back on this edge's connections; None if that direction is not
        counted.
        """
        self._rng = rng

    def due_in_s(self) -> float:
        """Returns the delay of the next piece, in seconds."""
        return self.delay_s + (self._rng.uniform(0.0, self.jitter_s) if self.jitter_s else 0.0)

    def mend(self, *, reset: bool) -> None:
        """Ends the cut and the delay. `reset`: connections that were cut are aborted; otherwise they go on with the
        bytes that they held back."""
        was_cut, self.is_cut = self.is_cut, False
        self.delay_s = self.jitter_s = 0.0
        for link in list(self.links):
            if was_cut and reset:
                link.abort()
            else:
                link.go_on()


class _ProxiedConnection:
    """One connection through the proxy: the dialler's side and, once it is made, the target's side."""

    def __init__(self, edge: Edge, dialler: asyncio.Transport) -> None:
        self.edge = edge
        self.ended = False
        self.open_sides = 1
        self._connecting: asyncio.Task[None] | None = None
        self.forth = _Flow(edge, counted=True)
        self.back = _Flow(edge.answers or edge, counted=edge.answers is not None)
        self.back.attach(dialler)
        self.forth.source = dialler
        for each in self.edges:
            each.links.add(self)
        self.go_on()

    @property
    def edges(self) -> list[Edge]:
        """The edges to which this connection belongs: one, or two if the target's bytes count as traffic of an edge of
        their own.
        """
        return [self.edge] if self.edge.answers is None else [self.edge, self.edge.answers]

    def go_on(self) -> None:
        """Dials the target if that is still to be done, and passes on the bytes that may flow."""
        if not self.edge.is_cut and self._connecting is None and not self.ended:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
        self.forth.pump()
        self.back.pump()

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            transport, _ = await loop.create_connection(lambda: _Side(self, self.back), HOST, self.edge.target_port)
        except OSError:
            self.abort()  # nobody listens there: the dialler gets the same error as if it had dialled directly
            return
        if self.ended:
            transport.abort()
            return
        self.open_sides += 1
        self.back.source = transport
        self.forth.attach(transport)

    def on_side_lost(self, flow: _Flow) -> None:
        """Called when the side that feeds `flow` has ended. The connection stays until the end has been passed on to
        the other side.
        """
        self.open_sides -= 1
        flow.take(None)
        if self.open_sides == 0 and self._connecting is not None and self._connecting.done():
            self._forget()

    def _forget(self) -> None:
        self.ended = True
        for each in self.edges:
            each.links.discard(self)

    def abort(self) -> None:
        """Ends both sides at once; waiting bytes are lost."""
        self._forget()
        for flow in (self.forth, self.back):
            flow.drop()


class _Flow:
    """One direction of a proxied connection. Pieces of the stream wait in order until they are due, the edge is not cut
    and the far side is connected.
    """

    def __init__(self, edge: Edge, *, counted: bool) -> None:
        self.source: asyncio.Transport | None = None
        self._edge = edge
        self._counted = counted
        self._sink: asyncio.Transport | None = None
        self._waiting: deque[tuple[float, bytes | None]] = deque()
        self._held_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._sink_full = False
        self._reading = True

    def attach(self, sink: asyncio.Transport) -> None:
        """Called when the far side is connected."""
        self._sink = sink
        self.pump()

    def take(self, data: bytes | None) -> None:
        """Queues a piece of the stream; None is its end."""
        if data is not None:
            self._held_bytes += len(data)
            if self._counted:
                self._edge.taken_bytes += len(data)
        self._waiting.append((asyncio.get_running_loop().time() + self._edge.due_in_s(), data))
        self.pump()

    def on_sink_full(self, full: bool) -> None:
        """Called when the far side's buffer fills up or has room again."""
        self._sink_full = full
        self.pump()

    def pump(self) -> None:
        """Passes on all pieces that may go."""
        now = asyncio.get_running_loop().time()
        while self._waiting and not self._edge.is_cut and self._sink is not None and not self._sink_full:
            due, data = self._waiting[0]
            if due > now:
                if self._timer is None:
                    self._timer = asyncio.get_running_loop().call_later(due - now, self._on_timer)
                break
            self._waiting.popleft()
            if data is None:
                self._sink.close()
                continue
            if self._sink.is_closing():
                self._held_bytes -= len(data)  # the receiver is gone
                continue
            self._held_bytes -= len(data)
            if self._counted:
                self._edge.passed_bytes += len(data)
                self._edge.late_pieces += self._edge.delay_s > 0
            self._sink.write(data)
        self._throttle()

    def _on_timer(self) -> None:
        self._timer = None
        self.pump()

    def _throttle(self) -> None:
        reading = self._held_bytes < HELD_BYTES_MAX and not self._sink_full
        if reading == self._reading or self.source is None or self.source.is_closing():
            return
        self._reading = reading
        if reading:
            self.source.resume_reading()
        else:
            self.source.pause_reading()

    def drop(self) -> None:
        """Drops the waiting pieces and ends both sides of the connection."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
        for transport in (self._sink, self.source):
            if transport is not None:
                transport.abort()


class _Side(asyncio.Protocol):
    """One end of a proxied connection. The bytes that it receives feed one flow. It tells the other flow when its own
    write buffer is full.
    """

    def __init__(self, link: _ProxiedConnection | None, flow: _Flow | None, edge: Edge | None = None) -> None:
        self._link = link
        self._flow = flow
        self._edge = edge

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Creates the proxied connection if this side was accepted. A dialled side already belongs to one."""
        if self._edge is not None:
            self._edge.accepted += 1
            self._link = _ProxiedConnection(self._edge, cast(asyncio.Transport, transport))
            self._flow = self._link.forth

    def data_received(self, data: bytes) -> None:
        """Passes the bytes to the flow of this direction."""
        assert self._flow is not None
        self._flow.take(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Passes the end on, behind the data that came before it."""
        assert self._flow is not None
        assert self._link is not None
        if self._link.ended:
            return
        self._link.on_side_lost(self._flow)

    def pause_writing(self) -> None:
        """Stops reading the other side until there is room."""
        self._other().on_sink_full(True)

    def resume_writing(self) -> None:
        """Continues reading the other side."""
        self._other().on_sink_full(False)

    def _other(self) -> _Flow:
        assert self._link is not None
        return self._link.back if self._flow is self._link.forth else self._link.forth


class Fabric:
    """The proxies of all edges, on a thread of their own. Every method may be called from any thread."""

    def __init__(
        self,
        target_ports: Mapping[int, int],
        seed: int = 0,
        *,
        duplex: bool = False,
        owner: Callable[[int], int] = lambda port: -1,
    ) -> None:
        """`target_ports`: node id -> the port on which it listens for its peers. `duplex`: one connection carries what
        both of its nodes send, so its two directions belong to two edges. `owner` returns the id of the node whose
        process has a connection from a local port, -1 if none has; gates ask it about connections of TLS."""
        self._owner = owner
        self._thread = LoopThread()
        self._rng = random.Random(seed)
        self._targets = dict(target_ports)
        pairs = [(a, b) for a in sorted(target_ports) for b in sorted(target_ports) if a != b]
        self._edges = {pair: self._edge(pair) for pair in pairs}
        self.gates: dict[int, int] = {}
        """Node that joined -> the port of its gate, at which all other nodes reach it (joined_node_proxy.py)."""
        self._gates: dict[int, asyncio.Server] = {}
        if duplex:
            for (a, b), edge in self._edges.items():
                edge.answers = self._edges[b, a]
        try:
            self.ports: dict[Pair, int] = self._thread.run(self._listen(pairs))
        except BaseException:
            self._thread.close()
            raise

    def _edge(self, pair: Pair) -> Edge:
        return Edge(pair, self._targets[pair[1]], random.Random(self._rng.random()))

    def add_node(self, node: int, port: int) -> None:
        """Adds edges from and to a node that joined and listens at `port`, and a gate at which the others reach it."""
        pairs = [pair for other in sorted(self._targets) for pair in ((other, node), (node, other))]
        self._targets[node] = port
        self._thread.run(self._add(node, {pair: self._edge(pair) for pair in pairs}))

    async def _add(self, node: int, edges: dict[Pair, Edge]) -> None:
        self._edges |= edges
        self.ports |= await self._listen(edges)
        loop = asyncio.get_running_loop()
        gate = await loop.create_server(
            lambda: HelloRouter(lambda source: self._enter(source, node), self._owner), HOST, 0
        )
        self._gates[node], self.gates[node] = gate, int(gate.sockets[0].getsockname()[1])

    def _enter(self, source: int, target: int) -> Callable[[asyncio.Transport], asyncio.Protocol] | None:
        edge = self._edges.get((source, target))
        if edge is None:
            return None

        def enter(transport: asyncio.Transport) -> asyncio.Protocol:
            side = _Side(None, None, edge)
            side.connection_made(transport)
            return side

        return enter

    def remove_node(self, node: int) -> None:
        """Closes the edges and the gate of a node that left."""

        def act() -> None:
            for pair in [pair for pair in self._edges if node in pair]:
                self._close(self._edges.pop(pair))
                del self.ports[pair]
            if node in self._gates:
                self._gates.pop(node).close()
                del self.gates[node]
            self._targets.pop(node, None)

        self._on_loop(act)

    @staticmethod
    def _close(edge: Edge) -> None:
        if edge.server is not None:
            edge.server.close()
        for link in list(edge.links):
            link.abort()

    async def _listen(self, pairs: Iterable[Pair]) -> dict[Pair, int]:
        loop = asyncio.get_running_loop()
        ports = {}
        for pair, edge in [(pair, self._edges[pair]) for pair in pairs]:
            server = await loop.create_server(lambda edge=edge: _Side(None, None, edge), HOST, 0)  # type: ignore[misc]
            edge.server = server
            ports[pair] = int(server.sockets[0].getsockname()[1])
        return ports

    @property
    def pairs(self) -> list[Pair]:
        """All directed edges."""
        return list(self._edges)

    def between(self, left: Iterable[int], right: Iterable[int]) -> set[Pair]:
        """Returns the edges in both directions between two sets of nodes."""
        a, b = set(left), set(right)
        return {(x, y) for x, y in self._edges if (x in a and y in b) or (x in b and y in a)}

    def cut(self, pairs: Iterable[Pair]) -> None:
        """Cuts these edges; others stay as they are. Raises KeyError for an edge that does not exist."""
        chosen = [self._edges[pair] for pair in pairs]

        def act() -> None:
            for edge in chosen:
                edge.is_cut = True

        self._on_loop(act)

    def slow(self, pairs: Iterable[Pair], delay_s: float, jitter_s: float) -> None:
        """Delays the traffic of these edges by `delay_s` and up to `jitter_s` more, in order."""
        chosen = [self._edges[pair] for pair in pairs]

        def act() -> None:
            for edge in chosen:
                edge.delay_s, edge.jitter_s = delay_s, jitter_s

        self._on_loop(act)

    def heal(self, pairs: Iterable[Pair] | None = None, *, reset: bool = False) -> None:
        """Heals these edges (default: all); `reset` drops connections that were cut, with the bytes that they held
        back."""
        chosen = list(self._edges.values()) if pairs is None else [self._edges[pair] for pair in pairs]

        def act() -> None:
            for edge in chosen:
                edge.mend(reset=reset)

        self._on_loop(act)

    def traffic(self) -> dict[Pair, EdgeTraffic]:
        """Returns the traffic of each edge since the start."""

        def act() -> dict[Pair, EdgeTraffic]:
            return {
                pair: EdgeTraffic(edge.taken_bytes, edge.passed_bytes, edge.late_pieces, edge.accepted)
                for pair, edge in self._edges.items()
            }

        return self._on_loop(act)

    def cut_pairs(self) -> set[Pair]:
        """Returns the edges that are cut now."""
        return self._on_loop(lambda: {pair for pair, edge in self._edges.items() if edge.is_cut})

    def close(self) -> None:
        """Closes ports and connections and ends the thread; may be called again."""
        if self._thread.loop.is_closed():
            return

        def act() -> None:
            for edge in self._edges.values():
                self._close(edge)
            for gate in self._gates.values():
                gate.close()

        self._on_loop(act)
        self._thread.close()

    def _on_loop(self, act: Callable[[], T]) -> T:
        async def run() -> T:
            return act()

        return self._thread.run(run())
