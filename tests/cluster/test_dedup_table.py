"""The table of docs/adr/0011-duplicate-sends.md, row by row: what the first send knew, what came second, what is kept.

Three real nodes of this process, each with its real ports, disks (in tmp_path) and threads; clients are bare sockets.
Disks are held by failpoints where a row needs a send to stay undecided.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from cluster.config.config import Config
from cluster.config.loading import load
from cluster.node.node import Node
from raftmq.local.init import create_data_dirs
from raftmq.local.process import free_base_port
from raftmq_wire.codec import FLAG_ONEWAY, Header, decode_header, encode_frame, ext_of
from raftmq_wire.message_format import decode_message
from statemachine.topics.topics import CreateTopic
from tests.support.first_leader import stand
from tests.support.pace import at_most
from tests.support.small_segments import LOG

PATIENCE_S = at_most(20)
DEADLINE_MS = 600
"""Time that a node looks for a leader, and that it waits before it says UNKNOWN where a test wants to hear that."""
KEY = "7F0000010000000000000000000000AA"
PID = bytes(range(16))


class Socket:
    """A client's connection: requests out, replies by opaque."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._opaque = 0
        self.replies: dict[int, Header] = {}

    def send(
        self, topic: str, body: bytes, *, key: str = KEY, oneway: bool = False, pid: bytes = b"", seq: int = 0
    ) -> int:
        """Writes a send to queue 0; returns its opaque."""
        self._opaque += 1
        ext = {
            "a": "g",
            "b": topic,
            "c": "TBW102",
            "d": "4",
            "e": "0",
            "f": "0",
            "g": "1700000000000",
            "h": "0",
            "i": f"UNIQ_KEY\x01{key}\x02TAGS\x01t\x02",
            "j": "0",
            "k": "false",
            "m": "false",
        }
        if pid:
            ext |= {"raftmqPid": pid.hex(), "raftmqSeq": str(seq), "raftmqLow": "1"}
        flag = FLAG_ONEWAY if oneway else 0
        self._writer.write(encode_frame(310, self._opaque, flag, ext=ext, body=body, language="JAVA"))
        return self._opaque

    async def answer(self, opaque: int) -> Header:
        """The reply to it; each opaque is answered once."""
        async with asyncio.timeout(PATIENCE_S):
            while opaque not in self.replies:
                length = int.from_bytes(await self._reader.readexactly(4), "big")
                frame = await self._reader.readexactly(length)
                header = decode_header(frame[0], frame[4 : 4 + int.from_bytes(frame[1:4], "big")])
                assert header.opaque not in self.replies, "answered twice"
                self.replies[header.opaque] = header
        return self.replies[opaque]

    async def code(self, opaque: int) -> int:
        return (await self.answer(opaque)).code

    def close(self) -> None:
        """Gone at once, replies unread."""
        self._writer.transport.abort()


