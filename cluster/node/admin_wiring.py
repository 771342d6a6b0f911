"""The HTTP API of a node. Imported when it is needed: that takes long, and a simulated node has none."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from cluster.admin.port import AdminPort

if TYPE_CHECKING:
    from cluster.admin.server import AdminServer


async def admin_of(node: AdminPort) -> AdminServer:
    """Not started. The loop goes on while the modules are imported."""
    return (await asyncio.get_running_loop().run_in_executor(None, _server))(node)


def _server() -> type[AdminServer]:
    from cluster.admin.server import AdminServer

    return AdminServer
