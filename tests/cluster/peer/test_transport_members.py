"""Members come and go while the connections are up."""

from __future__ import annotations

from cluster.peer.allowed_peers import REMOVED, Addresses, HostAndPort, Membership, Refusal, RemovedMember
from cluster.peer.transport import BULK, CONTROL, PeerTransport
from cluster.peer.transport_options import FrameHandlers, HeartbeatNet
from raftlog.messages import Heartbeat, Message
from raftlog.types import NodeId
from raftmq.local.process import free_base_port
from tests.support.wait_until import until

ONE, TWO, FOUR = NodeId(1), NodeId(2), NodeId(4)
UUIDS = {ONE: "u1", TWO: "u2", FOUR: "u4"}


def membership(node: NodeId, *members: NodeId, removed: dict[NodeId, RemovedMember] | None = None) -> Membership:
    return Membership("c", 1, node, UUIDS[node], {each: UUIDS[each] for each in members}, removed or {})


class Peer:
    def __init__(self, transport: PeerTransport) -> None:
        self.transport = transport
        self.heard: set[int] = set()
        self.refusals: list[tuple[NodeId, Refusal]] = []

    async def start(self) -> None:
        refused = lambda peer, refusal: self.refusals.append((peer, refusal))  # noqa: E731
        await self.transport.start(FrameHandlers(self._on_message, lambda _: None, lambda *_: None, refused))

    def _on_message(self, message: Message) -> None:
        self.heard.add(message.from_id)


def says(peers: dict[NodeId, Peer], a: NodeId, b: NodeId) -> bool:
    """Sends until it arrives: a connection comes up in its own time."""
    if a in peers[b].heard:
        return True
    peers[a].transport.send([Heartbeat(a, b, 1, 0, 0)])
    return False


def tcp(addresses: dict[NodeId, HostAndPort], members: dict[NodeId, tuple[NodeId, ...]]) -> dict[NodeId, Peer]:
    return {
        node: Peer(
            PeerTransport(
                membership(node, *known),
                {each: (addresses[each],) for each in known},
                addresses[node],
                advertised=addresses[node],
            )
        )
        for node, known in members.items()
    }


def links(peer: Peer) -> set[tuple[NodeId, str]]:
    """(peer, channel) of each connection that it dialled over TCP."""
    return set(peer.transport.links)


async def close(peers: dict[NodeId, Peer]) -> None:
    for peer in peers.values():
        await peer.transport.close()


def tried(addresses: dict[NodeId, HostAndPort]) -> Addresses:
    return {node: (address,) for node, address in addresses.items()}


def some_addresses() -> dict[NodeId, HostAndPort]:
    base = free_base_port(5)
    return {node: ("127.0.0.1", base + node) for node in (ONE, TWO, FOUR)}


async def test_a_network_of_their_own_carries_heartbeats_and_nothing_else() -> None:
    """The peer ports are where no other node is; only what the bulk connection carries would go there."""
    peer_ports, heartbeat_ports = some_addresses(), some_addresses()
    nets = {
        node: HeartbeatNet(heartbeat_ports[node], {each: heartbeat_ports[each] for each in (ONE, TWO) if each != node})
        for node in (ONE, TWO)
    }
    elsewhere = {node: (host, port + 1000) for node, (host, port) in peer_ports.items()}
    peers = {
        node: Peer(PeerTransport(membership(node, ONE, TWO), tried(elsewhere), peer_ports[node], heartbeats=nets[node]))
        for node in (ONE, TWO)
    }
    for peer in peers.values():
        await peer.start()
    try:
        await until(lambda: says(peers, ONE, TWO) and says(peers, TWO, ONE))
        assert all((to, CONTROL) in links(peers[node]) for node, to in ((ONE, TWO), (TWO, ONE)))
        assert not any(channel == BULK for node in peers for _, channel in links(peers[node]))
    finally:
        await close(peers)


async def test_nodes_with_large_ids_understand_each_other() -> None:
    """Ids are compared by value: only small integers are one object each."""
    one, two = NodeId(60001), NodeId(60002)
    uuids = {one: "u1", two: "u2"}
    base = free_base_port(2)
    addresses = {one: ("127.0.0.1", base), two: ("127.0.0.1", base + 1)}
    members = {node: Membership("c", 1, node, uuids[node], uuids) for node in uuids}
    peers = {node: Peer(PeerTransport(members[node], tried(addresses), addresses[node])) for node in uuids}
    for peer in peers.values():
        await peer.start()
    try:
        await until(lambda: says(peers, one, two) and says(peers, two, one))
        assert not any(peer.refusals for peer in peers.values())
    finally:
        await close(peers)


