"""A TCP server that is no node: it says what the test wants, and hangs up or waits."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress

import pytest

from cluster.peer.allowed_peers import HostAndPort
from tests.support.wait_until import PATIENCE_S

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(serve: Serve, port: int = 0) -> AsyncIterator[HostAndPort]:
    """Listens, and ends every connection with the block: one that is still closing when its test ends is blamed on the
    next test. Yields the address."""
    writers: list[asyncio.StreamWriter] = []

    async def known(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await serve(reader, writer)

    server = await asyncio.start_server(known, "127.0.0.1", port)
    try:
        yield server.sockets[0].getsockname()
    finally:
        server.close()
        await asyncio.sleep(0.01)  # who was just accepted gets a writer
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0.05)


@contextmanager
def hanging_up(context: ssl.SSLContext) -> Iterator[str]:
    """Listens with TLS, and hangs up after each handshake; yields the address. On a thread, because asyncio's own TLS
    server (3.11) may keep a connection whose client hangs up in the middle of the handshake."""

    def serve() -> None:
        with suppress(OSError):  # the listening socket ends
            while True:
                accepted, _ = listening.accept()
                accepted.settimeout(PATIENCE_S)
                with accepted, suppress(OSError):
                    context.wrap_socket(accepted, server_side=True).close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listening.getsockname()[1]}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


Listen = Callable[..., Awaitable[HostAndPort]]
"""Takes the parts to say, `after` (what the client must have said first) and `hangs_up`; returns where it listens."""


@pytest.fixture
async def listens() -> AsyncIterator[Listen]:
    """Makes servers that end with the test."""
    async with AsyncExitStack() as servers:

        async def listen(*parts: bytes, after: bytes = b"", hangs_up: bool = True) -> HostAndPort:
            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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

            return await servers.enter_async_context(serving(serve))

        yield listen
