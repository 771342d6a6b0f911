"""The port for clients: what is passed comes back as a node said it, the rest is refused by name, and nothing waits for
ever."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Any

import pytest

from cluster.registry.front import NOT_READY, Front
from raftmq.local.process import free_base_port
from raftmq_wire.codec import BINARY, FLAG_ONEWAY, FLAG_RESPONSE, JSON, Header, decode_header, encode_frame
from raftmq_wire.codes import RequestCode, ResponseCode
from tests.support.pace import at_most
from tests.support.rows import each_row

ROUTE, INFO = RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO


class Peer:
    """One end of a connection that speaks frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def read(self) -> bytes:
        async with asyncio.timeout(at_most(10)):
            size = await self.reader.readexactly(4)
            return size + await self.reader.readexactly(int.from_bytes(size))

    async def ask(self, code: int, opaque: int = 1, kind: int = JSON, **fields: object) -> tuple[Header, bytes]:
        self.writer.write(encode_frame(code, opaque, 0, serialize_type=kind, **fields))  # type: ignore[arg-type]
        return parsed(await self.read())


def parsed(frame: bytes) -> tuple[Header, bytes]:
    size = int.from_bytes(frame[5:8])
    return decode_header(frame[4], frame[8 : 8 + size]), frame[8 + size :]