class Three:
    """The cluster under test."""

    def __init__(self, nodes: dict[int, Node]) -> None:
        self.nodes = nodes
        self.sockets: list[Socket] = []

    async def until(self, reached: Callable[[], object], what: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not reached():
                await asyncio.sleep(0.005)
        assert reached(), what

    async def leader(self, besides: Node | None = None) -> Node:
        def found() -> list[Node]:
            return [node for node in self.nodes.values() if node.serving.services.writes_open() and node is not besides]

        await self.until(found, "a leader")
        return max(found(), key=lambda node: node.raw.term)

    async def followers(self) -> list[Node]:
        leader = await self.leader()
        return [node for node in self.nodes.values() if node is not leader]

    async def connect(self, node: Node) -> Socket:
        listener = next(one for one in node.config.listeners if one.name == "broker")
        socket = Socket(*await asyncio.open_connection(listener.bind, listener.port))
        self.sockets.append(socket)
        return socket

    async def topic(self, name: str, **attributes: str) -> None:
        leader = await self.leader()
        done: list[Any] = []
        fields = {"name": name, "read_queues": 1, "write_queues": 1, "perm": 6, "attributes": attributes}
        leader.serving.services.propose([CreateTopic(fields, False)], done.append)
        await self.until(lambda: done, "topic made")
        assert done[0].results[0].ok, done

    def hold(self, *nodes: Node) -> None:
        """Their disks take nothing more, until `release`; what is sent meanwhile is soon answered UNKNOWN."""
        self.decide_within(DEADLINE_MS)
        for node in nodes:
            node.failpoints.set("append.fdatasync", "hold")

    def release(self) -> None:
        self.be_patient()
        for node in self.nodes.values():
            node.failpoints.clear()

    def be_patient(self) -> None:
        """Has every later send decided before it is answered, however busy the machine is."""
        self.decide_within(round(1000 * PATIENCE_S))

    def decide_within(self, deadline_ms: int) -> None:
        for node in self.nodes.values():
            changed = replace(node.config, send=replace(node.config.send, deadline_ms=deadline_ms))
            node.serving.proposals.reload(changed)
            node.serving.remoting.forwarder.reload(changed)

    async def undecided(self, leader: Node, count: int) -> None:
        """Waits until the leader has this many sends of clients without a decision."""
        proposals = leader.serving.proposals

        def open_sends() -> int:
            return sum(len(entry.sends) for entry in proposals._pending.values()) + len(proposals._sends.waiting)

        await self.until(lambda: open_sends() == count, f"{count} sends under way")

    async def stop(self, node: Node) -> None:
        """The node goes away at once, as if it were told twice; what its clients were told dies with it."""
        del self.nodes[node.node_id]
        node.stop()
        node.stop()
        await node.close()

    async def stored(self, topic: str) -> Counter[bytes]:
        """Bodies on every node, which must agree."""
        self.release()
        leader = await self.leader()
        await self.until(
            lambda: {node.state.applied.index for node in self.nodes.values()} == {leader.raw.last_index},
            "equal logs",
        )
        found = [bodies(node, topic) for node in self.nodes.values()]
        assert all(one == found[0] for one in found), found
        return Counter(found[0])


def bodies(node: Node, topic: str) -> list[bytes]:
    """None yet from a node that has not applied the topic."""
    if topic not in node.state.topics:
        return []
    topic_id = node.state.topics[topic].id
    items = node.state.fetch(topic_id, 0, 0, node.state.max_offset(topic_id, 0))
    return [decode_message(node.serving.services.read_log(item.position, item.size))[0].body for item in items]


def place(reply: Header) -> tuple[str, str, str]:
    """Queue, offset, and the position that the message id carries behind the address of who answers."""
    ext = ext_of(reply)
    return ext["queueId"], ext["queueOffset"], ext["msgId"][-16:]


def config_files(directory: Path) -> list[Path]:
    base = free_base_port(12)
    peers = "".join(
        f'[[peers]]\nid = {at}\nport = {base + at}\n[peers.listeners]\nbroker = "127.0.0.1:{base + 4 + at}"\n'
        for at in (1, 2, 3)
    )
    paths = []
    for at in (1, 2, 3):
        path = directory / f"{at}.toml"
        path.write_text(
            f'[node]\nid = {at}\ndata_dir = "{directory}/data{at}"\n{peers}'
            f'[[listeners]]\nname = "broker"\nport = {base + 4 + at}\n[peer]\nport = {base + at}\n'
            f"[admin]\nport = {base + 8 + at}\n[send]\ndeadline_ms = {DEADLINE_MS}\nleader_wait_ms = {DEADLINE_MS}\n"
            f"[failpoints]\nenabled = true\n{LOG}"
        )
        paths.append(path)
    return paths


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Three]:
    paths = config_files(tmp_path)
    create_data_dirs(paths)
    configs: list[Config] = [load(path) for path in paths]
    nodes = {config.node.id: Node(config) for config in configs}
    cluster = Three(nodes)
    try:
        for node in nodes.values():
            await node.start()
        stand(nodes[1])
        await cluster.topic("T")
        cluster.be_patient()
        yield cluster
    finally:
        for socket in cluster.sockets:
            socket.close()
        for node in list(cluster.nodes.values()):
            await node.close()


