"""An orderly stop: somebody else leads, every request is answered, clients are sent away, and it ends in any case."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.config.loading import load
from cluster.node import orderly_stop
from cluster.node.node import Node
from raftlog.types import Role
from raftmq.local.init import create_data_dirs
from raftmq.local.process import free_base_port
from raftmq_wire.codec import decode_header, encode_frame
from tests.support.first_leader import stand
from tests.support.small_segments import LOG
from tests.support.wait_until import until


def toml(folder: Path, base: int, number: int, count: int) -> str:
    peers = "".join(
        f'[[peers]]\nid = {i}\nport = {base + 3 * i}\nlisteners = {{broker = "127.0.0.1:{base + 3 * i + 1}"}}\n'
        for i in range(1, count + 1)
    )
    port = base + 3 * number
    return (
        f'[node]\nid = {number}\ndata_dir = "{folder}/n{number}"\n{peers}[peer]\nport = {port}\n[raft]\ntick_ms = 20\n'
        f'[[listeners]]\nname = "broker"\nport = {port + 1}\n[admin]\nport = {port + 2}\n{LOG}'
    )


Start = Callable[[int], Awaitable[list[Node]]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    nodes: list[Node] = []

    async def run(count: int) -> list[Node]:
        base = free_base_port(3 * count + 3)
        paths = [tmp_path / f"n{number}.toml" for number in range(1, count + 1)]
        for number, path in enumerate(paths, 1):
            path.write_text(toml(tmp_path, base, number, count))
        create_data_dirs(paths)
        nodes.extend(Node(load(path)) for path in paths)
        for node in nodes:
            await node.start()
        stand(nodes[0])
        await until(lambda: any(node.serving.services.writes_open() for node in nodes))
        return nodes

    try:
        yield run
    finally:
        for node in nodes:
            node.hurried = True
            await node.close()


class Client:
    """Keeps every answer; never tries anything again."""

    def __init__(self, node: Node) -> None:
        self._port = node.config.listeners[0].port
        self.codes: dict[int, int] = {}
        self.remarks: set[str] = set()
        self.ended = False

    async def connect(self) -> Client:
        reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._task = asyncio.create_task(self._read(reader))
        return self

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while prefix := await reader.read(4):
            prefix += await reader.readexactly(4 - len(prefix))
            frame = await reader.readexactly(int.from_bytes(prefix, "big"))
            header = decode_header(frame[0], frame[4 : 4 + int.from_bytes(frame[1:4], "big")])
            assert header.opaque not in self.codes, "answered twice"
            self.codes[header.opaque] = header.code
            if header.remark:
                self.remarks.add(header.remark)
        self.ended = True
        self._writer.close()

    def ask(self, code: int, opaque: int, body: bytes = b"", **ext: Any) -> None:
        self._writer.write(encode_frame(code, opaque, 0, ext={k: str(v) for k, v in ext.items()}, body=body))

    def send(self, opaque: int) -> None:
        fields = {"a": "g", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "i": "", "m": "false"}
        self.ask(310, opaque, b"%06d" % opaque, **fields)

    def pull(self, opaque: int, offset: int) -> None:
        self.ask(
            11,
            opaque,
            consumerGroup="g",
            topic="T",
            queueId=0,
            queueOffset=offset,
            maxMsgNums=1,
            sysFlag=6,
            commitOffset=0,
            suspendTimeoutMillis=15000,
            subscription="*",
            expressionType="TAG",
            subVersion=1,
        )


async def test_a_leader_that_stops_leaves_nobody_without_an_answer(start: Start) -> None:
    nodes = await start(3)
    leader = next(node for node in nodes if node.serving.services.writes_open())
    term = leader.raw.term
    client = await Client(leader).connect()
    client.send(1)
    await until(lambda: client.codes)
    follower = next(node for node in nodes if node is not leader)
    other = await Client(follower).connect()
    closing = asyncio.create_task(leader.close())
    sent = 1
    while not client.ended:
        for _ in range(5):
            sent += 1
            client.send(sent)
            other.send(sent)
        await asyncio.sleep(0.001)
    await closing
    assert leader.raw.role is Role.FOLLOWER, "it handed over before it went"
    await until(lambda: any(node.serving.services.writes_open() for node in nodes if node is not leader))
    await until(lambda: len(other.codes) == sent - 1)
    answered = set(client.codes)
    assert answered == set(range(1, len(answered) + 1)), "in order, without a gap: nothing that was read is unanswered"
    assert set(client.codes.values()) <= {0, 14}, client.remarks
    assert client.remarks <= {orderly_stop.REMARK}
    assert set(other.codes.values()) == {0}, "whoever is connected elsewhere does not notice"
    left = [node for node in nodes if node is not leader]
    await until(lambda: all(node.raw.term > term for node in left))  # one may not have heard of the next leader yet
    assert {node.raw.term for node in left} == {term + 1}, "one hand-over, no election that failed"
    await until(lambda: len({node.raw.applied_index for node in left}) == 1)
    stored = left[0].state.topics["T"]
    count = left[0].state.max_offset(stored.id, 0)
    acked = sum(code == 0 for code in client.codes.values())
    assert count == acked + len(other.codes), "what was refused is not stored, what was not is"


async def test_a_node_alone_answers_and_closes_its_connections(start: Start) -> None:
    (node,) = await start(1)
    client = await Client(node).connect()
    client.send(1)
    await until(lambda: 1 in client.codes)
    client.pull(2, offset=1)
    await until(lambda: node.serving.broker.pulls.long_polls.count)
    client.send(3)
    await until(lambda: {2, 3} <= client.codes.keys())
    client.pull(4, offset=2)
    await until(lambda: node.serving.broker.pulls.long_polls.count)
    await node.close()
    await until(lambda: client.ended)
    assert client.codes == {1: 0, 2: 0, 3: 0, 4: 19}, "the pull that waits is told that nothing came"
    with pytest.raises(ConnectionRefusedError):
        await Client(node).connect()


async def test_what_never_ends_is_not_waited_for(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    (node,) = await start(1)
    client = await Client(node).connect()
    client.send(1)
    await until(lambda: client.codes)
    node.serving.proposals.gate.hold_answer(
        next(iter(node.serving.remoting.router.connections)).in_flight, 1
    )  # a request that nobody answers
    monkeypatch.setattr(orderly_stop, "DRAIN_S", 3600.0)
    closing = asyncio.create_task(node.close())
    await until(lambda: node.stopping)
    hurried = []
    for _ in range(2):
        node.stop()
        hurried.append(node.hurried)
    await closing
    assert hurried == [False, True]
    await until(lambda: client.ended)


async def test_a_stop_that_goes_wrong_is_a_stop_all_the_same(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (node,) = await start(1)

    def fail() -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(node.serving.broker.pulls.long_polls, "release", fail)
    await node.close()
    assert "not everything could be transferred" in caplog.text
