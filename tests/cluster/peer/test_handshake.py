"""Nodes prove to each other that they have the cluster's secret, over real sockets; nobody else gets anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cluster.peer import handshake
from cluster.peer.admission import CHANNEL_INLETS_MAX, STRANGERS_MAX
from cluster.peer.allowed_peers import REMOVED, Membership, Refusal, RemovedMember
from cluster.peer.keyring import OPEN, Keyring
from cluster.peer.transport import BULK, CONTROL, PeerTransport
from cluster.peer.transport_options import FrameHandlers
from cluster.peer.wire import pack, unpack
from cluster.runtime.framing import FrameBuffer
from cluster.runtime.key_file import key_id
from cluster.runtime.peer_frames import Kind
from raftlog.messages import Heartbeat, Message
from raftlog.types import NodeId
from raftmq.local.process import free_base_port
from tests.support.plain_server import serving
from tests.support.rows import each_row
from tests.support.wait_until import PATIENCE_S, until

ONE, TWO, FOUR = NodeId(1), NodeId(2), NodeId(4)
UUIDS = {ONE: "uuid-1", TWO: "uuid-2", FOUR: "uuid-4"}
OLD, NEW, OTHER = b"o" * 32, b"n" * 32, b"x" * 32
NONCE = b"7" * 32


class Peer:
    def __init__(
        self,
        node: NodeId,
        port: int,
        others: dict[NodeId, int],
        keyring: Keyring,
        members: Sequence[NodeId] = (ONE, TWO),
        removed: dict[NodeId, RemovedMember] | None = None,
    ) -> None:
        known = Membership("cluster", 1, node, UUIDS[node], {each: UUIDS[each] for each in members}, removed or {})
        addresses = {each: (("127.0.0.1", at),) for each, at in others.items()}
        self.port = port
        self.transport = PeerTransport(
            known, addresses, ("127.0.0.1", port), advertised=("127.0.0.1", port), keyring=keyring
        )
        self.messages: list[Message] = []
        self.closed: list[NodeId] = []
        self.refusals: list[tuple[NodeId, Refusal]] = []
        self.frames: list[int] = []

    async def start(self) -> None:
        await self.transport.start(
            FrameHandlers(
                self.messages.append,
                self.closed.append,
                lambda peer, kind, header, payload: self.frames.append(kind),
                lambda peer, refusal: self.refusals.append((peer, refusal)),
            )
        )

    def hears(self, other: Peer, node: NodeId, own: NodeId) -> bool:
        """Returns True if a message that `other` sent has arrived here; else sends one."""
        if any(message.from_id == node for message in self.messages):
            return True
        other.transport.send([Heartbeat(node, own, 1, 0, 0)])
        return False


async def end(peer: Peer) -> None:
    """Closes it; what it was about to accept, and the other ends, are closed some turns of the loop later. They are
    counted: a sleep is one turn if the machine stands still meanwhile."""
    await peer.transport.close()
    for _ in range(20):
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)


@pytest.fixture
async def made() -> AsyncIterator[Callable[..., Any]]:
    """Makes the nodes 1 and 2 with these keyrings; they are closed at the end."""
    peers: list[Peer] = []

    async def make(first: Keyring, second: Keyring) -> tuple[Peer, Peer]:
        base = free_base_port(2)
        peers.extend([Peer(ONE, base, {TWO: base + 1}, first), Peer(TWO, base + 1, {ONE: base}, second)])
        for peer in peers:
            await peer.start()
        return peers[0], peers[1]

    yield make
    for peer in peers:
        await end(peer)


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        (Keyring((NEW,), demanded=True), Keyring((NEW,), demanded=True), True),
        (Keyring((NEW,)), Keyring((NEW,), demanded=True), True),
        (Keyring((NEW, OLD), demanded=True), Keyring((OLD,), demanded=True), True),
        (Keyring((NEW,)), OPEN, True),
        (OPEN, Keyring((NEW,)), True),
        (Keyring((NEW,), demanded=True), OPEN, False),
        (Keyring((NEW,), demanded=True), Keyring((OTHER,), demanded=True), False),
        (Keyring((NEW,), demanded=True), Keyring((OTHER,)), False),
    ],
    ids=[
        "both demand",
        "one demands",
        "while it changes",
        "one has none",
        "other has none",
        "demanded of one without",
        "two secrets",
        "two secrets, one admits",
    ],
)
async def test_who_hears_whom(made: Callable[..., Any], first: Keyring, second: Keyring, both: bool) -> None:
    one, two = await made(first, second)
    if both:
        await until(lambda: one.hears(two, TWO, ONE) and two.hears(one, ONE, TWO))
        return
    await until(lambda: two.transport.dial_errors.get(ONE, "").startswith("it refuses"))
    await asyncio.sleep(0.7)  # longer than an unproven connection waits for a challenge
    one.transport.send([Heartbeat(ONE, TWO, 1, 0, 0)])
    two.transport.send([Heartbeat(TWO, ONE, 1, 0, 0)])
    await asyncio.sleep(0.1)
    assert not one.messages
    assert not two.messages
    assert not one.transport.connected(TWO)


async def test_a_secret_comes_into_force_while_connections_stand_and_no_peer_seems_to_be_gone(
    made: Callable[..., Any],
) -> None:
    one, two = await made(OPEN, OPEN)
    await until(lambda: one.hears(two, TWO, ONE) and two.hears(one, ONE, TWO))
    one.transport.set_keyring(Keyring((NEW,)))
    await asyncio.sleep(0.05)
    assert one.transport.proven_by() == set()
    two.transport.set_keyring(Keyring((NEW,)))
    await until(lambda: one.transport.proven_by() == {TWO} and two.transport.proven_by() == {ONE})
    for peer in (one, two):
        peer.transport.set_keyring(Keyring((NEW,), demanded=True))
    for peer in (one, two):  # and another one in its place
        peer.transport.set_keyring(Keyring((OTHER, NEW), demanded=True))
    await until(lambda: one.transport.proven_by() == {TWO} and two.transport.proven_by() == {ONE})
    for peer in (one, two):
        peer.transport.set_keyring(Keyring((OTHER,), demanded=True))
    one.messages.clear()
    await until(lambda: one.hears(two, TWO, ONE))
    assert not one.closed
    assert not two.closed
    await until(lambda: len(one.transport.inlets) == 2)


Heard = tuple[int, list[Any], bytes]
"""Kind and header of a frame, and its bytes."""
dialled: list[asyncio.StreamWriter] = []


@pytest.fixture(autouse=True)
async def hang_up() -> AsyncIterator[None]:
    """No test leaves a connection open."""
    yield
    for writer in dialled:
        writer.transport.abort()
    dialled.clear()
    await asyncio.sleep(0.01)


@pytest.mark.parametrize(("last", "level"), [([], 0), ([3], 3), (["3"], 0), ([-1], 0), ([1 << 40], 0), ([True], 0)])
def test_a_level_is_a_small_number_or_none(last: list[Any], level: int) -> None:
    hello: list[Any] = ["cluster", 1, 2, "uuid", 1, CONTROL, 77]
    assert handshake.level([*handshake.with_keys(hello, b"", []), *last]) == level
    assert handshake.offered([*handshake.with_keys(hello, b"", []), *last]) == []


class Stranger:
    """One connection to a peer port that says what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._frames: list[tuple[int, list[Any], bytes]] = []
        self._buffer = FrameBuffer(1 << 20)

    @classmethod
    async def dial(cls, port: int) -> Stranger:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        dialled.append(writer)
        return cls(reader, writer)

    def say(self, frame: bytes) -> None:
        self._writer.write(frame)

    async def hear(self) -> Heard | None:
        """The next frame: kind, header, its bytes. None at the end."""
        async with asyncio.timeout(PATIENCE_S):
            while not self._frames:
                try:
                    data = await self._reader.read(1 << 16)
                except ConnectionError:
                    return None
                if not data:
                    return None
                buffer, found = self._buffer.feed(data)
                for start, stop in found:
                    kind, header, _ = unpack(buffer, start, stop)
                    self._frames.append((kind, header, buffer[start:stop]))
        return self._frames.pop(0)

    async def introduce(self, hello: list[Any], /, key: bytes = NEW, **wrong: bytes) -> Heard | None:
        """The whole handshake of a node with that key; returns what it is answered with. `wrong`: other parts."""
        said = pack(Kind.HELLO, hello)
        self.say(said)
        heard = await self.hear()
        if heard is None or heard[0] != Kind.CHALLENGE:
            return heard
        proof = handshake.dialler_proof(key, wrong.get("hello", said[4:]), wrong.get("challenge", heard[2]))
        self.say(pack(Kind.PROOF, [wrong.get("proof", proof)]))
        return await self.hear()


