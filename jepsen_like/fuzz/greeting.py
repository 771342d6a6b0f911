"""The handshake of a node that may speak on a peer port, though no member has its name."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import Any

from cluster.peer.connections import CONTROL
from cluster.peer.wire import Kind, pack
from jepsen_like.fuzz.lanes import HOST, Line

ME = 901
"""Plus the id of the node addressed: one guest each."""
_LET_IN_S = 0.05


class Greeting:
    """Introduces itself to one node. The address that it names is a port of its own, at which it says nothing."""

    def __init__(self, cluster: str, to: int) -> None:
        """`cluster`: its uuid."""
        self.me = ME + to
        self._cluster, self._to = cluster, to
        self._uuid = str(uuid.UUID(int=self.me))
        self._server: asyncio.Server | None = None
        self._port = 0

    async def start(self) -> None:
        """Listens at the address that it names."""
        self._server = await asyncio.start_server(self._heard, HOST, 0)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _heard(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while await reader.read(1 << 16):
                pass
        writer.transport.abort()

    def close(self) -> None:
        """Stops to listen."""
        if self._server is not None:
            self._server.close()

    @property
    def hello(self) -> list[Any]:
        """Its introduction."""
        return [self._cluster, 1, self.me, self._uuid, self._to, CONTROL, 5, HOST, self._port]

    async def __call__(self, line: Line) -> bool:
        """Whether it was let in, or at least not sent away at once."""
        assert line.transport is not None
        line.transport.write(pack(Kind.HELLO, self.hello))
        try:
            await asyncio.wait_for(line.closed.wait(), _LET_IN_S)
        except TimeoutError:
            return True
        return False
