"""Half-open links over real sockets: cut by the harness's proxies without a FIN, they are given up and made anew."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from cluster.config.node_sections import HaSection
from cluster.peer.allowed_peers import Membership
from cluster.peer.link_state import LinkMetrics
from cluster.peer.links import Links
from cluster.peer.slow_leader_transfer import SlowTurns
from cluster.peer.sync_times import SyncTimes
from cluster.peer.transport import PeerTransport
from cluster.peer.transport_options import FrameHandlers, HeartbeatNet
from cluster.runtime.alarms import Alarms
from cluster.runtime.clock import SystemClock
from jepsen_like.live.subjects.proxy import Fabric
from raftlog.types import NodeId, Role
from raftmq.local.process import free_base_port
from tests.support.wait_until import until

ONE, TWO = NodeId(1), NodeId(2)
UUIDS = {ONE: "u1", TWO: "u2"}
HA = HaSection(
    send_heartbeat_interval_ms=100,
    housekeeping_interval_ms=600,
    client_heartbeat_timeout_ms=600,
    catch_up_bytes_per_second=0,
)


class Peer:
    def __init__(self, node: NodeId, other: NodeId, port: int, dials: int, heartbeats: HeartbeatNet) -> None:
        self.transport = PeerTransport(
            Membership("c", 1, node, UUIDS[node], UUIDS),
            {other: (("127.0.0.1", dials),)},
            ("127.0.0.1", port),
            heartbeats=heartbeats,
        )
        raw: Any = SimpleNamespace(role=Role.FOLLOWER, leader_id=NodeId(1), last_index=0, catch_up_waits=False)
        clock = SystemClock()
        slow = SlowTurns(raw, clock, Alarms(clock.wall_ms), lambda to: None, 1000)
        syncs = SyncTimes(NodeId(1), clock, lambda: (0, 0.0), 1000)
        self.links = Links(self.transport, raw, clock, HA, LinkMetrics(), lambda: None, slow, syncs)

    async def start(self) -> None:
        frame = lambda peer, kind, header, payload: self.links.on_frame(peer, kind, header)  # noqa: E731
        await self.transport.start(FrameHandlers(lambda _: None, lambda _: None, frame))
        self._ticking = asyncio.create_task(self._tick())

    async def _tick(self) -> None:
        while True:
            self.links.tick(SystemClock().monotonic_ms())
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        self._ticking.cancel()
        await self.transport.close()

    @property
    def state(self) -> str:
        view = self.links.view()
        return view[0].state if view else ""

    @property
    def confirmed(self) -> bool:
        view = self.links.view()
        return bool(view) and view[0].round_trip_ms is not None and view[0].silent_ms is not None


async def test_a_half_open_link_is_noticed_on_both_sides_and_made_anew() -> None:
    base = free_base_port(2)
    fabric = Fabric({1: base, 2: base + 1})
    one = Peer(ONE, TWO, base, fabric.ports[1, 2], HeartbeatNet())
    two = Peer(TWO, ONE, base + 1, fabric.ports[2, 1], HeartbeatNet())
    try:
        await one.start()
        await two.start()
        await until(lambda: one.confirmed and two.confirmed)
        assert two.state == "TRANSFER"
        links, inlets = set(one.transport.links.values()), set(one.transport.inlets)
        fabric.cut([(1, 2), (2, 1)])
        await until(lambda: not links & set(one.transport.links.values()))
        await until(lambda: not inlets & set(one.transport.inlets))
        await until(lambda: one.state == "READY")  # the proxy takes connections, and nothing comes through
        fabric.heal()
        await until(lambda: two.state == "TRANSFER" and one.state == "SUSPEND")
        assert one.links.view()[0].reason == "neither of the two leads"
    finally:
        await one.close()
        await two.close()
        fabric.close()


async def test_heartbeats_have_a_network_of_their_own_and_fall_back_to_the_peer_port() -> None:
    base = free_base_port(4)
    fabric = Fabric({1: base + 2, 2: base + 3})
    to_two, to_one = ("127.0.0.1", fabric.ports[1, 2]), ("127.0.0.1", fabric.ports[2, 1])
    one = Peer(ONE, TWO, base, base + 1, HeartbeatNet(("127.0.0.1", base + 2), {TWO: to_two}))
    two = Peer(TWO, ONE, base + 1, base, HeartbeatNet(("127.0.0.1", base + 3), {ONE: to_one}))
    try:
        await one.start()
        await two.start()
        await until(lambda: one.confirmed and two.confirmed)
        await until(lambda: _port(one.transport.links.get((TWO, "control"))) == fabric.ports[1, 2])
        assert _port(one.transport.links[TWO, "bulk"]) == base + 1
        bulk = one.transport.links[TWO, "bulk"]
        fabric.close()  # that network is gone: connections end, new ones are refused
        await until(lambda: _port(one.transport.links.get((TWO, "control"))) == base + 1)
        assert one.transport.links[TWO, "bulk"] is bulk, "what goes over the peer port has not noticed"
    finally:
        await one.close()
        await two.close()
        fabric.close()


def _port(link: Any) -> int | None:
    remote = link.transport.get_extra_info("peername") if link is not None and link.transport is not None else None
    return remote[1] if remote else None
