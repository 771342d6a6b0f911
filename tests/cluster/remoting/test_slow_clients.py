"""Clients that ask for much and take nothing, or begin frames and do not finish them: what a node holds for them is
bounded before the work, and everybody else is served meanwhile. Real sockets, sizes reduced by the limits."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import ClassVar

import pytest

from cluster.config.config import Config
from cluster.config.loading import load
from cluster.config.ranges import ranges_of
from cluster.node.node import Node
from cluster.remoting.connection import server
from raftmq_wire.codec import FLAG_ONEWAY, HEADER_BYTES_MAX, decode_header, encode_frame
from raftmq_wire.codes import ResponseCode
from tests.support.certificates import make_files
from tests.support.first_leader import stand
from tests.support.lone_node import write_lone_node
from tests.support.small_segments import LOG
from tests.support.wait_until import PATIENCE_S, until

KIB, MIB = 1 << 10, 1 << 20
MESSAGE = 60 * KIB
PULL_BYTES = 512 * KIB
LIMITS = {
    "frame_bytes_max": 2 * MIB,
    "message_bytes_max": 512 * KIB,
    "connection_inflight_bytes_max": 2 * MIB,
    "node_inflight_bytes_max": 4 * MIB,
    "connection_unsent_bytes_max": MIB,
    "node_unsent_bytes_max": 2 * MIB,
    "stalled_ms": 20_000,
}
SLACK = MIB
"""One answer, and what transports hold uncounted."""

Start = Callable[..., Awaitable[Node]]


over_tls_too = pytest.mark.parametrize("start", ["plain", "tls"], indirect=True)
"""What is held for a client is counted behind TLS as well: a transport that hides it would break every bound."""


@pytest.fixture
async def start(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Start]:
    running: list[Node] = []
    files = make_files(tmp_path / "pki") if getattr(request, "param", "plain") == "tls" else None
    Client.secure = ssl.create_default_context(cafile=files.path("ca.crt")) if files is not None else None
    tls = files.section(mode="enforcing") if files is not None else ""

    async def start(log: str = LOG, **limits: int) -> Node:
        rows = "".join(f"{key} = {value}\n" for key, value in {**LIMITS, **limits}.items())
        path, _ = write_lone_node(tmp_path, f"{log}[limits]\n{rows}{tls}")
        node = Node(load(path))
        running.append(node)
        await node.start()
        stand(node)
        await until(node.serving.services.writes_open)
        return node

    yield start
    for client in Client.opened:
        client.writer.close()
    Client.opened.clear()
    for node in running:
        await node.close()


class Client:
    """A connection that reads when the test says so."""

    opened: ClassVar[list[Client]] = []
    secure: ClassVar[ssl.SSLContext | None] = None

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.opened.append(self)
        self.writer.transport.set_write_buffer_limits(1 << 30)

    @classmethod
    async def to(cls, node: Node) -> Client:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * KIB)  # else the kernel takes megabytes for it
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", node.config.listeners[0].port))
        tls = {"ssl": cls.secure, "server_hostname": "127.0.0.1"} if cls.secure is not None else {}
        return cls(*await asyncio.open_connection(sock=connection, limit=64 * KIB, **tls))  # type: ignore[arg-type]

    def pull(self, opaque: int, offset: int = 0, suspend_ms: int = 0) -> None:
        ext = {
            "consumerGroup": "g",
            "topic": "T",
            "queueId": "0",
            "queueOffset": str(offset),
            "maxMsgNums": "1024",
            "sysFlag": "6",
            "commitOffset": "0",
            "suspendTimeoutMillis": str(suspend_ms),
            "subVersion": "0",
            "subscription": "*",
            "expressionType": "TAG",
            "maxMsgBytes": str(PULL_BYTES),
        }
        self.writer.write(encode_frame(11, opaque, 0, ext=ext))

    def talks_to(self, connection: server.RemotingConnection) -> bool:
        """Returns True if `connection` is the node's end of this one."""
        return connection.peer_address == self.writer.get_extra_info("sockname")

    async def answer(self) -> tuple[int, int, int]:
        """(opaque, code, bytes of the body) of the next one."""
        async with asyncio.timeout(PATIENCE_S):
            length = int.from_bytes(await self.reader.readexactly(4), "big")
            frame = await self.reader.readexactly(length)
        end = 4 + int.from_bytes(frame[1:4], "big")
        header = decode_header(frame[0], frame[4:end])
        return header.opaque, header.code, length - end

    async def ask(self, frame: bytes) -> int:
        self.writer.write(frame)
        return (await self.answer())[1]

    async def is_closed(self) -> bool:
        async with asyncio.timeout(PATIENCE_S):
            try:
                while await self.reader.read(MIB):
                    pass
            except ConnectionError:
                pass
            return True