def hello(node: int = 2, uuid: str = "uuid-2", to: int = 1, channel: str = CONTROL, key: bytes = NEW) -> list[Any]:
    return ["cluster", 1, node, uuid, to, channel, 7, "127.0.0.1", 1, NONCE, [key_id(key)]]


@pytest.fixture
async def node() -> AsyncIterator[Peer]:
    """Node 1, which demands NEW, dials nobody, and from which node 4 was removed."""
    port = free_base_port(1)
    keyring = Keyring((NEW,), demanded=True)
    peer = Peer(ONE, port, {}, keyring, removed={FOUR: RemovedMember("uuid-4", 90)})
    await peer.start()
    yield peer
    await end(peer)


async def test_who_proves_the_secret_is_let_in_and_told_who_this_is(node: Peer) -> None:
    stranger = await Stranger.dial(node.port)
    heard = await stranger.introduce(hello())
    assert heard is not None
    kind, header, _ = heard
    assert (kind, header[:3]) == (Kind.WELCOME, ["cluster", 1, "uuid-1"])
    stranger.say(pack(Kind.HEARTBEAT, list(Heartbeat(TWO, ONE, 1, 0, 5))))
    await until(lambda: node.messages)


@each_row(
    "said",
    [
        hello()[:6],
        hello()[:9],
        [*hello()[:9], b"short", [key_id(NEW)]],
        [*hello()[:9], NONCE, key_id(NEW)],
        [*hello()[:9], NONCE, [key_id(OTHER)]],
        [*hello()[:9], NONCE, [key_id(NEW)] * 5],
        ["another cluster", *hello()[1:6]],
        hello(9, "uuid-9")[:9],
    ],
    ids=[
        "of an old release",
        "without keys",
        "short nonce",
        "keys no list",
        "another key",
        "too many keys",
        "another cluster",
        "guest",
    ],
)
async def test_without_a_proof_nothing_is_told_but_that_one_is_wanted(node: Peer, said: list[Any]) -> None:
    stranger = await Stranger.dial(node.port)
    heard = await stranger.introduce(said)
    assert heard is not None
    kind, header, frame = heard
    assert (kind, header[1]) == (Kind.REFUSED, "secret")
    assert "secret file" in header[0]
    assert b"uuid-1" not in frame
    assert b"cluster " not in frame.replace(b"this cluster ", b"")
    assert await stranger.hear() is None
    assert not node.messages
    assert node.transport.roster.peers() == [], "no guest, and nobody is dialled back"


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        (hello(), {"proof": bytes(32)}),
        (hello(), {"proof": b""}),
        (hello(), {"challenge": b"of another connection"}),
        (hello(), {"hello": pack(Kind.HELLO, hello(9, "uuid-9"))[4:]}),
        (hello(), {"hello": pack(Kind.HELLO, hello(channel=BULK))[4:]}),
    ],
    ids=["zeroes", "empty", "repeated", "of another node", "of another channel"],
)
async def test_a_proof_of_something_else_is_none(node: Peer, said: list[Any], wrong: dict[str, bytes]) -> None:
    stranger = await Stranger.dial(node.port)
    heard = await stranger.introduce(said, **wrong)
    assert heard is not None
    assert (heard[0], heard[1][1]) == (Kind.REFUSED, "secret")
    stranger.say(pack(Kind.HEARTBEAT, list(Heartbeat(TWO, ONE, 1, 0, 5))))
    assert await stranger.hear() is None
    assert not node.messages


