"""The probe of an address: a handshake asks who listens there and leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from cluster.peer.allowed_peers import Membership
from cluster.peer.keyring import OPEN, Keyring
from cluster.peer.probe import probe
from cluster.peer.transport import PeerTransport
from cluster.peer.transport_options import FrameHandlers
from cluster.peer.wire import pack
from cluster.runtime.peer_frames import Kind
from raftlog.types import NodeId
from raftmq.local.process import free_base_port
from tests.support.plain_server import Listen
from tests.support.wait_until import until

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
KEY, OTHER = Keyring((b"n" * 32,), demanded=True), Keyring((b"x" * 32,), demanded=True)
UUIDS = {node: f"uuid-{node}" for node in (ONE, TWO, THREE)}


class Node:
    """A peer port that dials nobody."""

    def __init__(self, node: NodeId, keyring: Keyring, cluster: str = "cluster", uuid: str = "") -> None:
        self.port = free_base_port(1)
        known = Membership(cluster, 1, node, uuid or UUIDS[node], UUIDS | ({node: uuid} if uuid else {}))
        self.transport = PeerTransport(known, {}, ("127.0.0.1", self.port), keyring=keyring)
        self.closed: list[NodeId] = []

    async def start(self) -> Node:
        await self.transport.start(FrameHandlers(lambda _: None, self.closed.append, lambda *_: None))
        return self


@pytest.fixture
async def made() -> AsyncIterator[Callable[..., object]]:
    nodes: list[Node] = []

    def make(*arguments: object, **more: object) -> Node:
        nodes.append(Node(*arguments, **more))  # type: ignore[arg-type]
        return nodes[-1]

    yield make
    for node in nodes:
        await node.transport.close()
    await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("own", "there", "why"),
    [
        ((ONE, KEY), (THREE, KEY), ""),
        ((ONE, OPEN), (THREE, OPEN), ""),
        ((ONE, Keyring(KEY.keys)), (THREE, OPEN), ""),
        ((THREE, KEY), (THREE, KEY), ""),
        ((ONE, KEY), (TWO, KEY), "node 2 answers there"),
        ((ONE, KEY), (THREE, KEY, "elsewhere"), "a node of another cluster answers there (elsewhere)"),
        ((ONE, KEY), (THREE, KEY, "cluster", "other"), "node 3 with another disk answers there (uuid other)"),
        ((ONE, OPEN), (THREE, OPEN, "cluster", "other"), "node 3 with another disk answers there (uuid other)"),
        ((ONE, KEY), (THREE, OPEN), "it does not prove the secret of the cluster"),
        ((ONE, KEY), (THREE, OTHER), "it refuses this node: this cluster lets in only nodes that prove its secret"),
        ((ONE, OPEN), (THREE, KEY), "it refuses this node: this cluster lets in only nodes that prove its secret"),
        ((ONE, OPEN), (TWO, OPEN), "it refuses this node: it looks for node 3 at this address, which is node 2"),
    ],
    ids=[
        "it is there",
        "without a secret",
        "it has no secret yet",
        "the node itself",
        "another node",
        "another cluster",
        "another disk",
        "another disk, without a secret",
        "no proof",
        "two secrets",
        "a secret is wanted",
        "another node, without a secret",
    ],
)
async def test_who_is_found(made: Callable[..., Node], own: tuple[object], there: tuple[object], why: str) -> None:
    asker, asked = made(*own), await made(*there).start()
    found = await probe(asker.transport, THREE, UUIDS[THREE], ("127.0.0.1", asked.port))
    assert found[: len(why)] == why
    assert bool(found) is bool(why)


async def test_nothing_is_left_of_the_question(made: Callable[..., Node]) -> None:
    """A control connection that ends is news of a peer; the end of a question is none, and makes nobody a guest."""
    asker, asked = made(ONE, KEY), await made(THREE, KEY).start()
    assert await probe(asker.transport, THREE, UUIDS[THREE], ("127.0.0.1", asked.port)) == ""
    await until(lambda: not asked.transport.inlets)
    assert not asked.closed
    assert asked.transport.roster.peers() == []
    assert asked.transport.known_incarnation(ONE) is None


@pytest.mark.parametrize(
    ("says", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "what listens there does not speak the protocol of the peer port"),
        (b"", "it closed the connection before it said who it is"),
        (pack(Kind.WELCOME, ["cluster", 3, "uuid-3", b""]), "it does not prove the secret of the cluster"),
        (pack(Kind.CHALLENGE, [b"7" * 32, b"another"]), "the two nodes do not have the same secret"),
        (pack(Kind.REFUSED, ["unknown channel 'probe'", "", -1]), "a node of an earlier release answers there"),
        (pack(Kind.REFUSED, []), "it refuses this node: no reason"),
        (pack(Kind.WELCOME, ["cluster"]), "what listens there does not speak the protocol of the peer port"),
    ],
    ids=["HTTP", "hangs up", "no proof", "another key", "an earlier release", "no reason", "half a welcome"],
)
async def test_what_else_may_listen_there(made: Callable[..., Node], listens: Listen, says: bytes, why: str) -> None:
    found = await probe(made(ONE, KEY).transport, THREE, UUIDS[THREE], await listens(says))
    assert found.startswith(why)


async def test_nobody_listens_or_nobody_answers(made: Callable[..., Node], listens: Listen) -> None:
    asker = made(ONE, KEY).transport
    assert await probe(asker, THREE, UUIDS[THREE], ("127.0.0.1", free_base_port(1))) == "Connection refused"
    assert await probe(asker, THREE, UUIDS[THREE], ("nowhere.invalid", 1)) != ""
    found = await probe(asker, THREE, UUIDS[THREE], await listens(b"", hangs_up=False), limit_s=0.05)
    assert found == "no answer within 0.05 s"