async def test_a_new_member_is_dialled_and_one_that_left_is_told_so() -> None:
    addresses = some_addresses()
    peers = tcp(addresses, {ONE: (ONE, TWO), TWO: (ONE, TWO), FOUR: (ONE, TWO, FOUR)})
    for peer in peers.values():
        await peer.start()
    try:
        await until(lambda: says(peers, FOUR, ONE))
        peers[ONE].transport.set_members(membership(ONE, ONE, TWO, FOUR), tried(addresses))
        await until(lambda: says(peers, ONE, FOUR) and says(peers, ONE, TWO))
        removed = {TWO: RemovedMember("u2", 90)}
        peers[ONE].transport.set_members(membership(ONE, ONE, FOUR, removed=removed), tried(addresses))
        await until(lambda: peers[TWO].refusals)
        assert all(refusal.kind == REMOVED and refusal.since == 90 for _, refusal in peers[TWO].refusals)
        await until(lambda: not peers[ONE].transport.connected(TWO))
        peers[ONE].heard.clear()
        peers[FOUR].transport.send([Heartbeat(FOUR, ONE, 1, 0, 0)])
        await until(lambda: FOUR in peers[ONE].heard)
        assert not peers[FOUR].refusals
    finally:
        await close(peers)


async def test_who_missed_that_a_node_joined_listens_to_it_and_answers() -> None:
    """Node 2 was away: node 4 leads now, and must be able to bring it up to date."""
    addresses = some_addresses()
    peers = tcp(addresses, {TWO: (TWO,), FOUR: (TWO, FOUR)})
    for peer in peers.values():
        await peer.start()
    try:
        await until(lambda: says(peers, FOUR, TWO) and says(peers, TWO, FOUR))
        await peers[FOUR].transport.close()
        dialled = peers[TWO].transport
        await until(lambda: dialled.roster.peers() == [])
    finally:
        await close(peers)


async def test_who_speaks_is_answered_also_when_the_entry_that_made_it_a_member_is_truncated() -> None:
    addresses = some_addresses()
    peers = tcp(addresses, {ONE: (ONE, TWO, FOUR), FOUR: (ONE, TWO, FOUR)})
    for peer in peers.values():
        await peer.start()
    try:
        await until(lambda: says(peers, FOUR, ONE) and says(peers, ONE, FOUR))
        peers[ONE].transport.set_members(membership(ONE, ONE, TWO), {ONE: (addresses[ONE],), TWO: (addresses[TWO],)})
        peers[FOUR].heard.clear()
        await until(lambda: says(peers, ONE, FOUR))
        assert not peers[FOUR].refusals
        removed = {FOUR: RemovedMember("u4", 90)}
        peers[ONE].transport.set_members(membership(ONE, ONE, TWO, removed=removed), tried(addresses))
        await until(lambda: peers[FOUR].refusals and not peers[ONE].transport.connected(FOUR))
    finally:
        await close(peers)


async def test_a_member_that_moved_is_dialled_at_its_new_address() -> None:
    addresses = some_addresses()
    wrong: HostAndPort = ("127.0.0.1", addresses[TWO][1] + 1)
    peers = tcp(addresses, {ONE: (ONE, TWO), TWO: (ONE, TWO)})
    peers[ONE].transport.set_members(membership(ONE, ONE, TWO), {TWO: (wrong,)})
    for peer in peers.values():
        await peer.start()
    try:
        await until(lambda: says(peers, TWO, ONE))
        assert not peers[ONE].transport.connected(TWO)
        peers[ONE].transport.set_members(membership(ONE, ONE, TWO), {TWO: (wrong, addresses[TWO])})
        await until(lambda: says(peers, ONE, TWO))
        peers[ONE].transport.set_members(membership(ONE, ONE, TWO), {TWO: (wrong,)})
        await until(lambda: not peers[ONE].transport.connected(TWO))
    finally:
        await close(peers)