class FakeNode:
    """Answers each request with its own name, or as `says` does."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.port = free_base_port(1)
        self.asked: list[bytes] = []
        self.says: Callable[[Peer, bytes], Awaitable[None]] = self.answer
        self.server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def answer_of(self, frame: bytes) -> bytes:
        header, _ = parsed(frame)
        return encode_frame(
            0, header.opaque, FLAG_RESPONSE, body=self.name.encode(), serialize_type=frame[4], language="JAVA"
        )

    async def answer(self, peer: Peer, frame: bytes) -> None:
        peer.writer.write(self.answer_of(frame))

    async def start(self) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        peer = Peer(reader, writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            while True:
                frame = await peer.read()
                self.asked.append(frame)
                await self.says(peer, frame)

    def stop(self) -> None:
        assert self.server is not None
        self.server.close()
        for writer in self._writers:
            writer.transport.abort()


class Place:
    """A front, its nodes, and its clients."""

    def __init__(self, **limits: Any) -> None:
        self.port = free_base_port(1)
        self.ready = asyncio.Event()
        self.ready.set()
        self.nodes = [FakeNode("a"), FakeNode("b")]
        self.living = [node.address for node in self.nodes]
        self.groups: dict[str, tuple[int, ...]] = {}
        self.front = Front(
            self.ready, self.nodes_in, lambda topic: self.groups.get(topic, ()), random.Random(1), **limits
        )
        self.clients: list[Peer] = []

    def nodes_in(self, groups: Collection[int]) -> list[str]:
        """Node a is of group 1, node b of group 2."""
        return [self.nodes[group - 1].address for group in groups] if groups else self.living

    async def client(self) -> Peer:
        self.clients.append(Peer(*await asyncio.open_connection("127.0.0.1", self.port)))
        return self.clients[-1]


def limited(**limits: Any) -> pytest.MarkDecorator:
    """The place of the test has a front with these limits."""
    return pytest.mark.parametrize("place", [limits], indirect=True)


@pytest.fixture
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    made = Place(**getattr(request, "param", {}))
    for node in made.nodes:
        await node.start()
    await made.front.start("127.0.0.1", made.port)
    yield made
    for client in made.clients:
        client.writer.transport.abort()
    await made.front.close()
    for node in made.nodes:
        node.stop()
    await asyncio.sleep(0.05)


@pytest.mark.parametrize("kind", [JSON, BINARY])
async def test_a_request_reaches_a_node_as_it_came_and_so_does_its_answer(place: Place, kind: int) -> None:
    client = await place.client()
    request = encode_frame(ROUTE, 77, 0, ext={"topic": "t", "Signature": "s"}, serialize_type=kind, body=b"x")
    client.writer.write(request)
    answer = await client.read()
    (node,) = [node for node in place.nodes if node.asked]
    assert node.asked == [request]
    assert answer == node.answer_of(request)
    for opaque in range(3):
        assert (await client.ask(INFO, opaque, kind))[1] == node.name.encode(), "a connection has one node"


async def test_another_node_answers_when_one_is_gone(place: Place) -> None:
    client = await place.client()
    first = (await client.ask(ROUTE))[1].decode()
    gone = place.nodes["ab".index(first)]
    gone.stop()
    assert (await client.ask(ROUTE))[1].decode() == "ba"["ab".index(first)]
    other = place.nodes["ba".index(first)]
    other.stop()
    header, _ = await client.ask(ROUTE)
    assert header.code == ResponseCode.SYSTEM_ERROR
    assert "no node answers the name server now: " in (header.remark or "")
    place.living = []
    header, _ = await (await place.client()).ask(INFO)
    assert header.remark == "no node answers the name server now: none is connected to it"


async def test_a_topic_that_one_group_does_not_know_yet_is_looked_for_in_another(place: Place) -> None:
    async def unknown(peer: Peer, frame: bytes) -> None:
        peer.writer.write(encode_frame(17, parsed(frame)[0].opaque, FLAG_RESPONSE, remark="no such topic"))

    place.nodes[0].says = unknown
    place.living = [place.nodes[0].address]
    place.groups["t"] = (2,)
    client = await place.client()
    assert (await client.ask(ROUTE, ext={"topic": "t"}))[1] == b"b"
    header, _ = await (await place.client()).ask(ROUTE, ext={"topic": "other"})
    assert (header.code, header.remark) == (17, "no such topic"), "nobody knows more"
    place.nodes[1].says = unknown
    header, _ = await (await place.client()).ask(ROUTE, ext={"topic": "t"})
    assert header.code == 17
    place.nodes[1].stop()
    header, _ = await (await place.client()).ask(ROUTE, ext={"topic": "t"})
    assert header.code == 17


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (103, "REGISTER_BROKER (103) is refused: brokers register at the peer port, with a proof of the secret"),
        (104, "not UNREGISTER_BROKER (104)"),
        (RequestCode.SEND_MESSAGE, "not SEND_MESSAGE (10)"),
        (29999, "answers GET_ROUTEINFO_BY_TOPIC (105) and GET_BROKER_CLUSTER_INFO (106), not code 29999"),
    ],
)
async def test_everything_else_is_refused_by_name(place: Place, code: int, told: str) -> None:
    client = await place.client()
    header, _ = await client.ask(code, 5, body=b'{"brokerName":"evil"}')
    assert (header.code, header.opaque) == (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, 5)
    assert told in (header.remark or "")
    assert [node.asked for node in place.nodes] == [[], []]
    assert (await client.ask(ROUTE))[0].code == 0, "the connection goes on"


@limited(hold_s=0.2)
async def test_while_it_is_not_ready_requests_are_never_answered_with_17(place: Place) -> None:
    place.ready.clear()
    client = await place.client()
    for code in (ROUTE, INFO):
        header, _ = await client.ask(code)
        assert (header.code, header.remark) == (ResponseCode.SYSTEM_ERROR, NOT_READY)
    assert (await client.ask(103))[0].code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


@limited(hold_s=at_most(5))
async def test_while_it_is_not_ready_requests_are_held(place: Place) -> None:
    place.ready.clear()
    client = await place.client()
    held = asyncio.create_task(client.ask(ROUTE))
    await asyncio.sleep(0.1)
    assert [node.asked for node in place.nodes] == [[], []]
    place.ready.set()
    assert (await held)[0].code == 0


@limited(answer_s=0.3)
async def test_a_node_that_answers_for_ever_or_never_is_not_waited_for(place: Place) -> None:
    """Frames of others' requests, a frame without end, and silence."""
    client = await place.client()

    async def others(peer: Peer, frame: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            for opaque in range(1 << 20):
                peer.writer.write(encode_frame(0, opaque + 1000, FLAG_RESPONSE))
                await peer.writer.drain()

    async def endless(peer: Peer, frame: bytes) -> None:
        peer.writer.write((1 << 30).to_bytes(4) + bytes(100))

    async def silent(peer: Peer, frame: bytes) -> None:
        """Says nothing."""

    for says in (others, endless, silent):
        for node in place.nodes:
            node.says = says
        header, _ = await client.ask(ROUTE)
        assert header.code == ResponseCode.SYSTEM_ERROR
    for node in place.nodes:
        node.says = node.answer
    header, body = await client.ask(ROUTE, 1003)
    assert (header.code, len(body)) == (0, 1), "what came late is not taken for this answer"


@limited(answer_s=at_most(1))
async def test_an_answer_that_comes_too_late_is_not_taken_for_the_next_one(place: Place) -> None:
    """A client may give the next request the same number."""
    place.living = [place.nodes[0].address]
    late = asyncio.Event()

    async def wait(peer: Peer, frame: bytes) -> None:
        await late.wait()
        peer.writer.write(encode_frame(0, 7, FLAG_RESPONSE, body=b"late"))

    place.nodes[0].says = wait
    client = await place.client()
    assert (await client.ask(ROUTE, 7))[0].code == ResponseCode.SYSTEM_ERROR
    place.nodes[0].says = place.nodes[0].answer
    late.set()
    await asyncio.sleep(0.05)
    assert (await client.ask(ROUTE, 7))[1] == b"a"


async def test_oneway_requests_and_responses_are_not_answered(place: Place) -> None:
    client = await place.client()
    client.writer.write(encode_frame(ROUTE, 1, FLAG_ONEWAY) + encode_frame(103, 2, FLAG_ONEWAY))
    client.writer.write(encode_frame(ROUTE, 3, FLAG_RESPONSE) + encode_frame(0, 4, FLAG_RESPONSE))
    assert (await client.ask(ROUTE, 9))[0].opaque == 9


@each_row(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x00\xf1",
        (3).to_bytes(4) + bytes(8),
        (1 << 20).to_bytes(4) + bytes(8),
        (20).to_bytes(4) + (40).to_bytes(4) + bytes(40),
        (8).to_bytes(4) + (4).to_bytes(4) + b"{{{{",
        (8).to_bytes(4) + bytes((9, 0, 0, 4)) + b"{}  ",
    ],
)
async def test_what_is_no_request_ends_the_connection(place: Place, data: bytes) -> None:
    client = await place.client()
    client.writer.write(data)
    if len(data) < 8:
        client.writer.write_eof()
    async with asyncio.timeout(at_most(10)):
        with contextlib.suppress(ConnectionError):
            assert await client.reader.read() == b""
    assert (await (await place.client()).ask(ROUTE))[0].code == 0


@limited(clients_max=2)
async def test_connections_are_limited(place: Place) -> None:
    first, second = await place.client(), await place.client()
    for client in (first, second):
        await client.ask(ROUTE)
    third = await place.client()
    async with asyncio.timeout(at_most(10)):
        with contextlib.suppress(ConnectionError):
            assert await third.reader.read() == b""
    assert (await first.ask(ROUTE))[0].code == 0
