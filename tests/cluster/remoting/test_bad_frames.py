"""Malformed, oversized and truncated frames over a real socket: that connection is closed, once logged, nobody else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cluster.config.loading import load
from cluster.node.node import Node
from raftmq_wire.codec import BINARY, FLAG_RESPONSE, JSON, Header, decode_header, encode_frame
from tests.support.first_leader import stand
from tests.support.lone_node import write_lone_node
from tests.support.pace import at_most
from tests.support.small_segments import LOG

PATIENCE_S = at_most(20)
FRAME_MAX = 1 << 17


def send(opaque: int, topic: str = "T", **ext: str) -> bytes:
    fields = {"a": "g", "b": topic, "c": "TBW102", "d": "1", "e": "0", "i": "", "m": "false", **ext}
    return encode_frame(310, opaque, 0, ext=fields, body=b"x")


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def with_header(header: bytes, serialize_type: int = JSON) -> bytes:
    return framed((serialize_type << 24 | len(header)).to_bytes(4, "big") + header)


OVERSIZED = (FRAME_MAX + 1).to_bytes(4, "big")
BAD = {
    "oversized, no header": (FRAME_MAX + 1).to_bytes(4, "big") + bytes(4),
    "oversized, no JSON": OVERSIZED + (1).to_bytes(4, "big") + b"{",
    "oversized, its header too": OVERSIZED + FRAME_MAX.to_bytes(4, "big"),
    "oversized, an answer": OVERSIZED + encode_frame(0, 1, FLAG_RESPONSE)[4:],
    "2 GiB of something": b"\x7f\xff\xff\xff" + bytes(100),
    "negative length": b"\xff\xff\xff\xff",
    "empty": framed(b""),
    "no header word": framed(b"abc"),
    "header longer than its frame": framed(b"\x00\x00\x10\x00{}"),
    "no JSON": with_header(b"{"),
    "JSON of something else": with_header(b"[1]"),
    "JSON not UTF-8": with_header(b'{"code":310,"remark":"\xff"}'),
    "deep JSON": with_header(b'{"code":310,"extFields":' + b"[" * 40_000),
    "no binary header": with_header(b"\x00", BINARY),
    "binary lengths that lie": with_header(encode_frame(310, 1, 0, ext={"b": "T"}, serialize_type=1)[8:-3], BINARY),
    "unknown header form": with_header(b"{}", 7),
}
"""Nothing in these says which request to answer."""

ANSWERED = {
    "send without fields, long names": (encode_frame(10, 1, 0), "`topic`"),
    "send without fields": (encode_frame(310, 1, 0), "`b`"),
    "batch without fields": (with_header(b'{"code":320,"opaque":1}'), "`b`"),
    "batch whose fields are null": (with_header(b'{"code":320,"opaque":1,"extFields":null}'), "object"),
    "send without a topic": (encode_frame(310, 1, 0, ext={"a": "g"}), "`b`"),
    "send without a topic, binary": (encode_frame(310, 1, 0, ext={"a": "g"}, serialize_type=BINARY), "`b`"),
    "send with a queue that is no number": (send(1, e="x"), "int"),
    "send of a time beyond 64 bits": (send(1, g="9" * 30), "int"),
    "other request with a bad field": (with_header(b'{"code":34,"opaque":1,"extFields":[]}'), "object"),
}
"""Frames whose request can be told although what it says is wrong: (frame, what the remark names)."""


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    path, _ = write_lone_node(tmp_path, f"[limits]\nframe_bytes_max = {FRAME_MAX}\nmessage_bytes_max = 32768\n{LOG}")
    running = Node(load(path))
    await running.start()
    stand(running)
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not running.serving.services.writes_open():
                await asyncio.sleep(0.01)
        yield running
    finally:
        await running.close()


async def connect(node: Node) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", node.config.listeners[0].port)


async def read_header(reader: asyncio.StreamReader) -> Header:
    async with asyncio.timeout(PATIENCE_S):
        frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
    return decode_header(frame[0], frame[4 : 4 + int.from_bytes(frame[1:4], "big")])


async def read_code(reader: asyncio.StreamReader) -> int:
    return (await read_header(reader)).code


async def is_closed(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(PATIENCE_S):
        try:
            return await reader.read() == b""
        except ConnectionError:
            return True


async def test_each_bad_frame_closes_its_own_connection(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    good_reader, good_writer = await connect(node)
    for at, (name, data) in enumerate(BAD.items()):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            reader, writer = await connect(node)
            writer.write(data)
            assert await is_closed(reader), name
            writer.close()
        lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert len(lines) == 1, f"{name}: {[record.getMessage() for record in lines]}"
        assert "connection closed" in lines[0].getMessage(), name
        assert "127.0.0.1" in lines[0].getMessage(), name
        good_writer.write(send(at))
        assert await read_code(good_reader) == 0, f"after {name}"
    assert len(node.serving.remoting.router.connections) == 1
    assert node.failure is None
    good_writer.close()


async def test_a_request_that_can_be_told_is_answered_and_its_connection_goes_on(node: Node) -> None:
    reader, writer = await connect(node)
    for name, (data, named) in ANSWERED.items():
        writer.write(data)
        header = await read_header(reader)
        assert (header.code, header.opaque) == (29, 1), name
        assert named in (header.remark or ""), name
        writer.write(send(2))
        assert await read_code(reader) == 0, f"after {name}"
    assert node.failure is None
    writer.close()


async def test_a_truncated_frame_is_only_forgotten(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    frame = send(1)
    for stop in (1, 3, 4, 7, 8, 20, len(frame) - 1):
        reader, writer = await connect(node)
        writer.write(frame[:stop])
        await writer.drain()
        writer.close()
        await writer.wait_closed()
    async with asyncio.timeout(PATIENCE_S):
        while node.serving.remoting.router.connections:
            await asyncio.sleep(0.01)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "T" not in node.state.topics
    reader, writer = await connect(node)
    writer.write(frame)
    assert await read_code(reader) == 0
    writer.close()


async def test_good_frames_before_a_bad_one_are_answered_or_stored_not_half(node: Node) -> None:
    """One read holds two sends and garbage: what was taken is stored whole, and the node goes on."""
    reader, writer = await connect(node)
    writer.write(send(1) + send(2) + with_header(b"{"))
    while not reader.at_eof():
        try:
            await reader.read(1 << 16)
        except ConnectionError:
            break
    writer.close()
    reader, writer = await connect(node)
    writer.write(send(3))
    assert await read_code(reader) == 0
    assert 1 <= node.state.max_offset(node.state.topics["T"].id, 0) <= 3
    writer.close()


async def test_replies_from_a_client_are_ignored(node: Node) -> None:
    reader, writer = await connect(node)
    writer.write(encode_frame(0, 5, 1) + send(6))
    assert await read_code(reader) == 0
    writer.close()


async def test_a_frame_split_at_every_byte(node: Node) -> None:
    reader, writer = await connect(node)
    for byte in send(1):
        writer.write(bytes((byte,)))
        await asyncio.sleep(0)
    assert await read_code(reader) == 0
    writer.close()


async def test_bad_frames_on_the_peer_port(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """Strangers on the port between nodes are turned away; the node still leads."""
    for data in (b"GET / HTTP/1.1\r\n\r\n", framed(b""), framed(b"\x00\x01\x00\x01\x93"), bytes(100)):
        caplog.clear()
        reader, writer = await asyncio.open_connection("127.0.0.1", node.config.peer.port)
        writer.write(data)
        assert await is_closed(reader)
        writer.close()
        assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1, data
    assert node.serving.services.writes_open()
    assert node.failure is None
