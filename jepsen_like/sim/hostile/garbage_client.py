"""A client that speaks no protocol: the node must close its connection, whatever it sends, and no other client may
suffer.
"""

from __future__ import annotations

import asyncio
from functools import partial

from jepsen_like.client_kit.frames import FrameConnection
from jepsen_like.sim.clients.client_machines import Client, ClientHost
from jepsen_like.sim.machines.machine import BROKER_PORT, PEER_PORT

MALFORMED = {
    "longer than any frame": (1 << 30).to_bytes(4, "big") + bytes(60),
    "header longer than its frame": (8).to_bytes(4, "big") + (200).to_bytes(4, "big") + bytes(4),
    "header of another kind": (12).to_bytes(4, "big") + (8).to_bytes(4, "big") + b"\x93\x01\xff{]]\x00\x00",
}
"""Reason why the bytes are no frame -> bytes that are sent."""


class GarbageClient(Client):
    """Sends malformed bytes to random ports of random nodes, and remembers which of its connections are still open."""

    def __init__(self, host: ClientHost) -> None:
        super().__init__(host)
        self._busy = 0
        self._struck: list[FrameConnection] = []

    async def _work(self) -> None:
        while not self.stopped:
            await asyncio.sleep(self.rng.uniform(0.3, 1.5))
            node, port = self.rng.choice(self.host.nodes), self.rng.choice((BROKER_PORT, PEER_PORT))
            self.strike(node, port, self.rng.choice(sorted(MALFORMED)))

    def strike(self, node: str, port: int, kind: str) -> None:
        """Connects to a node and sends malformed bytes of this kind."""
        self._busy += 1
        self.host.spawn(partial(self._strike, node, port, kind))

    async def _strike(self, node: str, port: int, kind: str) -> None:
        try:
            connection = FrameConnection()
            await asyncio.get_running_loop().create_connection(lambda: connection, node, port)
            self._struck.append(connection)
            connection.transport.write(MALFORMED[kind])
        except OSError:
            return
        finally:
            self._busy -= 1

    @property
    def done(self) -> bool:
        """True if no connection attempt is in progress."""
        return not self._busy

    def is_out(self) -> bool:
        """Returns True if every connection was closed. Sends more bytes on the open ones: a node that lost power no
        longer knows them, and answers such bytes with a reset."""
        self._struck = [connection for connection in self._struck if not connection.closed]
        for connection in self._struck:
            self.host.process.run(connection.transport.write, bytes(8))
        return self.done and not self._struck