async def test_what_the_node_proves_itself_is_no_proof_to_it(node: Peer) -> None:
    """A peer that a node dials cannot send the node's challenge and its answer back to it."""
    first, second = await Stranger.dial(node.port), await Stranger.dial(node.port)
    first_welcome = await first.introduce(hello())
    assert first_welcome is not None
    mirrored = await second.introduce(hello(), proof=first_welcome[1][3])
    assert mirrored is not None
    assert mirrored[0] == Kind.REFUSED


async def test_frames_instead_of_a_proof_end_the_connection(node: Peer) -> None:
    stranger = await Stranger.dial(node.port)
    stranger.say(pack(Kind.HELLO, hello()) + pack(Kind.HEARTBEAT, list(Heartbeat(TWO, ONE, 1, 0, 5))))
    heard = await stranger.hear()
    assert heard is None or heard[0] == Kind.CHALLENGE
    assert heard is None or await stranger.hear() is None
    assert not node.messages


async def test_who_was_removed_is_told_so_after_its_proof_only(node: Peer) -> None:
    stranger = await Stranger.dial(node.port)
    heard = await stranger.introduce(hello(4, "uuid-4"))
    assert heard is not None
    assert heard[0] == Kind.WELCOME, "it can believe what follows"
    refused = await stranger.hear()
    assert refused is not None
    assert (refused[0], refused[1][1:]) == (Kind.REFUSED, [REMOVED, 90])


