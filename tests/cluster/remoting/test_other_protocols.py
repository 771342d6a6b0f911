"""A client of another protocol at a remoting port is told so in its own protocol, and the node's log names it."""

from __future__ import annotations

import logging

import pytest

from tests.cluster.remoting import test_slow_clients
from tests.cluster.remoting.test_slow_clients import Client, Start

start = test_slow_clients.start

GRPC = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
HTTP = b" /v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n"
METHODS = (b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"PATCH", b"CONNECT")


async def test_a_grpc_client_reads_a_goaway(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    client = await Client.to(await start())
    with caplog.at_level(logging.WARNING):
        client.writer.write(GRPC)
        answer = await client.reader.read()
    assert answer[:9] == bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)), "SETTINGS comes first"
    size, kind, payload = int.from_bytes(answer[9:12], "big"), answer[12], answer[18:]
    assert (kind, size, int.from_bytes(payload[4:8], "big")) == (7, len(payload), 1)
    assert b"speaks the remoting protocol" in payload
    assert "it speaks gRPC" in caplog.text
    client.writer.close()


@pytest.mark.parametrize("method", METHODS)
async def test_a_browser_reads_where_the_http_api_is(start: Start, method: bytes) -> None:
    client = await Client.to(await start())
    client.writer.write(method + HTTP)
    head, _, body = (await client.reader.read()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert f"Content-Length: {len(body)}".encode() in head
    assert b"admin.port" in body
    client.writer.close()


async def test_a_client_of_tls_is_named_in_the_log(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    client = await Client.to(await start())
    with caplog.at_level(logging.WARNING):
        client.writer.write(b"\x16\x03\x01\x02\x00\x01\x00")
        assert await client.reader.read() == b""
    assert "it speaks TLS" in caplog.text


async def test_what_comes_behind_a_preface_costs_nothing(start: Start) -> None:
    node = await start()
    client = await Client.to(node)
    client.writer.write(GRPC + bytes(1 << 20))
    await client.reader.read()
    assert node.serving.remoting.router.memory.unfinished.taken == 0
    client.writer.close()
