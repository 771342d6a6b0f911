"""Members are known by name and by their disk's id: one that comes back under another address is found again."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from cluster.peer.transport import Membership, PeerTransport
from cluster.peer.transport_options import PEER_WAITS, FrameHandlers, PeerWaits
from raftlog.messages import Heartbeat, Message
from raftlog.types import NodeId
from raftmq.local.process import free_base_port
from tests.support.wait_until import until

UUIDS = {NodeId(1): "uuid-1", NodeId(2): "uuid-2", NodeId(3): "uuid-3"}
NAME, GONE = "node-2.raftmq.test", "gone.raftmq.test"


class Names(asyncio.SelectorEventLoop):
    """A loop that has the answers of the system's resolver: one address for NAME, and late none for GONE."""

    def __init__(self) -> None:
        super().__init__()
        self.address = "127.0.0.1"
        self.asked: Counter[object] = Counter()
        self.answers_for_gone = asyncio.Event()

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        self.asked[host] += 1
        if host == GONE:
            await self.answers_for_gone.wait()
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return await super().getaddrinfo(self.address if host == NAME else host, port, **options)


def with_names(test: Callable[[Names], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Runs the test on such a loop."""

    def run() -> None:
        with asyncio.Runner(loop_factory=Names) as runner:
            loop = runner.get_loop()
            assert isinstance(loop, Names)
            runner.run(test(loop))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


async def started(
    number: int, bind: tuple[str, int], peers: dict[NodeId, tuple[str, int]], waits: PeerWaits = PEER_WAITS
) -> Any:
    node_id = NodeId(number)
    addresses = {node: (at,) for node, at in peers.items()}
    transport = PeerTransport(Membership("cluster", 1, node_id, UUIDS[node_id], UUIDS), addresses, bind, waits=waits)
    received: list[Message] = []
    await transport.start(FrameHandlers(received.append, lambda _: None, lambda *_: None))
    return transport, received


async def hears(sender: Any, receiver: list[Message], context: int) -> None:
    """A heartbeat from 1 to 2 arrives, sent again until it does."""

    def arrived() -> bool:
        sender.send([Heartbeat(NodeId(1), NodeId(2), 1, 0, context)])
        return any(getattr(message, "context", None) == context for message in receiver)

    await until(arrived)


@with_names
async def test_a17_a_peer_that_comes_back_under_another_address_is_found_by_its_name(names: Names) -> None:
    """A pod that was made anew has the same name, the same disk, and another address."""
    base = free_base_port(2)
    names.address = "127.0.0.2"
    peers = {NodeId(1): ("127.0.0.1", base), NodeId(2): (NAME, base + 1)}
    first, _ = await started(1, peers[NodeId(1)], peers)
    second, heard = await started(2, (names.address, base + 1), peers)
    await hears(first, heard, 1)
    await second.close()
    asked_before, names.address = names.asked[NAME], "127.0.0.3"
    second, heard = await started(2, (names.address, base + 1), peers)
    await hears(first, heard, 2)
    assert names.asked[NAME] > asked_before, "a name is looked up whenever it is dialled"
    await second.close()
    await first.close()


@with_names
async def test_a17_a_peer_that_moved_is_found_although_its_old_address_holds_the_connection(names: Names) -> None:
    """The host of a pod went dark: nobody closes the old connection, and what is sent into it seems to arrive."""
    loop, base = asyncio.get_running_loop(), free_base_port(2)
    names.address = "127.0.0.2"
    held: list[asyncio.BaseTransport] = []

    class Dark(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            held.append(transport)

    dark = await loop.create_server(Dark, names.address, base + 1)
    peers = {NodeId(1): ("127.0.0.1", base), NodeId(2): (NAME, base + 1)}
    first, _ = await started(1, peers[NodeId(1)], peers)
    await until(lambda: first.connected(NodeId(2)) and len(held) == 2)
    names.address = "127.0.0.3"
    second, heard = await started(2, (names.address, base + 1), peers)
    await hears(first, heard, 3)
    await second.close()
    await first.close()
    dark.close()
    for transport in held:
        transport.close()


@with_names
async def test_a_name_that_nobody_answers_for_is_looked_up_once(names: Names) -> None:
    """The system has few threads for lookups: dials of a container that is gone must not take those of the others."""
    base = free_base_port(3)
    names.address = "127.0.0.2"
    peers = {NodeId(1): ("127.0.0.1", base), NodeId(2): (NAME, base + 1), NodeId(3): (GONE, base + 2)}
    soon = PeerWaits(dial_s=0.01)
    first, _ = await started(1, peers[NodeId(1)], peers, soon)
    second, heard = await started(2, ("127.0.0.2", base + 1), peers, soon)
    await until(lambda: "no answer" in first.dial_errors.get(NodeId(3), ""))
    await hears(first, heard, 1)
    assert names.asked[GONE] == 1, "one lookup, for the four connections of two nodes"
    names.answers_for_gone.set()
    await until(lambda: "Temporary failure" in first.dial_errors[NodeId(3)] and names.asked[GONE] > 1)
    await first.close()
    await second.close()


def test_every_loopback_address_can_be_bound() -> None:
    """The condition of the test above."""
    for address in ("127.0.0.2", "127.0.0.3"):
        with socket.socket() as one:
            one.bind((address, 0))