async def test_same_object_sent_again_after_its_answer(three: Three) -> None:
    socket = await three.connect(await three.leader())
    for _ in range(2):
        assert await socket.code(socket.send("T", b"m")) == 0
    assert await three.stored("T") == {b"m": 2}


async def test_same_object_many_in_flight_at_once(three: Three) -> None:
    socket = await three.connect(await three.leader())
    sent = [socket.send("T", b"m") for _ in range(1000)]
    assert {await socket.code(opaque) for opaque in sent} == {0}
    assert await three.stored("T") == {b"m": 1000}


async def test_same_object_in_flight_at_once_behind_a_follower(three: Three) -> None:
    socket = await three.connect((await three.followers())[0])
    sent = [socket.send("T", b"m") for _ in range(100)]
    assert {await socket.code(opaque) for opaque in sent} == {0}
    assert await three.stored("T") == {b"m": 100}


@pytest.mark.parametrize("through", ["leader", "follower"])
async def test_unknown_then_a_retry_to_the_same_node(three: Three, through: str) -> None:
    """Once while the first is undecided, once after it was stored."""
    followers = await three.followers()
    node = followers[0] if through == "follower" else await three.leader()
    three.hold(*followers)
    socket = await three.connect(node)
    first = [socket.send("T", body) for body in (b"during", b"after")]
    for opaque in first:
        reply = await socket.answer(opaque)
        assert reply.code == 1
        assert reply.remark is not None
        assert reply.remark.startswith("[UNKNOWN]")
    three.be_patient()
    during = socket.send("T", b"during")
    await asyncio.sleep(0)
    three.release()
    assert await socket.code(during) == 0
    after = socket.send("T", b"after")
    assert await socket.code(after) == 0
    assert await three.stored("T") == {b"during": 1, b"after": 1}
    assert await socket.code(socket.send("T", b"after")) == 0, "the record is used up: this is a new send"
    assert await three.stored("T") == {b"during": 1, b"after": 2}


@pytest.mark.parametrize("through", ["leader", "follower"])
async def test_connection_lost_before_the_reply(three: Three, through: str) -> None:
    followers, leader = await three.followers(), await three.leader()
    node = followers[0] if through == "follower" else leader
    three.hold(*followers)
    socket = await three.connect(node)
    for body in (b"during", b"after"):
        socket.send("T", body)
    await three.undecided(leader, 2)
    socket.close()
    await three.until(lambda: not node.serving.remoting.router.connections, "the node notices")
    again = await three.connect(node)
    three.be_patient()
    during = again.send("T", b"during")
    await asyncio.sleep(0)
    three.release()
    assert await again.code(during) == 0
    assert await again.code(again.send("T", b"after")) == 0
    assert await three.stored("T") == {b"during": 1, b"after": 1}
    assert await again.code(again.send("T", b"during")) == 0
    assert await three.stored("T") == {b"during": 2, b"after": 1}


async def test_k_unanswered_absorb_k_arrivals(three: Three) -> None:
    """Ten in flight under one key, the connection is lost: ten later arrivals are retries, the eleventh is not."""
    followers, leader = await three.followers(), await three.leader()
    three.hold(*followers)
    socket = await three.connect(leader)
    for _ in range(10):
        socket.send("T", b"m")
    await three.undecided(leader, 10)
    socket.close()
    await three.until(lambda: not leader.serving.remoting.router.connections, "the node notices")
    three.release()
    again = await three.connect(leader)
    assert {await again.code(again.send("T", b"m")) for _ in range(10)} == {0}
    assert await three.stored("T") == {b"m": 10}
    assert await again.code(again.send("T", b"m")) == 0
    assert await again.code(again.send("T", b"other body")) == 0
    assert await three.stored("T") == {b"m": 11, b"other body": 1}