def send(size: int, opaque: int = 1) -> bytes:
    fields = {"a": "g", "b": "T", "c": "TBW102", "d": "1", "e": "0", "i": "", "m": "false"}
    return encode_frame(310, opaque, 0, ext=fields, body=bytes(size))


HEARTBEAT = encode_frame(34, 7, 0, body=b'{"clientID":"honest","producerDataSet":[{"groupName":"p"}]}')


async def fill(node: Node, messages: int = 30) -> None:
    client = await Client.to(node)
    for _ in range(messages):
        assert await client.ask(send(MESSAGE)) == 0
    client.writer.close()


def kept_for_clients(node: Node) -> int:
    """Bytes that the node's transports hold, whatever its own account says."""
    transports = [connection._transport for connection in node.serving.remoting.router.connections]
    return sum(transport.get_write_buffer_size() for transport in transports if transport is not None)


def begun_by_clients(node: Node) -> int:
    """Bytes of unfinished frames that the node holds, whatever its own account says."""
    return sum(connection._buffer.buffered for connection in node.serving.remoting.router.connections)


async def highest(measure: Callable[[Node], int], node: Node, seconds: float) -> int:
    most = 0
    for _ in range(int(seconds / 0.01)):
        most = max(most, measure(node))
        await asyncio.sleep(0.01)
    return most


# --- answers that nobody takes ---------------------------------------------------------------------------------------


@over_tls_too
async def test_pipelined_pulls_hold_no_more_than_the_limit_and_are_all_answered(start: Start) -> None:
    node = await start()
    await fill(node)
    greedy = await Client.to(node)
    for opaque in range(400):
        greedy.pull(opaque)
    honest = await Client.to(node)
    most = 0
    for _ in range(20):
        assert await honest.ask(HEARTBEAT) == 0
        most = max(most, await highest(kept_for_clients, node, 0.02))
    assert 0 < most <= LIMITS["connection_unsent_bytes_max"] + SLACK
    for opaque in range(400):
        assert (await greedy.answer())[:2] == (opaque, 0), "in order, each once"
    await until(lambda: node.serving.remoting.router.memory.unsent.taken == 0)
    assert await greedy.ask(HEARTBEAT) == 0


@over_tls_too
async def test_many_that_take_nothing_hold_no_more_than_the_node_may(start: Start) -> None:
    node = await start()
    await fill(node)
    greedy = [await Client.to(node) for _ in range(10)]
    for client in greedy:
        for opaque in range(20):
            client.pull(opaque)
    most = await highest(kept_for_clients, node, 0.5)
    first = 10 * 256 * KIB
    assert LIMITS["node_unsent_bytes_max"] // 2 < most <= LIMITS["node_unsent_bytes_max"] + SLACK + first
    honest = await Client.to(node)
    assert await honest.ask(HEARTBEAT) == 0
    assert await honest.ask(send(10)) == 0
    answers = await asyncio.gather(*(_all_answers(client, 20) for client in greedy))  # they read after all
    assert all(answer == {(opaque, 0) for opaque in range(20)} for answer in answers)
    assert node.serving.remoting.router.memory.unsent.taken == 0


@over_tls_too
async def test_parked_pulls_that_are_woken_together_draw_on_the_same_room(start: Start) -> None:
    node = await start()
    await fill(node, 1)
    waiting = [await Client.to(node) for _ in range(20)]
    for client in waiting:
        for opaque in range(20):
            client.pull(opaque, offset=1, suspend_ms=15_000)
    await until(lambda: node.serving.broker.pulls.long_polls.count == 400)
    honest = await Client.to(node)
    assert await honest.ask(send(500 * KIB)) == 0
    most = await highest(kept_for_clients, node, 0.5)
    assert 0 < most <= LIMITS["node_unsent_bytes_max"] + 2 * SLACK
    assert await honest.ask(HEARTBEAT) == 0
    answers = await asyncio.gather(*(_all_answers(client, 20) for client in waiting))
    assert all(answer == {(opaque, 0) for opaque in range(20)} for answer in answers)
    assert node.serving.remoting.router.memory.unsent.taken == 0


