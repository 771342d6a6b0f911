"""The ports for clients: one server per listener of the configuration."""

from __future__ import annotations

import asyncio

from cluster.config import Config
from cluster.remoting.router import Router
from cluster.remoting.server import RemotingConnection


class Listeners:
    """All of a node's."""

    def __init__(self, config: Config, router: Router) -> None:
        self._config = config
        self._router = router
        self._servers: list[asyncio.Server] = []

    async def open(self) -> None:
        """Raises OSError if a port cannot be had."""
        loop, frame_max = asyncio.get_running_loop(), self._config.limits.frame_bytes_max
        for listener in self._config.listeners:
            name = listener.name
            self._servers.append(
                await loop.create_server(
                    lambda name=name: RemotingConnection(self._router, name, frame_max, loop),  # type: ignore[misc]
                    listener.bind, listener.port, backlog=1024,
                )
            )  # fmt: skip

    def close(self) -> None:
        """New clients find another node; those that are connected stay."""
        for server in self._servers:
            server.close()
