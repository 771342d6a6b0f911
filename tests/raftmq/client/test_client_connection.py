"""Frames in and out of one connection."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.client.connection import Connection, ConnectionPool, dial
from raftmq.client.environment import REAL
from raftmq_wire.codec import FLAG_RESPONSE, encode_frame
from tests.support.rows import each_row


class Transport:
    """Remembers what was written."""

    def __init__(self) -> None:
        self.written = b""
        self.aborted = False

    def writelines(self, parts: list[bytes]) -> None:
        self.written += b"".join(parts)

    def abort(self) -> None:
        self.aborted = True


def connected(**hooks: Any) -> tuple[Connection, Any]:
    connection = Connection("h:1", **hooks)
    transport: Any = Transport()
    connection.connection_made(transport)
    return connection, transport


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=8), st.lists(st.integers(0, 600), max_size=10))
def test_frames_survive_any_fragmentation(bodies: list[bytes], cuts: list[int]) -> None:
    async def run() -> None:
        got: list[tuple[int, bytes]] = []
        connection, _ = connected(on_response=lambda header, body: got.append((header.opaque, body)))
        stream = b"".join(encode_frame(0, n, FLAG_RESPONSE, body=body) for n, body in enumerate(bodies))
        edges = sorted({min(c, len(stream)) for c in cuts} | {0, len(stream)})
        for start, end in pairwise(edges):
            connection.data_received(stream[start:end])
        assert got == list(enumerate(bodies))

    asyncio.run(run())


@each_row(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\0\1\0\0\0\0",
        b"\x7f\xff\xff\xff\0\0\0\0",
        b"\0\0\0\x06\0\0\0\x02{}",
        b"\0\0\0\x06\x07\0\0\x02{}",
    ],
)
async def test_what_is_not_the_protocol_ends_the_connection(data: bytes) -> None:
    lost: list[Connection] = []
    connection, transport = connected(on_lost=lost.append)
    waiting = asyncio.create_task(connection.call(1, {}, timeout_s=5))
    await asyncio.sleep(0)
    connection.data_received(data)
    with pytest.raises(ConnectionAbortedError, match="does not speak"):
        await waiting
    assert transport.aborted
    assert lost == [connection]


async def test_a_header_that_is_not_the_protocol_is_refused_wherever_the_frame_was_cut() -> None:
    data = b"\0\0\0\x09\x07\0\0\x02{}abc"
    for cut in range(1, len(data)):
        connection, transport = connected()
        connection.data_received(data[:cut])
        connection.data_received(data[cut:])
        assert transport.aborted, cut
        assert "does not speak" in connection.ending, cut


async def test_writes_of_one_turn_leave_together() -> None:
    connection, transport = connected()
    connection.write((b"a",))
    connection.write((b"b", b"c"))
    assert transport.written == b""
    await asyncio.sleep(0)
    assert transport.written == b"abc"


async def test_links_dial_once_and_again_after_a_drop(fake: Any) -> None:
    links = ConnectionPool(REAL)
    address = fake.nodes[0].address
    first, second = await asyncio.gather(links.get(address), links.get(address))
    assert first is second
    links.drop(address)
    assert first.closed
    assert await links.get(address) is not first
    links.close()


async def test_a_refused_dial_is_an_oserror(fake: Any) -> None:
    address = fake.nodes[0].address
    fake.nodes[0].kill()
    with pytest.raises(ConnectionRefusedError):
        await dial(REAL, Connection(address))