async def _all_answers(client: Client, count: int) -> set[tuple[int, int]]:
    return {(await client.answer())[:2] for _ in range(count)}


async def test_lists_and_lookups_wait_for_room_too(start: Start) -> None:
    node = await start()
    await fill(node, 1)
    message = bytes.fromhex("7f00000100000000")
    greedy = await Client.to(node)
    honest = await Client.to(node)
    for opaque in range(2000):
        ext = {"offset": str(node.state.fetch(node.state.topics["T"].id, 0, 0, 1)[0].position), "msgId": message.hex()}
        greedy.writer.write(encode_frame(33, opaque, 0, ext=ext))
    most = await highest(kept_for_clients, node, 0.5)
    assert 0 < most <= LIMITS["connection_unsent_bytes_max"] + SLACK
    assert await honest.ask(HEARTBEAT) == 0
    for opaque in range(2000):
        assert (await greedy.answer())[:2] == (opaque, 0)


@over_tls_too
async def test_who_takes_nothing_is_closed_and_who_moves_lives(start: Start) -> None:
    node = await start(stalled_ms=1500)  # the system's buffers take a good part of a second to move again
    await fill(node)
    idle, slow = await Client.to(node), await Client.to(node)
    for client in (idle, slow):
        for opaque in range(60):
            client.pull(opaque)
    taken = 0
    await until(lambda: len(node.serving.remoting.router.connections) == 2)  # over TLS the client is done first
    while len(node.serving.remoting.router.connections) > 1:
        taken += len(await slow.reader.read(64 * KIB))
        await asyncio.sleep(0.02)
    assert await idle.is_closed()
    assert node.serving.remoting.router.memory.unsent.taken <= LIMITS["connection_unsent_bytes_max"] + SLACK
    for _ in range(50):
        taken += len(await slow.reader.read(64 * KIB))
        await asyncio.sleep(0.02)
    assert len(node.serving.remoting.router.connections) == 1
    slow.writer.close()
    await until(lambda: node.serving.remoting.router.memory.unsent.taken == 0)


# --- frames that nobody finishes -------------------------------------------------------------------------------------


async def test_halves_of_oversized_frames_keep_no_message_out(start: Start) -> None:
    node = await start()
    halves = [await Client.to(node) for _ in range(16)]
    for half in halves:
        half.writer.write((2 * MIB - 100).to_bytes(4, "big") + bytes(1300 * KIB))
    honest = await Client.to(node)
    most = 0
    for _ in range(5):
        frame = send(500 * KIB)
        for at in range(0, len(frame), 100 * KIB):
            honest.writer.write(frame[at : at + 100 * KIB])
            most = max(most, await highest(begun_by_clients, node, 0.03))
        assert (await honest.answer())[1] == 0
    assert most <= LIMITS["node_inflight_bytes_max"] + 17 * 512 * KIB
    assert node.serving.remoting.router.memory.unfinished.taken <= LIMITS["node_inflight_bytes_max"]
    for half in halves:
        half.writer.close()
    await until(lambda: len(node.serving.remoting.router.connections) == 1)
    assert node.serving.remoting.router.memory.unfinished.taken == 0


async def test_halves_of_messages_make_way_for_messages(start: Start) -> None:
    node = await start()
    halves = [await Client.to(node) for _ in range(30)]
    for half in halves:
        half.writer.write(send(510 * KIB)[: 300 * KIB])
    await until(lambda: node.serving.remoting.router.memory.unfinished.taken > 3 * MIB)
    honest, small = await Client.to(node), await Client.to(node)
    frame = send(500 * KIB)
    honest.writer.write(frame[: 300 * KIB])
    await asyncio.sleep(0.1)
    honest.writer.write(frame[300 * KIB :])
    assert await small.ask(send(100 * KIB)) == 0, "small ones never wait"
    assert (await honest.answer())[1] == 0
    assert node.serving.remoting.router.memory.unfinished.taken <= LIMITS["node_inflight_bytes_max"]


async def test_idle_halves_are_closed_and_slow_links_live(start: Start) -> None:
    node = await start(stalled_ms=700)
    idle, slow = await Client.to(node), await Client.to(node)
    frame = send(300 * KIB)
    idle.writer.write(frame[:1000])
    for at in range(0, len(frame), 8 * KIB):
        slow.writer.write(frame[at : at + 8 * KIB])
        await asyncio.sleep(0.05)
    assert (await slow.answer())[1] == 0
    assert await idle.is_closed()
    assert len(node.serving.remoting.router.connections) == 1