async def test_a_guest_that_proves_the_secret_is_dialled_where_it_says(node: Peer) -> None:
    stranger = await Stranger.dial(node.port)
    heard = await stranger.introduce(hello(9, "uuid-9"))
    assert heard is not None
    assert heard[0] == Kind.WELCOME
    assert node.transport.roster.peers() == [9]


@asynccontextmanager
async def listens_as(keyring: Keyring, say: Callable[[asyncio.StreamWriter], None]) -> AsyncIterator[Peer]:
    """Node 1, and somebody at the address of node 2."""
    base = free_base_port(2)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        say(writer)
        while data := await reader.read(1 << 16):
            heard.extend(data)

    heard = bytearray()
    peer = Peer(ONE, base, {TWO: base + 1}, keyring)
    peer.heard = heard  # type: ignore[attr-defined]
    async with serving(answer, base + 1):
        await peer.start()
        try:
            yield peer
        finally:
            await end(peer)


@pytest.mark.parametrize(
    "frames",
    [
        pack(Kind.REFUSED, ["you were removed", REMOVED, 5]),
        pack(Kind.CHALLENGE, [NONCE, key_id(NEW)]) + pack(Kind.WELCOME, ["cluster", 2, "uuid-2", bytes(32)]),
        pack(Kind.CHALLENGE, [NONCE, key_id(OTHER)]),
        pack(Kind.WELCOME, ["cluster", 2, "uuid-2", bytes(32)]),
        b"",
    ],
    ids=["removed", "wrong proof", "another key", "no challenge", "silence"],
)
async def test_nothing_is_said_to_who_listens_at_a_members_address(frames: bytes) -> None:
    async with listens_as(Keyring((NEW,), demanded=True), lambda writer: writer.write(frames)) as peer:
        await until(lambda: peer.heard)  # type: ignore[attr-defined]
        peer.transport.send([Heartbeat(ONE, TWO, 1, 0, 0)])
        await asyncio.sleep(0.2)
        assert not peer.transport.connected(TWO)
        assert not [refusal for _, refusal in peer.refusals if refusal.kind == REMOVED]
        assert NEW not in bytes(peer.heard)  # type: ignore[attr-defined]


async def test_strangers_are_bounded_in_number_and_an_honest_peer_gets_in_all_the_same(node: Peer) -> None:
    crowd = [await Stranger.dial(node.port) for _ in range(STRANGERS_MAX + 20)]
    await until(lambda: len(node.transport.inlets) == STRANGERS_MAX)
    for stranger in crowd:
        stranger.say(b"\0\0")
    honest = await Stranger.dial(node.port)
    heard = await honest.introduce(hello())
    assert heard is not None
    assert heard[0] == Kind.WELCOME
    assert len([inlet for inlet in node.transport.inlets if inlet.peer is None]) < STRANGERS_MAX + 1


async def test_connections_of_one_peer_are_bounded_and_the_newest_stay(node: Peer) -> None:
    several = [await Stranger.dial(node.port) for _ in range(CHANNEL_INLETS_MAX + 3)]
    for stranger in several:
        assert (await stranger.introduce(hello()) or (None,))[0] == Kind.WELCOME
    await until(lambda: len(node.transport.inlets) == CHANNEL_INLETS_MAX)
    several[-1].say(pack(Kind.HEARTBEAT, list(Heartbeat(TWO, ONE, 1, 0, 5))))
    await until(lambda: node.messages)
    assert not node.closed, "the peer has connections that stand"


async def test_why_a_node_cannot_be_dialled_is_said_in_words(made: Callable[..., Any]) -> None:
    one, two = await made(OPEN, OPEN)
    await end(two)
    await until(lambda: TWO in one.transport.dial_errors)
    said = one.transport.dial_errors[TWO]
    assert said.startswith(f"127.0.0.1:{two.port}: ")
    assert "Errno" not in said
