"""The ports for clients: one server per listener of the configuration."""

from __future__ import annotations

import asyncio
from functools import partial

from cluster.config.config import Config
from cluster.remoting.acceptor import Acceptor, has_descriptors
from cluster.remoting.router import Router
from cluster.remoting.server import RemotingConnection
from cluster.runtime.parts import Part


class Listeners:
    """All of a node's."""

    def __init__(self, config: Config, router: Router) -> None:
        self._config = config
        self._router = router
        self._servers: list[asyncio.Server | Acceptor] = []

    def part(self) -> Part:
        """See `cluster.runtime.parts`."""
        return Part(
            name="listeners",
            start=self.open,
            close=self.close,
            reload=self.reload,
        )

    async def open(self) -> None:
        """Raises OSError if a port cannot be had."""
        loop = asyncio.get_running_loop()
        for listener in self._config.listeners:
            connection = partial(self._connection, listener.name, loop)
            if has_descriptors(loop):
                acceptor = Acceptor(loop, connection, self._router.full)
                self._servers.append(acceptor)
                await acceptor.open(listener.bind, listener.port)
            else:
                self._servers.append(await loop.create_server(connection, listener.bind, listener.port))

    def reload(self, config: Config) -> None:
        """Another `limits.frame_bytes_max` for connections that are opened from now on."""
        self._config = config

    def _connection(self, listener: str, loop: asyncio.AbstractEventLoop) -> RemotingConnection:
        return RemotingConnection(self._router, listener, self._config.limits.frame_bytes_max, loop)

    def close(self) -> None:
        """New clients find another node; those that are connected stay."""
        for server in self._servers:
            server.close()
