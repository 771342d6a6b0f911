"""Nodes of different groups: whom the channel `group` lets in, and what may pass on it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest

from cluster.peer import group_links, handshake
from cluster.peer.allowed_peers import Membership
from cluster.peer.connections import CONTROL, GROUP, HELLO_MAX
from cluster.peer.group_links import GROUP_FRAME_MAX, QUIET_LOOKS, GroupLink, GroupLinks, LinkTarget
from cluster.peer.keyring import OPEN, Keyring
from cluster.peer.transport import PeerTransport
from cluster.peer.transport_options import PEER_WAITS, FrameHandlers, PeerLevels, PeerWaits
from cluster.peer.wire import encode_message, pack, unpack
from cluster.runtime.peer_frames import Kind
from raftlog.messages import Heartbeat
from raftlog.types import NodeId
from raftmq.local.process import free_base_port
from statemachine.levels import GROUPS_LEVEL
from tests.support.pace import at_most
from tests.support.plain_server import Listen
from tests.support.wait_until import until

ONE, TWO, ANY = NodeId(1), NodeId(2), NodeId(0)
OLD, NEW = b"o" * 32, b"n" * 32
KEY = Keyring((NEW,), demanded=True)


class Node:
    """The peer port of a node of some group, which dials no peer."""

    def __init__(
        self,
        group: int,
        node: NodeId = ONE,
        keyring: Keyring = KEY,
        cluster: str = "c",
        *,
        serves: bool = True,
        level: int = GROUPS_LEVEL,
        waits: PeerWaits = PEER_WAITS,
        **limits: Any,
    ) -> None:
        self.port = free_base_port(1)
        known = Membership(cluster, group, node, f"u{group}-{node}", {node: f"u{group}-{node}"})
        self.level = level
        self.transport = PeerTransport(
            known,
            {},
            ("127.0.0.1", self.port),
            incarnation=1,
            keyring=keyring,
            levels=PeerLevels(of_cluster=lambda: self.level),
            waits=waits,
        )
        self.leaders: dict[int, int] = {}
        self.links: Any = None
        self.heard: list[tuple[int, int, list[Any], bytes]] = []
        self.raft: list[object] = []
        if serves:
            self.links = GroupLinks(self.transport, lambda group: self.leaders.get(group, 0), **limits)
            self.links.takes(Kind.GROUPS, self._on_groups)

    def _on_groups(self, link: GroupLink, header: list[Any], payload: bytes) -> None:
        self.heard.append((link.group, link.node, header, payload))

    async def start(self) -> Node:
        note = lambda *told: self.raft.append(told)  # noqa: E731
        await self.transport.start(FrameHandlers(note, note, note, note, note))
        return self

    def target(self, node: NodeId | None = None) -> LinkTarget:
        """Where others dial it; `node`: for whom they look."""
        me = self.transport.roster.membership
        return LinkTarget(me.group_id, me.node_id if node is None else node, (("127.0.0.1", self.port),))


@pytest.fixture
async def made() -> AsyncIterator[Callable[..., Any]]:
    nodes: list[Node] = []

    async def make(*arguments: Any, **more: Any) -> Node:
        nodes.append(Node(*arguments, **more))
        return await nodes[-1].start()

    yield make
    for node in nodes:
        if node.links is not None:
            await node.links.close()
        await node.transport.close()
    await asyncio.sleep(0.05)
    assert not any(node.raft for node in nodes), "a node of another group is no peer"
    assert not any(node.transport.inlets or node.transport.roster.peers() for node in nodes)
    assert not any(node.links.all() for node in nodes if node.links is not None)


def target_of(node: Node, group: int, peer: NodeId) -> Any:
    """Returns what the node knows of a target that it dials."""
    return node.links._wanted[group, peer]


async def tried(node: Node, key: tuple[int, NodeId], attempts: int) -> None:
    """Waits until that target was dialled in vain so often."""
    await until(lambda: target_of(node, *key).attempts == attempts)


async def joined(a: Node, b: Node) -> tuple[GroupLink, GroupLink]:
    """Both ends of a connection that `a` dials."""
    a.links.tend([b.target()])
    await until(lambda: a.links.all() and b.links.all())
    return a.links.all()[-1], b.links.all()[-1]


async def test_the_connection_to_any_member_becomes_that_to_the_member_that_it_found(made: Callable[..., Any]) -> None:
    a, b = await made(2), await made(1, TWO)
    a.links.tend([b.target(NodeId(0))])
    await until(lambda: a.links.to(1))
    [link] = a.links.to(1)
    for targets in ([b.target(), b.target(NodeId(0))], [b.target()]):
        a.links.tend(targets)
        await asyncio.sleep(0.05)
        assert a.links.to(1) == [link], "there is no second one, and it is not ended"
        assert a.links.reaches(1, b.target().node)


@pytest.mark.parametrize(
    ("first", "second", "is_proven"),
    [
        (KEY, KEY, True),
        (Keyring((NEW, OLD), demanded=True), Keyring((OLD,), demanded=True), True),
        (Keyring((NEW,)), OPEN, False),
        (OPEN, OPEN, False),
    ],
)
async def test_a_connection_serves_both_ways(
    made: Callable[..., Any], first: Keyring, second: Keyring, is_proven: bool
) -> None:
    a, b = await made(2, keyring=first), await made(1, TWO, keyring=second)
    near, far = await joined(a, b)
    assert (near.group, near.node, far.group, far.node) == (1, 2, 2, 1)
    assert bool(near.key_id) == bool(far.key_id) == is_proven
    assert near.key_id == far.key_id
    assert near.send(Kind.GROUPS, [1], b"up")
    assert far.send(Kind.GROUPS, [2], b"down")
    await until(lambda: a.heard and b.heard)
    assert (a.heard, b.heard) == ([(1, 2, [2], b"down")], [(2, 1, [1], b"up")])
    assert not a.transport.links
    assert not b.transport.proven_by()


@pytest.mark.parametrize(
    ("dialler", "acceptor", "why"),
    [
        ({"group": 2, "cluster": "other"}, {}, "it belongs to cluster other, this is cluster c"),
        ({"group": 1, "node": TWO}, {}, "it belongs to group 1 as this node does"),
        ({"group": 2, "keyring": OPEN}, {}, "this cluster lets in only nodes that prove its secret"),
        ({"group": 2, "keyring": Keyring((OLD,))}, {}, "this cluster lets in only nodes that prove its secret"),
        ({"group": 65}, {}, "a cluster has no group 65"),
        ({"group": 2, "node": NodeId(0)}, {}, "node 0 is no member of a group"),
        ({"group": 2}, {"serves": False}, "unknown channel 'group'"),
    ],
    ids=["another cluster", "the same group", "no secret", "another secret", "no group", "no node", "an earlier build"],
)
async def test_who_is_refused(
    made: Callable[..., Any],
    dialler: dict[str, Any],
    acceptor: dict[str, Any],
    why: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    a, b = await made(**dialler), await made(1, **acceptor)
    a.links.tend([b.target()])
    await until(lambda: f"is refused: {why}" in caplog.text)
    await until(lambda: f"is not reached at 127.0.0.1:{b.port}: it refuses this node: {why}" in caplog.text)
    assert not a.links.all()
    assert b.transport.admission.refused == 1


async def test_a_group_stays_off_the_channels_of_raft(
    made: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    a, b = await made(2, TWO), await made(1, ONE)
    reader, writer = await asyncio.open_connection("127.0.0.1", b.port)
    await say_hello(reader, writer, a, CONTROL, ONE)
    assert "it belongs to cluster c group 2, this is cluster c group 1" in caplog.text
    writer.close()


async def say_hello(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, node: Node, channel: str, to: NodeId
) -> list[tuple[int, list[Any]]]:
    """Takes the part of the dialler in a handshake. Returns the frames of the other side: kinds and headers."""
    hello = pack(Kind.HELLO, node.transport.introduction(to, channel))
    writer.write(hello)
    frames = [await read_frame(reader)]
    kind, _, challenge = frames[0]
    if kind == Kind.CHALLENGE:
        writer.write(pack(Kind.PROOF, [handshake.dialler_proof(NEW, hello[4:], challenge)]))
        frames.append(await read_frame(reader))
    return [(kind, header) for kind, header, _ in frames]


async def test_one_that_looks_for_another_node_is_refused(
    made: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    a, b = await made(2), await made(1)
    for to, answer in ((TWO, Kind.REFUSED), (ONE, Kind.WELCOME)):
        reader, writer = await asyncio.open_connection("127.0.0.1", b.port)
        assert (await say_hello(reader, writer, a, GROUP, to))[-1][0] == answer
        writer.close()
    assert "it looks for node 2 at this address, which is node 1" in caplog.text
    await until(lambda: not b.links.all())


async def read_frame(reader: asyncio.StreamReader) -> tuple[int, list[Any], bytes]:
    async with asyncio.timeout(at_most(10)):
        frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
    return *unpack(frame, 0, len(frame))[:2], frame


@pytest.mark.parametrize(
    "frame",
    [
        b"".join(encode_message(Heartbeat(ONE, ONE, 9, 0, 0))),
        pack(Kind.FORWARD, [1]),
        pack(Kind.PING, [CONTROL, 1, 1000]),
        pack(Kind.HELLO, []),
        pack(Kind(28), [])[:4] + b"\x63" + pack(Kind(28), [])[5:],
        (GROUP_FRAME_MAX + 1).to_bytes(4) + b"\x1c",
        (-1).to_bytes(4, signed=True),
        (3).to_bytes(4) + b"abc",
    ],
    ids=["Raft", "forward", "ping", "hello", "unknown", "too long", "negative", "no frame"],
)
async def test_only_frames_of_groups_pass_to_the_acceptor(made: Callable[..., Any], frame: bytes) -> None:
    a, b = await made(2), await made(1)
    reader, writer = await asyncio.open_connection("127.0.0.1", b.port)
    kinds = [kind for kind, _ in await say_hello(reader, writer, a, GROUP, ANY)]
    assert kinds == [Kind.CHALLENGE, Kind.WELCOME]
    writer.write(pack(Kind.GROUPS, ["x"]))
    await until(lambda: b.heard == [(2, 1, ["x"], b"")])
    writer.write(frame)
    async with asyncio.timeout(at_most(10)):
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
    writer.close()


async def test_what_arrives_with_the_handshake_is_handled(made: Callable[..., Any]) -> None:
    """Without a secret a dialler may send at once."""
    a, b = await made(2, keyring=OPEN), await made(1, keyring=OPEN)
    reader, writer = await asyncio.open_connection("127.0.0.1", b.port)
    writer.write(pack(Kind.HELLO, a.transport.introduction(ANY, GROUP)) + pack(Kind.GROUPS, ["x"]))
    kind, header, _ = await read_frame(reader)
    assert (kind, header) == (Kind.WELCOME, ["c", 1, "u1-1", 1, b""])
    await until(lambda: b.heard == [(2, 1, ["x"], b"")])
    writer.close()
    await until(lambda: not b.links.all())


@pytest.mark.parametrize("keyring", [OPEN, KEY])
@pytest.mark.parametrize("size", [10, HELLO_MAX, 40_000, GROUP_FRAME_MAX - 100])
async def test_what_arrives_with_the_welcome_is_handled_whatever_its_length(
    made: Callable[..., Any], keyring: Keyring, size: int
) -> None:
    """The acceptor says at once what it knows of all groups."""
    a, b = await made(2, keyring=keyring), await made(1, keyring=keyring)
    b.links.opened.add(lambda link: link.send(Kind.GROUPS, ["map"], b"m" * size))
    a.links.tend([b.target()])
    await until(lambda: a.heard or target_of(a, 1, ONE).attempts)
    assert a.heard == [(1, 1, ["map"], b"m" * size)]
    assert a.links.reaches(1, ONE)


async def test_only_frames_of_groups_pass_to_the_dialler(made: Callable[..., Any]) -> None:
    a, b = await made(2), await made(1)
    _, far = await joined(a, b)
    far.send(Kind.HEARTBEAT, [1, 1, 1, 0, 0])
    await until(lambda: not a.links.all())


async def test_frames_of_groups_end_a_connection_of_a_peer(made: Callable[..., Any]) -> None:
    known = {ONE: "u1-1", TWO: "u1-2"}
    b, a = await made(1), await made(1, TWO)
    b.transport.set_members(b.transport.roster.membership._replace(members=known), {})
    reader, writer = await asyncio.open_connection("127.0.0.1", b.port)
    assert [kind for kind, _ in await say_hello(reader, writer, a, CONTROL, ONE)] == [Kind.CHALLENGE, Kind.WELCOME]
    writer.write(pack(Kind.GROUPS, []))
    async with asyncio.timeout(at_most(10)):
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
    await until(lambda: b.raft)
    b.raft.clear()
    assert not b.heard
    writer.close()


async def test_what_the_dialler_finds_must_be_whom_it_looks_for(made: Callable[..., Any]) -> None:
    a, b = await made(2), await made(3, TWO)
    port = b.port
    for wrong in (LinkTarget(3, ONE, (("127.0.0.1", port),)), LinkTarget(4, ANY, (("127.0.0.1", port),))):
        a.links.tend([wrong])
        key = wrong.group, wrong.node
        await tried(a, key, 1)
        assert not a.links.all()
    a.links.tend([b.target(ANY)])
    await until(lambda: [(link.group, link.node) for link in a.links.all()] == [(3, TWO)])


async def test_a_dialler_that_demands_a_proof_gets_one(
    made: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    a, b = await made(2, keyring=KEY), await made(1, keyring=OPEN)
    a.links.tend([b.target()])
    await until(lambda: "it does not prove the secret of the cluster" in caplog.text)
    assert not a.links.all()


async def test_a_silent_connection_is_closed_and_dialled_again(made: Callable[..., Any]) -> None:
    a, b = await made(2), await made(1)
    near, _ = await joined(a, b)
    for _ in range(QUIET_LOOKS):
        a.links.tend([b.target()])
        b.links.tend([])
    assert a.links.all() == [near]
    b.links.all()[0].send(Kind.GROUPS, [])
    await until(lambda: near.quiet == 0)
    for _ in range(QUIET_LOOKS + 1):
        a.links.tend([b.target()])
    await until(lambda: near not in a.links.all())
    target_of(a, 1, ONE).due_s = 0.0
    a.links.tend([b.target()])
    await until(lambda: a.links.all())


async def test_a_node_that_refuses_is_dialled_rarely_and_a_dead_one_soon(made: Callable[..., Any]) -> None:
    a, old = await made(2), await made(1, serves=False)
    dead = LinkTarget(3, ANY, (("127.0.0.1", free_base_port(1)), ("nowhere.invalid", 1), ("bad..name", 1)))
    a.links.tend([old.target(), dead])
    states = [target_of(a, 1, ONE), target_of(a, 3, ANY)]
    await until(lambda: all(state.attempts for state in states))
    now = asyncio.get_running_loop().time()
    assert states[0].due_s - now > 20
    for attempts in (2, 3):
        assert states[1].due_s - now < 5
        states[1].due_s = 0.0
        a.links.tend([old.target(), dead])
        await tried(a, (3, ANY), attempts)
    assert states[0].attempts == 1


async def test_a_group_at_a_level_without_others_refuses_them_until_it_is_raised(made: Callable[..., Any]) -> None:
    a, b = await made(2), await made(1, level=GROUPS_LEVEL - 1)
    why = "group 1 has level 13, and several groups of brokers need level 14; in group 1: raftmq upgrade finalize"
    a.links.tend([b.target()])
    await until(lambda: a.links.refused == {1: f"it refuses this node: {why}"})
    state = target_of(a, 1, ONE)
    assert state.due_s - asyncio.get_running_loop().time() < 2, "a new group is below for a moment only"
    assert not a.links.all()
    b.level, state.due_s = GROUPS_LEVEL, 0.0
    a.links.tend([b.target()])
    await until(lambda: a.links.all())
    assert a.links.refused == {}


async def test_accepted_connections_are_few_and_one_a_node(
    made: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    b = await made(1, accepted_max=2)
    a, c, d = await made(2), await made(2, TWO), await made(3)
    near, far = await joined(a, b)
    c.links.tend([b.target()])
    await until(lambda: len(b.links.all()) == 2)
    d.links.tend([b.target()])
    await until(lambda: "is refused: 2 nodes of other groups are connected" in caplog.text)
    again = LinkTarget(1, ANY, b.target().addresses)
    a.links.tend([b.target(), again])
    await until(lambda: far not in b.links.all() and near not in a.links.all())
    assert sorted((link.group, link.node) for link in b.links.all()) == [(2, 1), (2, 2)]


async def test_the_time_for_the_handshake_ends_with_it(
    made: Callable[..., Any],
) -> None:
    a, b = await made(2, handshake_s=0.1), await made(1, waits=PeerWaits(handshake_s=0.1))
    ends = await joined(a, b)
    await asyncio.sleep(0.3)
    assert [*a.links.all(), *b.links.all()] == [*ends]


async def test_connections_with_a_key_that_is_gone_end(made: Callable[..., Any]) -> None:
    a, b = await made(2), await made(1)
    _, far = await joined(a, b)
    b.transport.set_keyring(Keyring((OLD, NEW), demanded=True))
    await asyncio.sleep(0)
    assert b.links.all() == [far]
    b.transport.set_keyring(Keyring((OLD,), demanded=True))
    await until(lambda: not a.links.all() and not b.links.all())


async def test_the_leader_is_sent_to_if_it_is_known(made: Callable[..., Any]) -> None:
    a, one, two = await made(2), await made(1), await made(1, TWO)
    assert not a.links.send(1, Kind.GROUPS, [])
    a.links.tend([one.target(), two.target()])
    await until(lambda: len(a.links.to(1)) == 2)
    assert a.links.leader_link(1) is None
    assert a.links.send(1, Kind.GROUPS, ["to any"])
    for leader, node in ((1, one), (2, two)):
        a.leaders[1] = leader
        assert a.links.leader_link(1).node == leader
        node.heard.clear()
        assert a.links.send(1, Kind.GROUPS, ["leader"])
        await until(partial(len, node.heard))
        assert node.heard[-1][2] == ["leader"]
    a.links.tend([one.target()])
    await until(lambda: len(a.links.to(1)) == 1)
    assert a.links.leader_link(1) is None
    assert a.links.to(3) == []


async def test_many_frames_are_handled_in_turns_and_in_order(made: Callable[..., Any]) -> None:
    a, b = await made(2), await made(1)
    near, far = await joined(a, b)
    buffer = b"".join(pack(Kind.GROUPS, [number]) for number in range(50))
    far.data_received(buffer)
    assert len(b.heard) == group_links.FRAMES_PER_TURN
    near.send(Kind.GROUPS, [50])
    await until(lambda: len(b.heard) == 51)
    assert [header for _, _, header, _ in b.heard] == [[number] for number in range(51)]


async def test_nothing_is_sent_to_one_that_does_not_read(made: Callable[..., Any]) -> None:
    a, b = await made(2), await made(1)
    near, far = await joined(a, b)
    payload = bytes(512 << 10)
    sent = 0
    while near.send(Kind.GROUPS, [], payload):  # the other side has no turn in which it could read
        sent += 1
        assert sent < 100
    assert sent >= 4
    far.abort()
    await until(lambda: not a.links.all())
    assert not near.send(Kind.GROUPS, [])


def test_a_kind_has_one_taker_and_belongs_to_the_channel() -> None:
    links = Node(2).links
    for kind in (Kind.GROUPS, Kind.FORWARD, Kind.HEARTBEAT):
        with pytest.raises(ValueError, match="is of another channel, or is taken"):
            links.takes(kind, lambda *_: None)


async def test_a_node_that_says_nothing_is_given_up(made: Callable[..., Any], listens: Listen) -> None:
    a = await made(2, handshake_s=0.05)
    a.links.tend([LinkTarget(1, ANY, (await listens(b"", hangs_up=False),))])
    await tried(a, (1, ANY), 1)
    assert not a.links.all()


@pytest.mark.parametrize(
    "says",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"",
        pack(Kind.WELCOME, ["c", 1, "u1-1", b""]),
        pack(Kind.WELCOME, ["c", [1], {}, 1, None]),
        pack(Kind.CHALLENGE, []),
        pack(Kind.CHALLENGE, [b"7" * 32, b"another"]),
        pack(Kind.REFUSED, []),
        pack(Kind.GROUPS, []),
    ],
)
async def test_what_else_may_answer(made: Callable[..., Any], listens: Listen, says: bytes) -> None:
    for keyring in (KEY, OPEN):
        a = await made(2, keyring=keyring)
        a.links.tend([LinkTarget(1, ANY, (await listens(says),))])
        await tried(a, (1, ANY), 1)
        assert not a.links.all()
