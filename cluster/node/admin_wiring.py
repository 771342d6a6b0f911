"""The HTTP API of a node. Imported only when needed: the import is slow, and a simulated node has no HTTP API."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from cluster.admin.port import AdminPort

if TYPE_CHECKING:
    from cluster.admin.server import AdminServer


async def admin_of(port: AdminPort) -> AdminServer:
    """Not started. The loop keeps running while the modules are imported."""
    return (await asyncio.get_running_loop().run_in_executor(None, _server))(port)


def _server() -> type[AdminServer]:
    from cluster.admin.server import AdminServer

    return AdminServer
