"""A TCP server that is no node: it says what the test wants, and hangs up or waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from cluster.peer.roster import Address

Listen = Callable[..., Awaitable[Address]]
"""Takes the parts to say, `after` (what the client must have said first) and `hangs_up`; returns where it listens."""


@pytest.fixture
async def listens() -> AsyncIterator[Listen]:
    """Makes servers that end with the test."""
    servers: list[asyncio.Server] = []
    writers: list[asyncio.StreamWriter] = []

    async def listen(*parts: bytes, after: bytes = b"", hangs_up: bool = True) -> Address:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.append(writer)
            try:
                if after:
                    await reader.readuntil(after)
                for part in parts:
                    writer.write(part)
                    await writer.drain()
                if hangs_up:
                    writer.close()
                else:
                    await reader.read()
            except (ConnectionError, asyncio.IncompleteReadError):
                pass  # the client has left

        servers.append(await asyncio.start_server(serve, "127.0.0.1", 0))
        host, port = servers[-1].sockets[0].getsockname()
        return host, port

    yield listen
    for server in servers:
        server.close()
    await asyncio.sleep(0.01)  # who was just accepted gets a writer
    for writer in writers:
        writer.transport.abort()
    await asyncio.sleep(0.05)
