"""The transport's contract with the driver and the forwarder, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cluster.peer.transport import BULK, CONTROL, Membership, PeerTransport
from cluster.peer.transport_options import FrameHandlers, PeerLevels
from cluster.peer.wire import encode_message, pack
from cluster.runtime.peer_frames import Kind
from raftlog.frame import genesis_entry
from raftlog.messages import AppendEntries, Heartbeat, Message
from raftlog.types import EntryId, NodeId
from raftmq.local.process import free_base_port
from tests.support.rows import each_row
from tests.support.wait_until import PATIENCE_S, until

GROUP = 1
IDS = (NodeId(1), NodeId(2), NodeId(3))
UUIDS = {node_id: f"uuid-{node_id}" for node_id in IDS}


class Peer:
    """A transport and what it reported."""

    def __init__(self, transport: PeerTransport, announced: dict[NodeId, int] | None = None) -> None:
        self.transport = transport
        self.announced = announced
        """The levels that the others have told it."""
        self.messages: list[Message] = []
        self.closed: list[NodeId] = []
        self.lost: list[NodeId] = []
        self.frames: list[tuple[NodeId, int, list[Any], bytes]] = []

    async def start(self) -> None:
        handlers = FrameHandlers(self.messages.append, self.closed.append, self._on_frame, frames_lost=self.lost.append)
        await self.transport.start(handlers)

    def _on_frame(self, peer: NodeId, kind: int, header: list[Any], payload: bytes) -> None:
        self.frames.append((peer, kind, header, payload))


def membership(node_id: NodeId, **changes: Any) -> Membership:
    return Membership("cluster", GROUP, node_id, UUIDS[node_id], UUIDS)._replace(**changes)


def tried(addresses: dict[NodeId, tuple[str, int]]) -> dict[NodeId, tuple[tuple[str, int], ...]]:
    return {node: (address,) for node, address in addresses.items()}


def heartbeat(sender: int, receiver: int, context: int = 0) -> Heartbeat:
    return Heartbeat(NodeId(sender), NodeId(receiver), 1, 0, context)


@pytest.fixture
async def peers() -> AsyncIterator[dict[int, Peer]]:
    """Three of them, connected."""
    base = free_base_port(4)
    addresses = {node_id: ("127.0.0.1", base + node_id) for node_id in IDS}
    made: dict[int, Peer] = {}
    for one in IDS:
        told: dict[NodeId, int] = {}
        levels = PeerLevels(10 + one, told)
        made[one] = Peer(PeerTransport(membership(one), tried(addresses), addresses[one], levels=levels), told)
    for peer in made.values():
        await peer.start()
    pairs = [(a, b) for a in IDS for b in IDS if a != b]
    await until(lambda: all(made[a].transport.connected(b) for a, b in pairs))
    for a, b in pairs:  # the control connection comes up on its own
        await until(lambda a=a, b=b: arrives(made, a, b))  # type: ignore[misc]
    for peer in made.values():
        peer.messages.clear()
        peer.closed.clear()
        peer.lost.clear()
    yield made
    for peer in made.values():
        await peer.transport.close()


def arrives(peers: dict[int, Peer], a: int, b: int) -> bool:
    if any(message.from_id == a for message in peers[b].messages):
        return True
    peers[a].transport.send([heartbeat(a, b)])
    return False


async def test_peers_know_which_commands_each_other_can_apply(peers: dict[int, Peer]) -> None:
    assert {a: peers[a].announced for a in IDS} == {1: {2: 12, 3: 13}, 2: {1: 11, 3: 13}, 3: {1: 11, 2: 12}}


async def test_messages_arrive_in_order_per_channel(peers: dict[int, Peer]) -> None:
    await asyncio.sleep(0.05)
    peers[2].messages.clear()
    entry = genesis_entry(b"payload" * 1000, timestamp_ms=1, group_id=GROUP)
    appends = [AppendEntries(NodeId(1), NodeId(2), at, EntryId(0, 0), 0, (entry,)) for at in range(20)]
    beats = [heartbeat(1, 2, context=1000 + at) for at in range(20)]
    mixed: list[Message] = [message for pair in zip(appends, beats, strict=True) for message in pair]
    peers[1].transport.send(mixed)
    await until(lambda: len(peers[2].messages) >= 40)
    assert [message for message in peers[2].messages if isinstance(message, AppendEntries)] == appends
    assert [message for message in peers[2].messages if message in beats] == beats


async def test_one_call_may_address_many(peers: dict[int, Peer]) -> None:
    peers[1].transport.send([heartbeat(1, 2, 77), heartbeat(1, 3, 78)])
    await until(lambda: heartbeat(1, 2, 77) in peers[2].messages and heartbeat(1, 3, 78) in peers[3].messages)


async def test_forwarded_frames_arrive_as_they_were(peers: dict[int, Peer]) -> None:
    header = [5, "10.0.0.9", 4000, "broker", [bytes(16), 1, 1]]
    assert peers[1].transport.send_frame(NodeId(2), Kind.FORWARD, header, b"request" * 10_000)
    assert peers[2].transport.send_frame(NodeId(1), Kind.FORWARD_REPLY, [5, True], b"")
    await until(lambda: peers[2].frames and peers[1].frames)
    assert peers[2].frames == [(1, Kind.FORWARD, header, b"request" * 10_000)]
    assert peers[1].frames == [(2, Kind.FORWARD_REPLY, [5, True], b"")]


async def test_a_bulk_connection_that_closes_alone_is_news_on_both_sides(peers: dict[int, Peer]) -> None:
    """What was sent over it, or waits for an answer, may be lost; the peer lives, so nobody campaigns."""
    one, two = peers[1], peers[2]
    one.transport.links[NodeId(2), BULK].abort()
    await until(lambda: one.lost and two.lost)
    assert (one.lost, two.lost) == ([2], [1])
    await until(lambda: one.transport.connected(NodeId(2)))
    assert one.closed == two.closed == peers[3].lost == []


async def test_a_peer_that_closes_is_news_and_cannot_be_reached(peers: dict[int, Peer]) -> None:
    await peers[3].transport.close()
    await until(lambda: 3 in peers[1].closed and 3 in peers[2].closed)
    await until(lambda: not peers[1].transport.connected(NodeId(3)))
    assert not peers[1].transport.send_frame(NodeId(3), Kind.FORWARD, [1], b"")
    dropped = peers[1].transport.dropped
    peers[1].transport.send([heartbeat(1, 3)])
    assert peers[1].transport.dropped == dropped + 1
    peers[1].transport.send([heartbeat(1, 2, 99)])
    await until(lambda: heartbeat(1, 2, 99) in peers[2].messages)
    assert not peers[3].closed, "who closes itself is not told"


async def dial(port: int, *frames: bytes) -> bytes:
    """Everything a peer port answers until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"".join(frames))
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await reader.read()
            except ConnectionError:
                return b""
    finally:
        writer.close()