async def test_leader_deposed_but_alive(three: Three) -> None:
    """The retry reaches the node that said UNKNOWN; it hands it on under the first one's identity."""
    followers, old = await three.followers(), await three.leader()
    three.hold(*followers)
    socket = await three.connect(old)
    assert await socket.code(socket.send("T", b"m")) == 1
    three.release()
    await three.until(lambda: followers[0].raw.last_index == old.raw.last_index == old.raw.commit_index, "caught up")
    old.driver.transfer(followers[0].node_id)
    await three.leader(besides=old)
    assert await socket.code(socket.send("T", b"m")) == 0
    assert await three.stored("T") == {b"m": 1}


async def test_a_refused_retry_leaves_the_next_one_its_identity(three: Three) -> None:
    """UNKNOWN, then a retry while there is no leader (14), then a retry that is taken."""
    followers, old = await three.followers(), await three.leader()
    three.hold(*followers)
    socket = await three.connect(old)
    assert await socket.code(socket.send("T", b"m")) == 1
    three.release()
    await three.until(lambda: bodies(followers[0], "T") == [b"m"], "stored")
    for node in followers:
        node.driver._ticks = 0
        node.failpoints.set("peer.send", "hold")
    await three.until(lambda: not old.serving.services.writes_open(), "it steps down")
    assert await socket.code(socket.send("T", b"m")) == 14
    three.release()
    await three.leader()
    codes = [await socket.code(socket.send("T", b"m"))]
    while codes[-1] == 14:
        codes.append(await socket.code(socket.send("T", b"m")))
    assert codes[-1] == 0
    assert await three.stored("T") == {b"m": 1}


async def test_through_a_follower_and_the_leader_goes(three: Three) -> None:
    followers, leader = await three.followers(), await three.leader()
    three.hold(leader)
    for node in followers:
        node.failpoints.set("apply.batch", "hold")
    three.be_patient()
    socket = await three.connect(followers[0])
    opaque = socket.send("T", b"m")
    await three.undecided(leader, 1)
    await three.until(lambda: all(node.raw.persisted_index == leader.raw.last_index for node in followers), "copied")
    await three.stop(leader)
    three.release()
    assert await socket.code(opaque) == 0
    assert await three.stored("T") == {b"m": 1}


async def test_leader_gone_and_retried_at_the_new_one_is_kept_twice(three: Three) -> None:
    """Nobody knows that the first was unanswered: the duplicate is kept, as RocketMQ would."""
    leader = await three.leader()
    socket = await three.connect(leader)
    assert await socket.code(socket.send("T", b"m")) == 0
    await three.stop(leader)
    again = await three.connect(await three.leader())
    assert await again.code(again.send("T", b"m")) == 0
    assert await three.stored("T") == {b"m": 2}


async def test_reply_written_and_lost_is_kept_twice(three: Three) -> None:
    leader = await three.leader()
    socket = await three.connect(leader)
    socket.send("T", b"m")
    await three.until(lambda: bodies(leader, "T") and not leader.serving.proposals.gate.sends.bytes, "answered")
    socket.close()
    await three.until(lambda: not leader.serving.remoting.router.connections, "the node notices")
    again = await three.connect(leader)
    assert await again.code(again.send("T", b"m")) == 0
    assert await three.stored("T") == {b"m": 2}


async def test_oneway(three: Three) -> None:
    """Never answered by design, so never remembered: also when its connection closes at once."""
    followers, leader = await three.followers(), await three.leader()
    three.hold(*followers)
    socket = await three.connect(leader)
    for _ in range(2):
        socket.send("T", b"m", oneway=True)
    await three.undecided(leader, 2)
    socket.close()
    await three.until(lambda: not leader.serving.remoting.router.connections, "the node notices")
    three.release()
    again = await three.connect(leader)
    assert await again.code(again.send("T", b"m")) == 0
    assert await three.stored("T") == {b"m": 3}
    assert set(again.replies) == {1}


