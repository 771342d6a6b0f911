"""A client whose host is gone without a word: the connection ends, whether or not bytes wait for it.

A filter that drops every packet to the client's socket, its acknowledgements with them, is what the network shows of a
host without power.
"""

from __future__ import annotations

import asyncio
import ctypes
import socket
import struct
import sys
from typing import cast

import pytest

from cluster.runtime.tls import acceptor
from cluster.runtime.tls.acceptor import Acceptor
from tests.support.pace import at_most

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="filters of sockets are Linux's")

SO_ATTACH_FILTER = 26
RETURN = 0x06
"""BPF_RET | BPF_K: what is returned is the number of bytes that are kept of a packet."""


class Served(asyncio.Protocol):
    """Notes how its connection ended."""

    def __init__(self) -> None:
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(exc)


def silence(client: socket.socket) -> None:
    """From now on the host of this socket neither hears nor says anything."""
    program = ctypes.create_string_buffer(struct.pack("HBBI", RETURN, 0, 0, 0))
    client.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(program)))


@pytest.mark.parametrize("waiting", [b"", b"an answer"], ids=["idle", "with an answer on its way"])
async def test_a_connection_to_a_silent_host_ends(monkeypatch: pytest.MonkeyPatch, waiting: bytes) -> None:
    for name, value in (("KEEP_IDLE_S", 1), ("KEEP_INTERVAL_S", 1), ("SILENT_MS", 2000)):
        monkeypatch.setattr(acceptor, name, value)
    made: list[Served] = []

    def serve() -> Served:
        made.append(Served())
        return made[-1]

    accepting = Acceptor(asyncio.get_running_loop(), serve, lambda opening, address: "")
    await accepting.open("127.0.0.1", 0)
    silent, alive = (socket.create_connection(accepting._sockets[0].getsockname()) for _ in range(2))
    try:
        async with asyncio.timeout(at_most(30)):
            while len(made) < 2 or not all(hasattr(each, "transport") for each in made):
                await asyncio.sleep(0.01)
            silence(silent)
            (gone,) = [each for each in made if each.transport.get_extra_info("peername") == silent.getsockname()]
            (other,) = [each for each in made if each is not gone]
            gone.transport.write(waiting)
            assert isinstance(await gone.ended, TimeoutError)
            await asyncio.sleep(1.5)  # it is asked, too, and its system answers
        assert not other.ended.done()
    finally:
        accepting.close()
        for client in (silent, alive):
            client.close()
        for each in made:
            each.transport.abort()


async def test_what_is_accepted_is_watched_by_the_system() -> None:
    accepting = Acceptor(asyncio.get_running_loop(), asyncio.Protocol, lambda opening, address: "")
    await accepting.open("127.0.0.1", 0)
    listening = accepting._sockets[0]
    assert listening.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == acceptor.KEEP_IDLE_S
    assert listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == acceptor.SILENT_MS
    accepting.close()
