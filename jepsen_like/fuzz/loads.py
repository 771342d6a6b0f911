"""The load on one connection to a port: what is sent there, hostile or harmless, and how much of it.

A harmless load sends the same kinds of requests on as many connections, over TLS and in plain text, with nothing wrong
in them. It shows the cost of the rate alone.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import NamedTuple

from cluster.config.local_layout import NodeRecord
from jepsen_like.fuzz import http, peer_frames, remoting, tls
from jepsen_like.fuzz.guard import Guard
from jepsen_like.fuzz.guest_handshake import Greeting
from jepsen_like.fuzz.shot import Port, Shot
from jepsen_like.fuzz.shot_connections import HttpLane, PeerLane, RemotingLane
from jepsen_like.fuzz.tls import TlsLane

BATCH = {Port.REMOTING: 20, Port.HTTP: 10, Port.PEER: 20, Port.TLS: 10}
"""The number of shots that one connection sends at once, or one after the other."""
LANES = {Port.REMOTING: 4, Port.HTTP: 3, Port.PEER: 2, Port.TLS: 4}
"""The number of connections to each node."""
SHARE = {Port.REMOTING: 0.8, Port.HTTP: 0.06, Port.PEER: 0.12, Port.TLS: 0.02}
"""The share of the shots of a run that a port gets."""
TLS_PART = 6
"""If all ports get the same number of shots, one shot of Port.TLS is sent for this many of each other port."""
_LATE_S = 0.5
"""The most seconds of delay that a pace makes up for. If shots are later than that, the rest of the delay stays."""


AnyLane = RemotingLane | HttpLane | PeerLane | TlsLane
DrawShots = Callable[[], list[Shot]]


class Draws(NamedTuple):
    """Functions that draw the shots of one lane."""

    batch: DrawShots
    alone: DrawShots
    """Draws shots that each get a connection of their own. The hostile ones are bytes that are no request."""


class LaneLoad(NamedTuple):
    """One lane to a port of a node, and what is sent on it."""

    node: int
    port: Port
    lane: AnyLane
    hostile: Draws
    harmless: Draws
    rng: random.Random


class Ground(NamedTuple):
    """The nodes' side of a run: all that lanes and draws need to know of the cluster."""

    guard: Guard | None
    greetings: dict[int, Greeting]
    """Node -> the guest that is introduced to it."""
    pki: tls.Pki
    document: dict[str, object]
    """The OpenAPI document."""
    term: int


class Pace:
    """Spreads shots evenly over time."""

    def __init__(self) -> None:
        self._due_s = 0.0

    async def wait(self, count: int, rate: float) -> None:
        """Returns when `count` more shots are due at `rate` shots per second; at once for a rate of 0."""
        if rate:
            now_s = asyncio.get_running_loop().time()
            self._due_s = max(self._due_s, now_s - _LATE_S) + count / rate
            await asyncio.sleep(max(0.0, self._due_s - now_s))


def handlers_of(port: Port, document: dict[str, object]) -> tuple[str, ...]:
    """Returns the names of all handlers of a port that must be reached."""
    return {
        Port.REMOTING: remoting.HANDLERS,
        Port.HTTP: http.HttpRequests(document, random.Random(0)).handlers,
        Port.PEER: peer_frames.HANDLERS,
        Port.TLS: tls.HANDLERS,
    }[port]


def loads_of(port: Port, node: NodeRecord, ground: Ground, seed: int) -> list[LaneLoad]:
    """Returns the loads on a port of a node; those of the same seed draw the same."""
    loads = []
    for number in range(LANES[port]):
        rng = random.Random(f"{seed}-{port.value}-{node.id}-{number}")
        lane = lane_of(port, node, ground, number)
        harmless = _draws(port, node.id, ground, random.Random(0), is_good=True)
        loads.append(LaneLoad(node.id, port, lane, _draws(port, node.id, ground, rng), harmless, rng))
    return loads


def lane_of(port: Port, node: NodeRecord, ground: Ground, number: int = 0) -> AnyLane:
    """Returns a lane to that port of the node. `number`: for the remoting protocol, lanes with odd numbers use the
    broker's port, the others the name server's.
    """
    if port is Port.TLS:
        return TlsLane(node, ground.pki.context)
    if port is Port.REMOTING:
        return RemotingLane(node.broker_port if number % 2 else node.namesrv_port, ground.pki.context)
    if port is Port.HTTP:
        return HttpLane(node.admin_port, ground.pki.context)
    greeting = ground.greetings[node.id]
    return PeerLane(node.peer_port, greeting.dial, ground.pki.guest(greeting.cluster, greeting.uuid))


def _draws(port: Port, node: int, ground: Ground, rng: random.Random, *, is_good: bool = False) -> Draws:
    count = BATCH[port]
    if port is Port.REMOTING:
        requests = remoting.Requests(rng, ground.guard, is_good=is_good)
        raw = requests.draw if is_good else requests.raw
        return Draws(lambda: requests.batch(count), lambda: [raw() for _ in range(3)])
    if port is Port.HTTP:
        operations = http.HttpRequests(ground.document, rng, ground.guard, is_good=is_good)
        return Draws(lambda: [operations.draw() for _ in range(count)], lambda: [_http_alone(operations, is_good)])
    if port is Port.TLS:
        plans, handler = tls.Plans(rng), tls.INSIDE if is_good else ""
        return Draws(lambda: [plans.draw(handler) for _ in range(count)], lambda: [plans.draw(tls.INSIDE)])
    me = ground.greetings[node]
    frames = peer_frames.Frames(rng, remoting.Requests(rng), me.me, node, ground.term, me.hello)
    if is_good:
        return Draws(lambda: [frames.ping() for _ in range(count)], lambda: [frames.hello(), frames.hello()])
    return Draws(lambda: [frames.draw() for _ in range(count)], lambda: [frames.stranger(), frames.raw()])


def _http_alone(operations: http.HttpRequests, is_good: bool) -> Shot:
    return operations.draw() if is_good else operations.raw()
