"""Members are known by name and by their disk's id: one that comes back under another address is found again."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from cluster.peer import transport as transport_module
from cluster.peer.transport import FrameHandlers, Membership, PeerTransport
from raftlog.messages import Heartbeat, Message
from raftlog.types import NodeId
from raftmq.local.process import free_base_port
from tests.support.wait_until import until

UUIDS = {NodeId(1): "uuid-1", NodeId(2): "uuid-2", NodeId(3): "uuid-3"}
NAME = "node-2.raftmq.test"


async def started(number: int, bind: tuple[str, int], peers: dict[NodeId, tuple[str, int]]) -> Any:
    node_id = NodeId(number)
    addresses = {node: (at,) for node, at in peers.items()}
    transport = PeerTransport(Membership("cluster", 1, node_id, UUIDS[node_id], UUIDS), addresses, bind)
    received: list[Message] = []
    await transport.start(FrameHandlers(received.append, lambda _: None, lambda *_: None))
    return transport, received


async def hears(sender: Any, receiver: list[Message], context: int) -> None:
    """A heartbeat from 1 to 2 arrives, sent again until it does."""

    def arrived() -> bool:
        sender.send([Heartbeat(NodeId(1), NodeId(2), 1, 0, context)])
        return any(getattr(message, "context", None) == context for message in receiver)

    await until(arrived)


async def test_a17_a_peer_that_comes_back_under_another_address_is_found_by_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pod that was made anew has the same name, the same disk, and another address."""
    loop, base = asyncio.get_running_loop(), free_base_port(2)
    address = "127.0.0.2"
    resolve = loop.getaddrinfo
    asked = 0

    async def names(host: Any, port: Any, **options: Any) -> Any:
        nonlocal asked
        asked += host == NAME
        return await resolve(address if host == NAME else host, port, **options)

    monkeypatch.setattr(loop, "getaddrinfo", names)
    peers = {NodeId(1): ("127.0.0.1", base), NodeId(2): (NAME, base + 1)}
    first, _ = await started(1, peers[NodeId(1)], peers)
    second, heard = await started(2, (address, base + 1), peers)
    await hears(first, heard, 1)
    await second.close()
    asked_before, address = asked, "127.0.0.3"
    second, heard = await started(2, (address, base + 1), peers)
    await hears(first, heard, 2)
    assert asked > asked_before, "a name is looked up whenever it is dialled"
    await second.close()
    await first.close()


async def test_a17_a_peer_that_moved_is_found_although_its_old_address_holds_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The host of a pod went dark: nobody closes the old connection, and what is sent into it seems to arrive."""
    loop, base = asyncio.get_running_loop(), free_base_port(2)
    address = "127.0.0.2"
    resolve = loop.getaddrinfo
    held: list[asyncio.BaseTransport] = []

    class Dark(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            held.append(transport)

    async def names(host: Any, port: Any, **options: Any) -> Any:
        return await resolve(address if host == NAME else host, port, **options)

    monkeypatch.setattr(loop, "getaddrinfo", names)
    dark = await loop.create_server(Dark, address, base + 1)
    peers = {NodeId(1): ("127.0.0.1", base), NodeId(2): (NAME, base + 1)}
    first, _ = await started(1, peers[NodeId(1)], peers)
    await until(lambda: first.connected(NodeId(2)) and len(held) == 2)
    address = "127.0.0.3"
    second, heard = await started(2, (address, base + 1), peers)
    await hears(first, heard, 3)
    await second.close()
    await first.close()
    dark.close()
    for transport in held:
        transport.close()


async def test_a_name_that_nobody_answers_for_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system has few threads for lookups: dials of a container that is gone must not take those of the others."""
    loop, base = asyncio.get_running_loop(), free_base_port(3)
    resolve, silent = loop.getaddrinfo, asyncio.Event()
    waiting = 0

    async def names(host: Any, port: Any, **options: Any) -> Any:
        nonlocal waiting
        if host == "gone.raftmq.test":
            waiting += 1
            await silent.wait()
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return await resolve("127.0.0.2" if host == NAME else host, port, **options)

    monkeypatch.setattr(loop, "getaddrinfo", names)
    monkeypatch.setattr(transport_module, "DIAL_S", 0.01)
    peers = {NodeId(1): ("127.0.0.1", base), NodeId(2): (NAME, base + 1), NodeId(3): ("gone.raftmq.test", base + 2)}
    first, _ = await started(1, peers[NodeId(1)], peers)
    second, heard = await started(2, ("127.0.0.2", base + 1), peers)
    await until(lambda: "no answer" in first.dial_errors.get(NodeId(3), ""))
    await hears(first, heard, 1)
    assert waiting == 1, "one lookup, for the four connections of two nodes"
    silent.set()
    await until(lambda: "Temporary failure" in first.dial_errors[NodeId(3)] and waiting > 1)
    await first.close()
    await second.close()


def test_every_loopback_address_can_be_bound() -> None:
    """The condition of the test above."""
    for address in ("127.0.0.2", "127.0.0.3"):
        with socket.socket() as one:
            one.bind((address, 0))
