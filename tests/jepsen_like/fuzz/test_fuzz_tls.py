"""The TLS shots of the fuzzer at real sockets: what a node may do to an honest request, and what is a defect."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jepsen_like.client_kit.frames import HOST
from jepsen_like.fuzz import tls
from jepsen_like.fuzz.shot import Port, Shot
from jepsen_like.fuzz.shot_connections import ShotDefect
from tests.support.rows import each_row

Serve = Callable[[int, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Function that serves a connection with this number, the first is 0."""


async def answer(number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1 << 16)
    writer.write(b"an answer")
    await writer.drain()


async def drop(number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1 << 16)
    writer.transport.abort()


async def end(number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1 << 16)
    writer.close()


async def garble(number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1 << 16)
    os.write(writer.get_extra_info("socket").fileno(), b"\x17\x03\x03\x00\x20" + bytes(32))  # no key sealed it
    await reader.read(1 << 16)


async def drop_some(number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await (drop if number < tls.HONEST_TRIES - 1 else answer)(number, reader, writer)


async def fire(folder: Path, serve: Serve, port: str, *, secured: bool = True) -> None:
    """Fires one honest shot at a server that serves its connections like this."""
    numbers = iter(range(100))
    over: list[asyncio.StreamWriter] = []

    async def serve_next(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        over.append(writer)
        with contextlib.suppress(OSError):
            await serve(next(numbers), reader, writer)

    context = None
    if secured:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(str(folder / "node.crt"), str(folder / "node.key"))
    server = await asyncio.start_server(serve_next, HOST, 0, ssl=context)
    number = server.sockets[0].getsockname()[1]
    node: Any = SimpleNamespace(broker_port=number, admin_port=number, peer_port=number)
    shot = Shot(Port.TLS, tls.INSIDE, json.dumps({"port": port, "seed": 1}).encode())
    try:
        assert await tls.TlsLane(node, tls.context_of(folder)).fire([shot]) == [shot]
    finally:
        server.close()
        for writer in over:
            writer.transport.abort()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("pki")
    tls.make_files(made)
    return made


@each_row("port", ["broker", "http"])
@each_row(
    ("serve", "says"),
    [
        (drop, "the node dropped 3 connections"),
        (end, "got no answer"),
        (garble, "breaks TLS"),
        (answer, ""),
        (drop_some, ""),
    ],
)
def test_an_honest_request_over_tls_must_be_answered(folder: Path, serve: Serve, says: str, port: str) -> None:
    expected: Any = pytest.raises(ShotDefect, match=says) if says else contextlib.nullcontext()
    with expected:
        asyncio.run(fire(folder, serve, port))


def test_a_connection_may_be_closed_during_its_handshake_and_a_peer_need_not_answer(folder: Path) -> None:
    asyncio.run(fire(folder, drop, "broker", secured=False))
    asyncio.run(fire(folder, drop, "peer"))
