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

from cluster.runtime.tls.acceptor import KEEP_IDLE_S, SILENT_MS, Acceptor, SilenceLimits
from tests.support.pace import at_most
from tests.support.wait_until import until

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
async def test_a_connection_to_a_silent_host_ends(waiting: bytes) -> None:
    made: list[Served] = []

    def serve() -> Served:
        made.append(Served())
        return made[-1]

    soon = SilenceLimits(1, 1, 2000)
    accepting = Acceptor(asyncio.get_running_loop(), serve, lambda opening, address: "", silence=soon)
    await accepting.open("127.0.0.1", 0)
    silent, alive = (socket.create_connection(accepting.addresses[0]) for _ in range(2))
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
    made: list[Served] = []

    def serve() -> Served:
        made.append(Served())
        return made[-1]

    accepting = Acceptor(asyncio.get_running_loop(), serve, lambda opening, address: "")
    await accepting.open("127.0.0.1", 0)
    client = socket.create_connection(accepting.addresses[0])
    await until(lambda: made and hasattr(made[0], "transport"))
    accepted = made[0].transport.get_extra_info("socket")
    assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == KEEP_IDLE_S
    assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == SILENT_MS
    accepting.close()
    client.close()
    made[0].transport.abort()