@pytest.mark.parametrize("second", ["same node", "follower", "next leader"])
async def test_our_client_s_identity(three: Three, second: str) -> None:
    """Answered or not, wherever it comes again: once; and the second answer is the first one's."""
    leader, followers = await three.leader(), await three.followers()
    socket = await three.connect(leader)
    first = await socket.answer(socket.send("T", b"m", pid=PID, seq=1))
    if second == "next leader":
        await three.stop(leader)
    node = {"same node": leader, "follower": followers[0]}.get(second) or await three.leader()
    again = await three.connect(node)
    reply = await again.answer(again.send("T", b"m", pid=PID, seq=1))
    assert reply.code == 0
    assert place(reply) == place(first)
    assert await again.code(again.send("T", b"m", pid=PID, seq=2)) == 0
    assert await three.stored("T") == {b"m": 2}


async def test_our_client_repeats_while_the_first_is_under_way(three: Three) -> None:
    followers, leader = await three.followers(), await three.leader()
    three.hold(*followers)
    socket, other = await three.connect(leader), await three.connect(followers[0])
    socket.send("T", b"m", pid=PID, seq=1)
    await three.undecided(leader, 1)
    three.be_patient()
    again = other.send("T", b"m", pid=PID, seq=1)
    await three.until(lambda: followers[0].serving.remoting.forwarder.gate.forwarded.bytes, "handed on")
    three.release()
    assert await other.code(again) == 0
    assert await three.stored("T") == {b"m": 1}


async def test_dedup_off(three: Three) -> None:
    """No identities: even a named send, and a retry of an unanswered one, are new."""
    await three.topic("OFF", dedup="off")
    followers, leader = await three.followers(), await three.leader()
    three.hold(*followers)
    socket = await three.connect(leader)
    assert await socket.code(socket.send("OFF", b"m")) == 1
    three.release()
    assert await socket.code(socket.send("OFF", b"m")) == 0
    for _ in range(2):
        assert await socket.code(socket.send("OFF", b"named", pid=PID, seq=1)) == 0
    assert await three.stored("OFF") == {b"m": 2, b"named": 2}


async def test_dedup_strict(three: Three) -> None:
    """Any second message with the same key and body is the first one: answered, in flight, or on the next leader."""
    await three.topic("STRICT", dedup="strict")
    leader = await three.leader()
    socket = await three.connect(leader)
    answers = [await socket.answer(socket.send("STRICT", b"m")) for _ in range(2)]
    assert [answer.code for answer in answers] == [0, 0]
    assert place(answers[0]) == place(answers[1])
    sent = [socket.send("STRICT", b"pipelined") for _ in range(50)]
    assert {await socket.code(opaque) for opaque in sent} == {0}
    assert await socket.code(socket.send("STRICT", b"m", key="other")) == 0
    assert await three.stored("STRICT") == {b"m": 2, b"pipelined": 1}
    await three.stop(leader)
    again = await three.connect(await three.leader())
    assert await again.code(again.send("STRICT", b"m")) == 0
    assert await three.stored("STRICT") == {b"m": 2, b"pipelined": 1}


async def test_dedup_strict_says_unknown_while_the_first_is_undecided(three: Three) -> None:
    await three.topic("STRICT", dedup="strict")
    followers, leader = await three.followers(), await three.leader()
    three.hold(*followers)
    one, two = await three.connect(leader), await three.connect(leader)
    first = one.send("STRICT", b"m")
    await three.undecided(leader, 1)
    second = two.send("STRICT", b"m")
    assert [await one.code(first), await two.code(second)] == [1, 1]
    assert await three.stored("STRICT") == {b"m": 1}