async def test_a_frame_that_is_too_large_leaves_nothing_in_the_account(start: Start) -> None:
    node = await start()
    for _ in range(3):
        client = await Client.to(node)
        begun = send(510 * KIB)
        client.writer.write(begun[: 300 * KIB])
        await until(lambda: node.serving.remoting.router.memory.unfinished.taken > 0)
        client.writer.write(begun[300 * KIB :] + (LIMITS["frame_bytes_max"] + 1).to_bytes(4, "big") + bytes(200 * KIB))
        assert await client.is_closed()
        await until(lambda: not node.serving.remoting.router.connections)
        assert node.serving.remoting.router.memory.unfinished.taken == 0
        assert node.serving.remoting.router.memory.unsent.taken == 0
        assert len(node.serving.remoting.router.clients.stuck) == 0


async def test_a_header_that_is_too_long_is_not_waited_for(start: Start) -> None:
    """16 MB of it, time after time, took so much of a node's loop that its leadership was lost."""
    node = await start(frame_bytes_max=2 << 20, connection_inflight_bytes_max=2 << 20)
    client = await Client.to(node)
    length, header = (2 << 20).to_bytes(4, "big"), (HEADER_BYTES_MAX + 1).to_bytes(4, "big")
    client.writer.write(length + header + bytes(64 * KIB))
    assert await client.is_closed(), "most of it is still to come"
    assert node.serving.remoting.router.memory.unfinished.taken == 0


@pytest.mark.parametrize(("code", "begun"), [(200, 64 * KIB), (34, 64 * KIB), (34, 150), (351, 64 * KIB)])
async def test_a_body_that_is_too_long_is_refused_before_it_comes(start: Start, code: int, begun: int) -> None:
    """15 MB of group configuration were received, joined and copied, only to be refused: 50 ms in which the leader did
    nothing else. Whatever follows on the connection is served."""
    node = await start(
        frame_bytes_max=16 * MIB, connection_inflight_bytes_max=16 * MIB, node_inflight_bytes_max=32 * MIB
    )
    client = await Client.to(node)
    frame = encode_frame(code, 9, 0, body=bytes(6 * MIB))
    client.writer.write(frame[:begun])
    assert (await client.answer())[:2] == (9, ResponseCode.INVALID_PARAMETER), "most of it is still to come"
    assert node.serving.remoting.router.memory.unfinished.taken == 0
    client.writer.write(frame[begun:])
    assert await client.ask(HEARTBEAT) == 0


def oversized(flag: int = 0) -> bytes:
    return encode_frame(310, 9, flag, ext={"b": "T"}, body=bytes(3 * MIB))


@pytest.mark.parametrize("cuts", [[64 * KIB], [150], [4, 64 * KIB], [2, 6, 9, 40, 150]])
@over_tls_too
async def test_an_oversized_frame_is_answered_by_its_header_before_its_connection_ends(
    start: Start, cuts: list[int]
) -> None:
    """The client learns that its message is too large, and sends it to no other node."""
    node = await start()
    client, other = await Client.to(node), await Client.to(node)
    frame, at = oversized(), 0
    for cut in cuts:
        client.writer.write(frame[at:cut])
        await asyncio.sleep(0.02)
        at = cut
    assert (await client.answer())[:2] == (9, ResponseCode.MESSAGE_ILLEGAL), "most of it is still to come"
    assert await client.reader.read() == b"", "this side is closed, and nothing is cut off"
    client.writer.close()
    await until(lambda: len(node.serving.remoting.router.connections) == 1)
    assert await other.ask(HEARTBEAT) == 0
    assert (node.serving.remoting.router.memory.unfinished.taken, node.serving.remoting.router.memory.unsent.taken) == (
        0,
        0,
    )


@over_tls_too
async def test_who_sends_all_of_an_oversized_frame_reads_its_answer_afterwards(start: Start) -> None:
    """The node reads and drops the rest: with unread bytes the end of the connection would destroy the answer."""
    node = await start()
    client = await Client.to(node)
    client.writer.write(oversized())
    await client.writer.drain()
    assert (await client.answer())[:2] == (9, ResponseCode.MESSAGE_ILLEGAL)
    assert begun_by_clients(node) < 128 * KIB
    client.writer.close()


async def test_an_oversized_frame_that_is_not_to_be_answered_ends_its_connection(start: Start) -> None:
    node = await start()
    client = await Client.to(node)
    client.writer.write(oversized(FLAG_ONEWAY)[: 64 * KIB])
    assert await client.reader.read() == b""
    client.writer.close()