@pytest.fixture
async def listening() -> AsyncIterator[tuple[Peer, int]]:
    port = free_base_port(1)
    peer = Peer(PeerTransport(membership(NodeId(1)), {NodeId(1): (("127.0.0.1", port),)}, ("127.0.0.1", port)))
    await peer.start()
    yield peer, port
    await peer.transport.close()


GOOD = ["cluster", GROUP, 2, "uuid-2", 1, CONTROL]


@each_row(
    ("at", "value", "reason"),
    [
        (0, "other", "belongs to cluster other"),
        (1, 9, "group 9"),
        (2, 4, "node 4 is no member"),
        (2, [], "is no member"),
        (3, "uuid-9", "comes with another disk"),
        (4, 3, "it looks for node 3 at this address, which is node 1"),
        (5, "fast", "unknown channel 'fast'"),
        (0, "x" * 900, "belongs to cluster xxx"),
    ],
)
async def test_a_wrong_handshake_is_refused_with_the_reason(
    listening: tuple[Peer, int], at: int, value: Any, reason: str
) -> None:
    peer, port = listening
    hello = [*GOOD[:at], value, *GOOD[at + 1 :]]
    answer = await dial(port, pack(Kind.HELLO, hello), pack(Kind.HEARTBEAT, list(heartbeat(2, 1))))
    assert reason.encode() in answer
    assert not peer.messages
    assert not peer.closed, "a stranger's connection says nothing about a member"


@each_row(
    "frames",
    [
        [pack(Kind.HEARTBEAT, list(heartbeat(2, 1)))],
        [pack(Kind.HELLO, GOOD[:5])],
        [pack(Kind.HELLO, GOOD), pack(Kind.HEARTBEAT, list(heartbeat(3, 1)))],
        [pack(Kind.HELLO, GOOD), pack(Kind.HEARTBEAT, list(heartbeat(2, 3)))],
        [pack(Kind.HELLO, GOOD), pack(Kind.HEARTBEAT, [2, 1, "one", 0, 0])],
        [pack(Kind.HELLO, GOOD), pack(Kind.HELLO, GOOD)],
        [b"\xff\xff\xff\xff"],
    ],
    ids=["no handshake", "short handshake", "another's message", "for another", "no numbers", "twice", "length"],
)
async def test_bad_frames_close_the_connection(listening: tuple[Peer, int], frames: list[bytes]) -> None:
    peer, port = listening
    assert await dial(port, *frames) == b""
    assert not peer.messages


@pytest.mark.parametrize("turns", range(5))
async def test_what_is_accepted_while_it_closes_is_closed_too(listening: tuple[Peer, int], turns: int) -> None:
    """However far the loop has come with it: it may have been accepted, and its protocol not yet heard of it."""
    peer, port = listening
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as stranger:
        for _ in range(turns):
            await asyncio.sleep(0)
        await peer.transport.close()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not peer.transport.inlets
        stranger.setblocking(False)
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""


async def test_what_follows_the_handshake_at_once_is_taken(listening: tuple[Peer, int]) -> None:
    """A leader writes its handshake and a large append back to back; one read may hold both, or cut anywhere."""
    peer, port = listening
    entry = genesis_entry(bytes(100_000), timestamp_ms=1, group_id=GROUP)
    append = AppendEntries(NodeId(2), NodeId(1), 1, EntryId(0, 0), 0, (entry,))
    messages = [*encode_message(append), *encode_message(heartbeat(2, 1))]
    stream = b"".join([pack(Kind.HELLO, [*GOOD[:5], BULK]), *messages])
    for at, cut in enumerate((len(stream), 3, 10, 100), 1):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(stream[:cut])
        await asyncio.sleep(0.01)
        writer.write(stream[cut:])
        await until(lambda at=at: len(peer.messages) >= 2 * at)  # type: ignore[misc]
        assert peer.messages[-2:] == [append, heartbeat(2, 1)]
        writer.close()


@pytest.mark.parametrize("length", [1025, 1 << 20, (1 << 31) - 1])
async def test_a_stranger_cannot_make_the_node_wait_for_a_large_frame(listening: tuple[Peer, int], length: int) -> None:
    _, port = listening
    assert await dial(port, length.to_bytes(4, "big")) == b""
