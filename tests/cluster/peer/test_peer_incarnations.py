"""A peer that lost power says nothing to the connections it had: its next start tells that they lead nowhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from cluster.local_process import free_base_port
from cluster.peer.transport import BULK, CONTROL, Handlers, Membership, PeerTransport
from cluster.peer.wire import Kind, pack
from raftlog.types import NodeId

PATIENCE_S = 20.0
UUIDS = {NodeId(1): "uuid-1", NodeId(2): "uuid-2"}


async def until(reached: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not reached():
            await asyncio.sleep(0.002)


def hello(channel: str, incarnation: int) -> bytes:
    return pack(Kind.HELLO, ["cluster", 1, 2, UUIDS[NodeId(2)], 1, channel, incarnation])


async def test_links_to_the_former_life_of_a_peer_are_dropped_and_dialled_anew() -> None:
    base = free_base_port(2)
    dialled: list[asyncio.StreamWriter] = []

    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        dialled.append(writer)

    peer = await asyncio.start_server(silent, "127.0.0.1", base + 1)
    node = PeerTransport(
        Membership("cluster", 1, NodeId(1), UUIDS[NodeId(1)], UUIDS),
        {NodeId(2): (("127.0.0.1", base + 1),)},
        ("127.0.0.1", base),
    )
    await node.start(Handlers(lambda _: None, lambda _: None, lambda *_: None))
    _, says = await asyncio.open_connection("127.0.0.1", base)
    _, later = await asyncio.open_connection("127.0.0.1", base)
    try:
        await until(lambda: len(node.links) == 2)
        says.write(hello(CONTROL, 7))
        await until(lambda: len(node.inlets) == 2 and node.known_incarnation(NodeId(2)) == 7)
        first = set(node.links.values())
        later.write(hello(BULK, 8))
        await until(lambda: len(node.links) == 2 and not first & set(node.links.values()))
        assert len(dialled) == 4
    finally:
        for writer in (says, later, *dialled):
            writer.close()
        peer.close()
        await node.close()