async def test_who_does_not_leave_after_an_oversized_frame_is_cut_off(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "FAREWELL_S", 0.1)
    node = await start()
    client, silent = await Client.to(node), await Client.to(node)
    client.writer.write(oversized()[: 64 * KIB])
    await client.answer()
    await until(lambda: len(node.serving.remoting.router.connections) == 1)
    silent.writer.close()


async def test_an_oversized_frame_leaves_nothing_of_a_large_one_before_it_in_the_account(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "FAREWELL_S", 600.0)
    node = await start(frame_bytes_max=2 * MIB, connection_inflight_bytes_max=2 * MIB)
    client = await Client.to(node)
    before = send(510 * KIB)
    client.writer.write(before[: 300 * KIB])
    await until(lambda: node.serving.remoting.router.memory.unfinished.taken > 0)
    client.writer.write(before[300 * KIB :] + oversized()[: 64 * KIB])
    assert (await client.answer())[1] == ResponseCode.MESSAGE_ILLEGAL
    assert (node.serving.remoting.router.memory.unfinished.taken, len(node.serving.remoting.router.connections)) == (
        0,
        1,
    )
    client.writer.close()


async def test_a_long_body_that_nobody_waits_an_answer_for_is_dropped(start: Start) -> None:
    node = await start(
        frame_bytes_max=16 * MIB, connection_inflight_bytes_max=16 * MIB, node_inflight_bytes_max=32 * MIB
    )
    client = await Client.to(node)
    client.writer.write(encode_frame(34, 9, FLAG_ONEWAY, body=bytes(6 * MIB)))
    assert await client.ask(HEARTBEAT) == 0
    assert node.serving.remoting.router.memory.unfinished.taken == 0


async def test_the_largest_message_that_can_be_allowed_is_stored(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 MiB could be allowed, and an entry of the log has 32: the client was told code 1, as of a write whose fate
    nobody knows, and sent the message again and again."""
    monkeypatch.setitem(LIMITS, "message_bytes_max", most := ranges_of(Config)["limits.message_bytes_max"].high)
    node = await start(
        log="[log]\nsegment_size_bytes = 67108864\n",
        frame_bytes_max=48 * MIB,
        connection_inflight_bytes_max=64 * MIB,
        node_inflight_bytes_max=128 * MIB,
    )
    client = await Client.to(node)
    assert await client.ask(send(most)) == ResponseCode.SUCCESS
    assert await client.ask(send(most + 1)) == ResponseCode.MESSAGE_ILLEGAL


async def test_a_client_that_is_gone_leaves_no_cycle_of_objects(start: Start) -> None:
    """Cycles stay until the garbage collector looks at all that is there, and that is rare (`runtime.garbage`)."""
    node = await start()
    first = await Client.to(node)
    assert await first.ask(send(2 * KIB)) == ResponseCode.SUCCESS
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        client = await Client.to(node)
        client.pull(1, offset=1, suspend_ms=60_000)
        await until(lambda: node.serving.broker.pulls.long_polls.count == 1)
        client.writer.close()
        await until(lambda: not node.serving.broker.pulls.long_polls.count)
        gc.collect()
        left = [type(one).__qualname__ for one in gc.garbage if type(one).__module__.startswith("cluster.")]
    finally:
        gc.set_debug(0)
        gc.enable()
        gc.garbage.clear()
    assert left == []


# --- connections that the node ends ----------------------------------------------------------------------------------


async def test_requests_that_wait_for_their_turn_are_dropped_when_the_node_ends_the_connection(start: Start) -> None:
    """A node ends a connection because its user was removed, for example. Nobody would learn the outcome."""
    node = await start()
    await fill(node, 1)
    ended = await Client.to(node)
    assert await ended.ask(HEARTBEAT) == 0
    (connection,) = filter(ended.talks_to, node.serving.remoting.router.connections)
    ended.writer.write(HEARTBEAT * 3000 + send(10))
    await until(lambda: connection._turn_wanted, every_s=0)
    assert len(node.state.fetch(node.state.topics["T"].id, 0, 0, 9)) == 1
    connection.leave_now()
    assert await ended.is_closed()
    await until(lambda: connection.closed)
    honest = await Client.to(node)
    assert await honest.ask(send(10)) == 0
    assert len(node.state.fetch(node.state.topics["T"].id, 0, 0, 9)) == 2
