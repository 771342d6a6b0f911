"""A peer that lost power says nothing to the connections it had: its next start tells that they lead nowhere."""

from __future__ import annotations

import asyncio
import contextlib

from cluster.peer.transport import BULK, CONTROL, Membership, PeerTransport
from cluster.peer.transport_options import FrameHandlers
from cluster.peer.wire import pack
from cluster.runtime.peer_frames import Kind
from raftlog.types import NodeId
from raftmq.local.process import free_base_port
from tests.support.plain_server import serving
from tests.support.wait_until import PATIENCE_S, until

UUIDS = {NodeId(1): "uuid-1", NodeId(2): "uuid-2"}


def hello(channel: str, incarnation: int) -> bytes:
    return pack(Kind.HELLO, ["cluster", 1, 2, UUIDS[NodeId(2)], 1, channel, incarnation])


async def test_links_to_the_former_life_of_a_peer_are_dropped_and_dialled_anew() -> None:
    base = free_base_port(2)
    dialled: list[asyncio.StreamWriter] = []

    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        dialled.append(writer)

    node = PeerTransport(
        Membership("cluster", 1, NodeId(1), UUIDS[NodeId(1)], UUIDS),
        {NodeId(2): (("127.0.0.1", base + 1),)},
        ("127.0.0.1", base),
    )
    async with serving(silent, base + 1):
        await node.start(FrameHandlers(lambda _: None, lambda _: None, lambda *_: None))
        _, says = await asyncio.open_connection("127.0.0.1", base)
        _, later = await asyncio.open_connection("127.0.0.1", base)
        try:
            await until(lambda: len(node.links) == len(dialled) == 2)
            says.write(hello(CONTROL, 7))
            await until(lambda: len(node.inlets) == 2 and node.known_incarnation(NodeId(2)) == 7)
            first = set(node.links.values())
            assert len(first) == len(dialled) == 2, "who says hello for the first time loses nothing"
            assert not any(link.transport is None or link.transport.is_closing() for link in first)
            later.write(hello(BULK, 8))
            await until(lambda: len(node.links) == 2 and not first & set(node.links.values()))
            await until(lambda: len(dialled) == 4)  # the peer may accept a little later than the node has connected
        finally:
            says.close()
            later.close()
            await node.close()


async def test_a_new_bulk_connection_of_a_peer_ends_the_older_one() -> None:
    """Frames that still lie in the older one would come behind those that the peer has sent since."""
    base = free_base_port(1)
    heard: list[bytes] = []
    node = PeerTransport(Membership("cluster", 1, NodeId(1), UUIDS[NodeId(1)], UUIDS), {}, ("127.0.0.1", base))
    await node.start(FrameHandlers(lambda _: None, lambda _: None, lambda *frame: heard.append(frame[3])))
    hears, first = await asyncio.open_connection("127.0.0.1", base)
    control_hears, control = await asyncio.open_connection("127.0.0.1", base)
    try:
        first.write(hello(BULK, 7) + pack(Kind.FORWARD, [], 1) + b"1")
        control.write(hello(CONTROL, 7))
        await until(lambda: len([inlet for inlet in node.inlets if inlet.peer]) == 2 and heard == [b"1"])
        _, second = await asyncio.open_connection("127.0.0.1", base)
        second.write(hello(BULK, 7) + pack(Kind.FORWARD, [], 1) + b"2")
        await until(lambda: len(heard) == 2)
        with contextlib.suppress(ConnectionResetError):
            async with asyncio.timeout(PATIENCE_S):
                assert await hears.read() == b""
        assert len(node.inlets) == 2
        assert not control_hears.at_eof(), "the control connection stays"
        second.close()
    finally:
        for writer in (first, control):
            writer.close()
        await node.close()


def test_two_runs_of_a_node_number_their_requests_differently() -> None:
    """An answer to the former run is nobody's; every number fits the frames, below 2^63."""
    who = Membership("cluster", 1, NodeId(1), UUIDS[NodeId(1)], UUIDS)
    numbers = [PeerTransport(who, {}, ("127.0.0.1", 0), run).request_ids() for run in (7, 8, 2**64 - 1)]
    firsts = [[next(ids) for _ in range(3)] for ids in numbers]
    assert len({number for run in firsts for number in run}) == 9
    assert all(0 < number < 1 << 63 for run in firsts for number in run)
